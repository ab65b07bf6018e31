"""Wrong steps, and what the check says about each."""
import re
import types
from functools import partial

import numpy
import pytest
from slow import slow
from steps_to_check import (
    LOSS,
    LR,
    MOMENTUM,
    check_two,
    copy_with_gradient,
    make_accumulating,
    make_arrays,
    make_averages,
    make_momentum,
    make_network,
    network,
    some_slow,
    step_from_scratch,
    step_of_trainer,
    step_with_trainer,
    take_gradients,
    update,
    with_dropout_and_batch_norm,
)

from gluon_mgpu import check_data_parallel, scratch
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, mx, np, npx
from gluon_mgpu.parallel.split import split_batch
from gluon_mgpu.parallel.step import gradients, params_with_gradients, prepare_idle_devices
from gluon_mgpu.parallel.sync_batch_norm.synchronized import SyncBatchNorm

NO_SUM = r'batch 1, of 8 rows: the sum of the gradients does not reach cpu\(0\), cpu\(1\)\.'
MEAN_OF_MEANS = 'batch 2, of 7 rows: each device has the same weight whatever its rows, a mean of means'
ONCE = 'each row counts once, to three digits, but something else differs'
STALE = 'batch 4, of 1 row: the gradient of the batch before is added'
UNKNOWN = 'The cause is unknown'

FROM_SCRATCH = {
    'divides by the rows of a shard': 'batch 1, of 8 rows: the update is 2 times that of one device',
    'averages': 'the update is 0.5 times that of one device',
    'a mean of means': MEAN_OF_MEANS,
    'a mean of means, the last of more rows': MEAN_OF_MEANS,
    'overlapping shards': 'batch 1, of 8 rows: row 4 counts 2 times, row 5 counts 2 times',
    'skips a small batch': 'batch 4, of 1 row: no device is updated',
    'a stale gradient': STALE,
    'sums into a new array': NO_SUM,
    'sums on the first device only': r'the sum of the gradients does not reach cpu\(1\)\.',
    'does not sum the biases': 'WRONG in 2 of 4 parameters after ' + NO_SUM,
    'misses the last device': r'batch 1, of 8 rows: the gradient of cpu\(1\) counts 0 times',
    'the first shard on all devices': r'the gradient of cpu\(0\) counts 2 times, cpu\(1\) counts 0 times',
    'drops the rows that remain': 'batch 2, of 7 rows: row 7 counts 0 times',
    'updates all but the last': r'batch 1, of 8 rows: the update of cpu\(1\) counts 0 times\.',
}


@pytest.mark.parametrize('mistake', some_slow(FROM_SCRATCH, quick=(
    'averages', 'a mean of means, the last of more rows', 'overlapping shards', 'skips a small batch',
    'a stale gradient', 'sums into a new array', 'misses the last device')))
def test_mistakes_from_scratch(mistake, batches):
    report = check_two(make_arrays, partial(step_from_scratch, mistake=mistake), batches)
    assert not report.ok and re.search(FROM_SCRATCH[mistake], report.diagnosis[0]), report
    right = ['parameter 0', 'parameter 2'] if mistake == 'does not sum the biases' else []
    assert [name for name, _, _, verdict in report.parameters if verdict == 'equal'] == right


WITH_TRAINER = {
    'no kvstore': NO_SUM,
    'means': 'the update is 2 times that of one device',
    'skips stale gradients': r'batch 4, of 1 row: the update of cpu\(1\) counts 0 times\.',
    'clips each gradient': UNKNOWN,
}


@pytest.mark.parametrize('mistake', WITH_TRAINER)
def test_mistakes_with_a_trainer(mistake, batches):
    options = {'no kvstore': {'kvstore': None}, 'skips stale gradients': {'update_on_kvstore': False}}.get(mistake, {})
    report = check_two(partial(make_network, layers=with_dropout_and_batch_norm, **options),
                       partial(step_with_trainer, mistake=mistake), batches)
    assert not report.ok and re.search(WITH_TRAINER[mistake], report.diagnosis[0]), report


def test_only_the_last_device_without_rows_adds_nothing(batches):
    """Seen in a batch of one row, after which two devices have none."""
    def step(state, X, y, devices):
        X_shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            ls = [LOSS(network(X_shard, params), y_shard)
                  for X_shard, params, y_shard in zip(X_shards, state, y_shards)]
        autograd.backward(ls)
        if len(ls) < len(devices):
            for param in state[-1]:
                param.grad[:] = 0
        for arrays in zip(*state):
            scratch.allreduce([array.grad for array in arrays])
        for params in state:
            scratch.sgd(params, LR, len(X))
    report = check_data_parallel(make_arrays, step, batches)
    assert 'batch 6, of 1 row: the gradient of the batch before is added' in report.diagnosis[0], report


@pytest.mark.parametrize('uses', [lambda devices: devices[:1], slow(lambda devices: devices[:-1])])
@pytest.mark.parametrize('on_kvstore', [None, False])
def test_a_step_on_fewer_devices_than_the_network(uses, on_kvstore, batches):
    def step(state, X, y, devices):
        step_with_trainer(state, X, y, uses(devices) or devices)
    report = check_two(partial(make_network, update_on_kvstore=on_kvstore), step, batches)
    assert not report.ok and report.diagnosis[0].startswith('WRONG: Gradient of Parameter'), report
    assert 'cpu(1) has not been updated' in report.diagnosis[0]
    assert 'use all devices that the network is on' in report.diagnosis[1]


def own_parameters(devices):
    return [make_arrays([device])[0] for device in devices]


def copied_before_each_step(state, X, y, devices):
    """The values of the first device are used, whatever the others start with."""
    for params in state[1:]:
        for param, first in zip(params, state[0]):
            first.copyto(param)
    step_from_scratch(state, X, y, devices)


def test_devices_that_start_with_their_own_parameters(batches):
    report = check_two(own_parameters, step_from_scratch, batches)
    assert not report.ok and report.diagnosis[0].startswith('WRONG: the devices start with different parameters')
    assert check_two(own_parameters, copied_before_each_step, batches).ok
    other = check_two(own_parameters, partial(step_from_scratch, mistake='averages'), batches)
    assert 'the update is 0.5 times that of one device' in other.diagnosis[0]


@pytest.mark.parametrize('first', [False, slow(True)])
@pytest.mark.parametrize('kept_in', ['NumPy', 'MXNet'])
def test_momentum_that_is_not_on_all_devices(kept_in, first, batches):
    """It is on the first device, or on those with rows. In arrays of MXNet, the velocities are compared as well."""
    def make(devices):
        state = make_momentum(devices)
        if kept_in == 'NumPy':
            state.velocities = [[velocity.asnumpy().astype('float64') for velocity in velocities]
                                for velocities in state.velocities]
        return state

    def train_batch(state, X, y, devices):
        before = [[param.copy() for param in params] for params in state.device_params]
        step_from_scratch(state.device_params, X, y, devices)
        for params, old, velocities in [*zip(state.device_params, before, state.velocities)][:1 if first else len(X)]:
            for param, start, velocity in zip(params, old, velocities):
                change = param - start
                velocity[:] = 0.9 * velocity + (change if kept_in == 'MXNet' else change.asnumpy())
                param[:] = start + np.array(velocity, dtype=param.dtype)
    report = check_two(make, train_batch, batches)
    fault = 'copies without gradients' if kept_in == 'MXNet' else ONCE
    assert fault in report.diagnosis[0] and 'momentum' in ' '.join(report.diagnosis), report


def test_a_mistake_beside_copies(batches):
    """The diagnosis is that of the parameters, although the copies differ as well."""
    def step(state, X, y, devices):
        step_from_scratch(state['params'], X, y, devices, 'misses the last device')
        for params, squares in zip(state['params'], state['averages']):
            for param, square in zip(params, squares):
                square[:] = param.grad ** 2  # no sum over the rows
    report = check_two(make_averages, step, batches)
    assert report.diagnosis[0].endswith('the gradient of cpu(1) counts 0 times.'), report


@pytest.mark.parametrize('draw', [lambda X: npx.dropout(X, p=0.5), slow(lambda X: X * np.random.normal(size=(1, 6)))])
def test_random_numbers_on_each_device(draw, batches):
    def train_batch(state, X, y, devices):
        X_shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            ls = [LOSS(network(draw(X_shard), params), y_shard)
                  for X_shard, params, y_shard in zip(X_shards, state, y_shards)]
        update(ls, state, len(X))
    report = check_data_parallel(make_arrays, train_batch, batches)
    assert not report.ok and report.diagnosis[0].startswith('NOT CHECKED: the step draws random numbers')


def step_with_limit(state, X, y, devices, write):
    """Keep the parameters small, after each update."""
    step_with_trainer(state, X, y, devices)
    for param in params_with_gradients(state[0]):
        if write == 'set_data':
            param.set_data(np.clip(param.list_data()[0], -0.3, 0.3))
        else:
            for array in param.list_data():
                array[:] = np.clip(array, -0.3, 0.3)


@pytest.mark.parametrize('write, options, message', [
    ('list_data', {}, 'batch 2, of 7 rows'), slow('list_data', {'optimizer': 'adam'}, 'batch 2, of 7 rows'),
    ('set_data', MOMENTUM, "WRONG: the optimizer's settings or state differ"), slow('set_data', {}, ''),
    slow('list_data', {'update_on_kvstore': False}, ''), ('list_data', {'update_on_kvstore': False, **MOMENTUM}, '')])
def test_a_step_that_writes_into_the_parameters_of_a_trainer(write, options, message, batches):
    report = check_two(partial(make_network, **options), partial(step_with_limit, write=write), batches)
    assert report.ok is not message, report
    assert not message or message in report.diagnosis[0]


@pytest.mark.parametrize('optimizer', ['adam', 'sgd'])
def test_an_optimizer_that_enlarges_rounding_errors(optimizer):
    """Several devices and one round a gradient of 0 to opposite sides; all others are sums of integers, and exact."""
    def make(devices):
        net = gluon.nn.Dense(4, in_units=6)
        net.initialize(ctx=devices)
        return net, gluon.Trainer(net.collect_params(), optimizer, {'learning_rate': 0.01})

    def train_batch(state, X, y, devices):
        net, trainer = state
        shards = split_batch(X.astype('float32'), y, devices)[0]
        with autograd.record():
            ls = [net(shard).sum() for shard in shards]
        for l in ls:
            l.backward()
        for gradient in [*net.bias.list_grad(), *gradients(net, devices[len(shards):])]:
            gradient[:] = 0
        net.bias.grad(devices[0])[:] = 2.0 ** -24 * (1 if len(devices) > 1 else -1)
        trainer.step(len(X), ignore_stale_grad=True)
    X = numpy.arange(48 * 6).reshape(48, 6) % 7.0
    report = check_two(make, train_batch, [(X, numpy.zeros(48, 'int32'))])
    assert 'in its own dtype' in report.title
    assert report.ok if optimizer == 'sgd' else report.diagnosis[0].startswith('NOT CHECKED: the'), report


@pytest.mark.parametrize('name', ['nadam', slow('sgld')])
def test_optimizers_that_each_device_calls(name, batches):
    """They count their calls or draw random numbers. With updates on the key-value store, they are right."""
    for on_kvstore in (False, None, True):
        report = check_two(partial(make_network, optimizer=name, update_on_kvstore=on_kvstore), step_with_trainer,
                           batches)
        assert report.ok is (on_kvstore is not False), report
        if not report.ok:
            assert report.diagnosis[0].startswith("WRONG: the optimizer's settings or state differ")
            assert 'an optimizer that counts its calls or draws random numbers drifts apart' in report.diagnosis[1]


@pytest.mark.parametrize('optimizer, settings', [
    ('sgd', lambda devices: {'learning_rate': 0.1 * len(devices)}),
    pytest.param('lars', lambda devices: {'momentum': 0.9, 'lr_scheduler': mx.lr_scheduler.FactorScheduler(
        2, 0.5, base_lr=0.1)}, marks=pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 corrects nothing'))])
def test_settings_that_differ_from_those_of_one_device(optimizer, settings, batches):
    """LARS corrects its momentum once for each parameter and device when the rate changes."""
    report = check_data_parallel(lambda devices: make_network(
        devices, optimizer=optimizer, settings=settings(devices), update_on_kvstore=False), step_with_trainer, batches)
    assert report.diagnosis[0].startswith("WRONG: the optimizer's settings or state differ"), report


@pytest.mark.parametrize('on_kvstore', [False, None])
def test_a_step_that_leaves_old_gradients(on_kvstore, batches):
    """It is right except for fewer rows than devices, which the Trainer refuses, or its key-value store adds."""
    step = partial(step_with_trainer, mistake='a stale gradient')
    report = check_two(partial(make_network, update_on_kvstore=on_kvstore), step, batches)
    assert report.ok is (on_kvstore is False), report
    if report.ok:
        assert 'because the step raises UserWarning (Gradient of Parameter' in report.notes[0]
    else:
        assert STALE in report.diagnosis[0]
        assert 'before the sum: prepare_idle_devices(net, X, devices)' in report.diagnosis[1]


@pytest.mark.parametrize('in_loss', [False, slow(True)])
def test_weight_decay_on_each_device_before_the_sum(in_loss, batches):
    def train_batch(state, X, y, devices):
        X_shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            ls = [LOSS(network(X_shard, params), y_shard).sum() + in_loss * 0.1 * (params[0] ** 2).sum()
                  for X_shard, params, y_shard in zip(X_shards, state, y_shards)]
        for l in ls:
            l.backward()
        for params in state:
            for param in params:
                param.grad[:] += (not in_loss) * 0.1 * param
        for arrays in zip(*state):
            scratch.allreduce([array.grad for array in arrays])
        for params in state:
            scratch.sgd(params, LR, len(X))
    report = check_two(make_arrays, train_batch, batches)
    assert ONCE in report.diagnosis[0]


@pytest.mark.parametrize('factor', [1.002, 1.0005])
def test_small_faults_are_printed(factor, batches):
    def train_batch(state, X, y, devices):
        step_from_scratch(state, X, y, devices, batch_size=len(X) / (factor if len(devices) > 1 else 1))
    report = check_two(make_arrays, train_batch, batches)
    assert f'the update is {factor} times that of one device' in report.diagnosis[0]
    assert f'cpu(0): {factor}, ' in report.diagnosis[4]


@pytest.mark.parametrize('rows, masked', [
    (lambda i: i // 2 % 2, False), (lambda i: i * (i % 8 < 5), False), (lambda i: i, True), (lambda i: 0 * i, False)],
    ids=['two kinds', 'padded', 'masked', 'alike'])
def test_rows_that_change_nothing(rows, masked, batches):
    """They, or their neighbors, add as much or nothing to the update: another row is taken for the diagnosis."""
    X, y = (numpy.concatenate(arrays)[rows(numpy.arange(48))] for arrays in zip(*batches))

    def step(state, X, y, devices):
        with autograd.record():
            ls = [LOSS(network(X_shard, params), y_shard) * (y_shard > (2 if masked else -1)).astype('float64')
                  for X_shard, y_shard, params in zip(*split_batch(X, y, devices), state)]
        update(ls, state, len(X) / len(devices))
    report = check_two(make_arrays, step, [(X, y)])
    assert 'batch 1, of 8 rows: the update is 2 times that of one device' in report.diagnosis[0], report


@pytest.mark.parametrize('seed', [0, 2, 4])
def test_a_small_term_that_each_device_divides_by_counts_of_its_own_rows(seed):
    """As a center loss, beside which the rows count nearly once."""
    def make(devices):
        centers = np.random.normal(size=(4, 4))
        return [[*params, copy_with_gradient(centers, device)] for params, device in zip(make_arrays(devices), devices)]

    def center_loss(X, y, params):
        out, classes = network(X.astype('float32'), params[:4]), np.eye(4, dtype='float32', ctx=X.ctx)[y]
        distances = ((out - np.dot(classes, params[4])) ** 2).sum(axis=1)
        return LOSS(out, y) + 0.03 * distances / np.dot(classes, classes.sum(axis=0))

    def step(state, X, y, devices):
        with autograd.record():
            ls = [center_loss(*shards) for shards in zip(*split_batch(X, y, devices), state)]
        update(ls, state, len(X))
    rng = numpy.random.default_rng(seed)
    report = check_two(make, step, [(rng.normal(size=(48, 6)), rng.integers(0, 4, 48))])
    assert UNKNOWN in report.diagnosis[0], report


def test_a_mistake_beside_synchronized_batch_norm(batches):
    """There is no note that each device normalizes by its own rows."""
    def make(devices):
        net, trainer = make_network(devices, layers=with_dropout_and_batch_norm)
        return SyncBatchNorm(net), trainer

    def step(state, X, y, devices):
        net, trainer = state
        X_shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            ls = [LOSS(y_hat, y_shard) for y_hat, y_shard in zip(net.forward(X_shards), y_shards)]
        net.backward(ls)
        prepare_idle_devices(net, X, devices)
        trainer.step(len(X) / len(devices))
    report = check_two(make, step, batches)
    assert 'the update is 2 times that of one device' in report.diagnosis[0], report
    assert not any('batch norm' in note for note in report.notes)


def test_a_division_by_zero(batches):
    def step(state, X, y, devices):
        step_from_scratch(state, X, y, devices)
        for params in state if len(X) == 1 else []:
            params[0][:] *= float('nan')
    report = check_two(make_arrays, step, batches)
    assert 'batch 4, of 1 row: parameters become NaN or infinite.' in report.diagnosis[0]


@pytest.mark.parametrize('mistake', ['', 'no sum'])
@pytest.mark.parametrize('every, found_in', [(2, 'batch 2, of 7 rows'), slow(3, 'batch 3, of 8 rows')])
def test_a_step_that_updates_after_several_batches(every, found_in, mistake, batches):
    def make(devices):
        return types.SimpleNamespace(rows=0, batches=0, **make_accumulating(devices))

    def train_batch(state, X, y, devices):
        for X_shard, y_shard, params in zip(*split_batch(X, y, devices), state.params):
            with autograd.record():
                l = LOSS(network(X_shard, params), y_shard)
            l.backward()
        state.rows, state.batches = state.rows + len(X), state.batches + 1
        if state.batches % every:
            return
        for arrays in zip(*state.params):
            if not mistake:
                scratch.allreduce([array.grad for array in arrays])
        for params in state.params:
            scratch.sgd(params, LR, state.rows)
            for param in params:
                param.grad[:] = 0
        state.rows = 0
    report = check_two(make, train_batch, batches)
    assert report.ok is not mistake, report
    if mistake:
        assert f'{found_in}: the sum of the gradients does not reach' in report.diagnosis[0]


def test_each_device_divides_by_its_own_rows(batches):
    """After the sum, times the devices, so that even batches are right; a device without rows divides by all rows."""
    def train_batch(state, X, y, devices):
        step_from_scratch(state, X, y, devices, batch_size=1e9)  # sums, and updates by almost nothing
        for i, params in enumerate(state):
            scratch.sgd(params, LR, len(range(i, len(X), len(devices))) * len(devices) or len(X))
    report = check_two(make_arrays, train_batch, batches)
    assert report.diagnosis[0].endswith(
        'batch 2, of 7 rows: the update of cpu(0) counts 0.875 times, cpu(1) counts 1.167 times.')
    assert 'with the same learning rate and divisor' in report.diagnosis[1]


def class_weights(y):
    return np.array([0.1, 1, 2, 5], ctx=y.ctx, dtype='float64')[y.astype('int32')]


def valid(y):
    return (y > 0).astype('float64')


@pytest.mark.parametrize('weigh', [class_weights, slow(valid)])
@pytest.mark.parametrize('divide_by', ['its own', 'all'])
def test_a_weighted_mean(weigh, divide_by, batches):
    """By the sum of the weights of each shard, or of the whole batch, as with class weights and padded sentences."""
    def train_batch(state, X, y, devices):
        net, trainer = state
        X_shards, y_shards = split_batch(X, y, devices)
        total = float(weigh(y).sum()) or 1
        with autograd.record():
            ls = []
            for X_shard, y_shard in zip(X_shards, y_shards):
                weights = weigh(y_shard)
                l = (LOSS(net(X_shard), y_shard) * weights).sum()
                ls.append(l / (weights.sum() + 1e-8) / len(devices) if divide_by == 'its own' else l / total)
        step_of_trainer(ls, net, trainer, X, devices, 1)
    report = check_two(make_network, train_batch, batches)
    assert report.ok is (divide_by == 'all'), report
    assert report.ok or UNKNOWN in report.diagnosis[0]


def step_with_clipping(state, X, y, devices, where, max_norm=0.5):
    """Clip by the norm of: the gradients of each device before the sum; all copies, or each device's, after the sum."""
    net, trainer = state
    take_gradients(net, X, y, devices)
    copies = [gradients(net, [device]) for device in devices]
    if where != 'before the sum':
        for arrays in zip(*copies):
            scratch.allreduce([*arrays])
    norms = [sum((array.as_in_ctx(devices[0]) ** 2).sum() for array in arrays) ** 0.5 for arrays in copies]
    if where == 'all copies':
        norms = [sum(norm ** 2 for norm in norms) ** 0.5] * len(norms)
    for arrays, norm in zip(copies, norms):
        for array in arrays:
            array *= np.minimum(max_norm / norm, 1).as_in_ctx(array.ctx)
    if where == 'before the sum':
        for arrays in zip(*copies):
            scratch.allreduce([*arrays])
    trainer.step(len(X))


@pytest.mark.parametrize('where, fault', [
    ('before the sum', UNKNOWN), ('all copies', 'times that of one device.Do: clip by the norm of'),
    ('each copy', '')])
@pytest.mark.parametrize('options', [{}, slow({'optimizer': 'adam'})])
def test_clipping(where, fault, options, batches):
    step = partial(step_with_clipping, where=where)
    report = check_two(partial(make_network, kvstore=None, **options), step, batches)
    assert report.ok is not fault and fault in ''.join(report.diagnosis), report


def labels_of_other_rows(state, X, y, devices):
    order = numpy.roll(numpy.arange(len(y)), len(devices) - 1)
    step_from_scratch(state, X, y[order], devices)


def rows_that_influence_each_other(state, X, y, devices):
    """Batch norm by hand, which the check cannot switch off."""
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        ls = [LOSS(network((X_shard - X_shard.mean(axis=0)) / (X_shard.var(axis=0) + 1) ** 0.5, params), y_shard)
              for X_shard, params, y_shard in zip(X_shards, state, y_shards)]
    update(ls, state, len(X))


@pytest.mark.parametrize('step', [labels_of_other_rows, rows_that_influence_each_other])
def test_other_causes_are_unknown(step, batches):
    report = check_two(make_arrays, step, batches)
    assert report.diagnosis[0].startswith('WRONG in') and UNKNOWN in report.diagnosis[0]
