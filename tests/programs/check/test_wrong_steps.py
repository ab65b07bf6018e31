"""Wrong steps, and what the check says about each."""
import types
from functools import partial

import numpy
import pytest
from equals_one import take_gradients
from slow import slow
from steps_to_check import (
    HALF,
    LOSS,
    MOMENTUM,
    TWICE,
    average,
    backward,
    check_two,
    copy_with_gradient,
    make_arrays,
    make_averages,
    make_momentum,
    make_network,
    momentum_from_scratch,
    network,
    row_losses,
    set_to_zero,
    some_slow,
    step_from_scratch,
    step_of_means,
    step_with_trainer,
    take_joint_gradients,
    update,
    with_dropout_and_batch_norm,
    with_trainer,
    without_the_last,
    wrong_step,
)

from gluon_mgpu import check_data_parallel, scratch
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, gluon, mx, np
from gluon_mgpu.parallel.split import split_batch
from gluon_mgpu.parallel.step import gradients, params_with_gradients
from gluon_mgpu.parallel.sync_batch_norm.synchronized import SyncBatchNorm

NO_SUM = 'batch 1, of 8 rows: the sum of the gradients does not reach cpu(0), cpu(1).'
MEAN_OF_MEANS = 'batch 2, of 7 rows: each device has the same weight whatever its rows, a mean of means'
ONCE = 'each row counts once, to three digits, but something else differs'
STALE = 'batch 4, of 1 row: the gradient of the batch before is added'
OF_OPTIMIZER = "WRONG: the optimizer's settings or state differ"
RANDOM = 'NOT CHECKED: the step draws random numbers'
UNKNOWN = 'The cause is unknown'


def no_sum(grads):
    pass


def sum_on_the_first_device_only(grads):
    for grad in grads[1:]:
        grads[0] += grad.as_in_ctx(grads[0].ctx)


def sum_weights_only(grads):
    if grads[0].ndim > 1:
        scratch.allreduce(grads)


def sum_for_all_but_the_last(grads):
    scratch.allreduce(grads)
    for grad in grads[1:]:
        grad[:] = 0


def halves(X, y, devices, overlap=0):
    """Split in two, the first of fewer rows."""
    if len(devices) == 1:
        return split_batch(X, y, devices)
    middle = len(X) // 2
    return [[array[:middle + overlap], array[middle - overlap:].as_in_ctx(devices[1])] for array in (X, y)]


def first_shard_everywhere(X, y, devices):
    return [[shards[0].as_in_ctx(device) for device in devices] for shards in split_batch(X, y, devices)]


def even_part(X, y, devices):
    kept = max(len(X) // len(devices) * len(devices), 1)
    return split_batch(X[:kept], y[:kept], devices)


def no_small_batch(X, y, devices):
    return split_batch(X, y, devices) if len(X) >= len(devices) else [[], []]


def labels_of_other_rows(X, y, devices):
    return split_batch(X, y[numpy.roll(numpy.arange(len(y)), len(devices) - 1)], devices)


def mean(X, y, params):
    return row_losses(X, y, params).mean()


def over_devices(rows, k):
    return min(rows, k)


def by_own_statistics(X, y, params):
    """Batch norm by hand, which the check cannot switch off."""
    return row_losses((X - X.mean(axis=0)) / (X.var(axis=0) + 1) ** 0.5, y, params)


def with_weight_decay(X, y, params):
    return row_losses(X, y, params).sum() + 0.1 * (params[0] ** 2).sum()


def enlarged(factor):
    return lambda rows, k: rows / (factor if k > 1 else 1)


FROM_SCRATCH = {  # options of the step, and words of the diagnosis
    'averages': ({'allreduce': average}, HALF),
    'a mean of means, the last of more rows': ({'losses': mean, 'divisor': over_devices, 'split': halves},
                                               MEAN_OF_MEANS),
    'overlapping shards': ({'split': partial(halves, overlap=1)},
                           'batch 1, of 8 rows: row 4 counts 2 times, row 5 counts 2 times'),
    'skips a small batch': ({'split': no_small_batch}, 'batch 4, of 1 row: no device is updated'),
    'a stale gradient': ({'zeroed': lambda idle: []}, STALE),
    'no sum': ({'allreduce': no_sum}, NO_SUM),
    'sums on the first device only': ({'allreduce': sum_on_the_first_device_only},
                                      'the sum of the gradients does not reach cpu(1).'),
    'does not sum the biases': ({'allreduce': sum_weights_only}, 'WRONG in 2 of 4 parameters after ' + NO_SUM),
    'misses the last device': ({'allreduce': without_the_last},
                               'batch 1, of 8 rows: the gradient of cpu(1) counts 0 times'),
    'the first shard on all devices': ({'split': first_shard_everywhere},
                                       'the gradient of cpu(0) counts 2 times, cpu(1) counts 0 times'),
    'drops the rows that remain': ({'split': even_part}, 'batch 2, of 7 rows: row 7 counts 0 times'),
    'updates all but the last': ({'allreduce': sum_for_all_but_the_last},
                                 'batch 1, of 8 rows: the update of cpu(1) counts 0 times.'),
    'counts a little more': ({'divisor': enlarged(1.002)}, 'the update is 1.002 times that of one device'),
    'counts very little more': ({'divisor': enlarged(1.0005)}, 'cpu(0): 1.0005, '),
    'weight decay on each device': ({'losses': with_weight_decay}, ONCE),
    'labels of other rows': ({'split': labels_of_other_rows}, UNKNOWN),
    'rows that influence each other': ({'losses': by_own_statistics}, UNKNOWN),
    'noise': ({'losses': lambda X, *others: row_losses(X * np.random.normal(size=(1, 6)), *others)}, RANDOM),
    'a division by zero': ({'losses': lambda X, *others: row_losses(X, *others) / (len(X) > 1)},
                           'batch 4, of 1 row: parameters become NaN or infinite.'),
}


@pytest.mark.parametrize('mistake', some_slow(
    FROM_SCRATCH, 'sums on the first device only', 'does not sum the biases', 'the first shard on all devices',
    'drops the rows that remain', 'updates all but the last', 'counts a little more'))
def test_mistakes_from_scratch(mistake, batches):
    options, words = FROM_SCRATCH[mistake]
    report = check_two(make_arrays, partial(step_from_scratch, **options), batches)
    assert not report.ok and words in '\n'.join(report.diagnosis), report


def test_only_the_last_device_without_rows_adds_nothing(batches):
    """Seen in a batch of one row, after which two devices have none."""
    report = check_data_parallel(make_arrays, partial(step_from_scratch, zeroed=lambda idle: idle[-1:]), batches)
    assert 'batch 6, of 1 row: the gradient of the batch before is added' in report.diagnosis[0], report


def skips_stale_gradients(state, X, y, devices):
    net, trainer = state
    take_gradients(lambda X, y: LOSS(net(X), y), [], X, y, devices)
    for gradient in gradients(net, devices[len(X):]):
        gradient[:] = 0
    trainer.step(len(X), ignore_stale_grad=True)


@pytest.mark.parametrize('step, options, words', [
    (step_with_trainer, {'kvstore': None}, NO_SUM), (step_of_means, {}, TWICE),
    (skips_stale_gradients, {'update_on_kvstore': False}, 'batch 4, of 1 row: the update of cpu(1) counts 0 times.')])
def test_mistakes_with_a_trainer(step, options, words, batches):
    report = check_two(partial(make_network, layers=with_dropout_and_batch_norm, **options), step, batches)
    assert not report.ok and words in report.diagnosis[0], report


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
    assert HALF in check_two(own_parameters, wrong_step, batches).diagnosis[0]


@pytest.mark.parametrize('updated', [len, slow(lambda rows: 1)])
@pytest.mark.parametrize('kept, fault', [
    (lambda velocity: velocity.asnumpy().astype('float64'), ONCE), (lambda velocity: velocity, 'copies without grad')])
def test_momentum_that_is_not_on_all_devices(kept, fault, updated, batches):
    """It is on the devices with rows, or on the first. In arrays of MXNet, the velocities are compared as well."""
    report = check_two(partial(make_momentum, kept=kept), partial(
        momentum_from_scratch, updated=lambda rows: updated(range(rows))), batches)
    assert fault in report.diagnosis[0] and 'momentum' in ' '.join(report.diagnosis), report


def test_a_mistake_beside_copies(batches):
    """The diagnosis is that of the parameters, although the copies differ as well."""
    def step(state, X, y, devices):
        step_from_scratch(state['params'], X, y, devices, allreduce=without_the_last)
        for params, squares in zip(state['params'], state['averages']):
            for param, square in zip(params, squares):
                square[:] = param.grad ** 2  # no sum over the rows
    report = check_two(make_averages, step, batches)
    assert report.diagnosis[0].endswith('the gradient of cpu(1) counts 0 times.'), report


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
    ('set_data', MOMENTUM, OF_OPTIMIZER), slow('set_data', {}, ''),
    slow('list_data', {'update_on_kvstore': False}, ''), ('list_data', {'update_on_kvstore': False, **MOMENTUM}, '')])
def test_a_step_that_writes_into_the_parameters_of_a_trainer(write, options, message, batches):
    report = check_two(partial(make_network, **options), partial(step_with_limit, write=write), batches)
    assert report.ok is not message and message in ''.join(report.diagnosis), report


@pytest.mark.parametrize('optimizer', ['adam', 'sgd'])
def test_an_optimizer_that_enlarges_rounding_errors(optimizer):
    """Several devices and one round a gradient of 0 to opposite sides; all others are sums of integers, and exact."""
    def train_batch(state, X, y, devices):
        net, trainer = state
        take_gradients(lambda X, y: net(X).sum(), [net], X.astype('float32'), y, devices)
        for i, gradient in enumerate(net.bias.list_grad()):
            gradient[:] = (i == 0) * 2.0 ** -24 * (1 if len(devices) > 1 else -1)
        trainer.step(len(X))
    X = numpy.arange(48 * 6).reshape(48, 6) % 7.0
    report = check_two(lambda devices: with_trainer(gluon.nn.Dense(4), devices, optimizer), train_batch,
                       [(X, numpy.zeros(48, 'int32'))])
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
            assert report.diagnosis[0].startswith(OF_OPTIMIZER)
            assert 'an optimizer that counts its calls or draws random numbers drifts apart' in report.diagnosis[1]


@pytest.mark.parametrize('optimizer, settings', [
    ('sgd', lambda devices: {'learning_rate': 0.1 * len(devices)}),
    pytest.param('lars', lambda devices: {'momentum': 0.9, 'lr_scheduler': mx.lr_scheduler.FactorScheduler(
        2, 0.5, base_lr=0.1)}, marks=pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 corrects nothing'))])
def test_settings_that_differ_from_those_of_one_device(optimizer, settings, batches):
    """LARS corrects its momentum once for each parameter and device when the rate changes."""
    report = check_data_parallel(lambda devices: make_network(
        devices, optimizer=optimizer, settings=settings(devices), update_on_kvstore=False), step_with_trainer, batches)
    assert report.diagnosis[0].startswith(OF_OPTIMIZER), report


@pytest.mark.parametrize('on_kvstore', [False, None])
def test_a_step_that_leaves_old_gradients(on_kvstore, batches):
    """It is right except for fewer rows than devices, which the Trainer refuses, or its key-value store adds."""
    step = partial(step_with_trainer, prepared=lambda net: [])
    report = check_two(partial(make_network, update_on_kvstore=on_kvstore), step, batches)
    assert report.ok is (on_kvstore is False), report
    if report.ok:
        assert 'because the step raises UserWarning (Gradient of Parameter' in report.notes[0]
    else:
        assert STALE in report.diagnosis[0]
        assert 'before the sum: prepare_idle_devices(net, X, devices)' in report.diagnosis[1]


@pytest.mark.parametrize('rows, masked', [
    (lambda i: i // 2 % 2, False), (lambda i: i * (i % 8 < 5), False), (lambda i: i, True), (lambda i: 0 * i, False)],
    ids=['two kinds', 'padded', 'masked', 'alike'])
def test_rows_that_change_nothing(rows, masked, batches):
    """They, or their neighbors, add as much or nothing to the update: another row is taken for the diagnosis."""
    X, y = (numpy.concatenate(arrays)[rows(numpy.arange(48))] for arrays in zip(*batches))

    def losses(X, y, params):
        return row_losses(X, y, params) * (y > (2 if masked else -1)).astype('float64')
    report = check_two(make_arrays, partial(step_from_scratch, losses=losses, divisor=lambda rows, k: rows / k),
                       [(X, y)])
    assert f'batch 1, of 8 rows: {TWICE}' in report.diagnosis[0], report


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
    rng = numpy.random.default_rng(seed)
    report = check_two(make, partial(step_from_scratch, losses=center_loss),
                       [(rng.normal(size=(48, 6)), rng.integers(0, 4, 48))])
    assert UNKNOWN in report.diagnosis[0], report


def test_a_mistake_beside_synchronized_batch_norm(batches):
    """There is no note that each device normalizes by its own rows."""
    def make(devices):
        net, trainer = make_network(devices, layers=with_dropout_and_batch_norm)
        return SyncBatchNorm(net), trainer

    def step(state, X, y, devices):
        net, trainer = state
        take_joint_gradients(net, X, y, devices)
        trainer.step(len(X) / len(devices))
    report = check_two(make, step, batches)
    assert TWICE in report.diagnosis[0], report
    assert not any('batch norm' in note for note in report.notes)


@pytest.mark.parametrize('allreduce', [scratch.allreduce, no_sum])
@pytest.mark.parametrize('every, found_in', [(2, 'batch 2, of 7 rows'), slow(3, 'batch 3, of 8 rows')])
def test_a_step_that_updates_after_several_batches(every, found_in, allreduce, batches):
    def make(devices):
        return types.SimpleNamespace(rows=0, batches=0, params=make_arrays(devices, 'add'))

    def train_batch(state, X, y, devices):
        backward(state.params, X, y, devices)
        state.rows, state.batches = state.rows + len(X), state.batches + 1
        if state.batches % every == 0:
            update(state.params, state.rows, allreduce)
            set_to_zero(state.params)
            state.rows = 0
    report = check_two(make, train_batch, batches)
    assert report.ok is (allreduce is not no_sum), report
    assert report.ok or f'{found_in}: the sum of the gradients does not reach' in report.diagnosis[0]


def test_each_device_divides_by_its_own_rows(batches):
    """After the sum, times the devices, so that even batches are right; a device without rows divides by all rows."""
    def train_batch(state, X, y, devices):
        step_from_scratch(state, X, y, devices, divisor=lambda rows, k: 1e9)  # sums, and updates by almost nothing
        for i, params in enumerate(state):
            scratch.sgd(params, 0.1, len(range(i, len(X), len(devices))) * len(devices) or len(X))
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
        total = float(weigh(y).sum()) or 1

        def losses(y_hat, y):
            weights = weigh(y)
            l = (LOSS(y_hat, y) * weights).sum()
            return l / (weights.sum() + 1e-8) / len(devices) if divide_by == 'its own' else l / total
        step_with_trainer(state, X, y, devices, losses, divisor=lambda X: 1)
    report = check_two(make_network, train_batch, batches)
    assert report.ok is (divide_by == 'all'), report
    assert report.ok or UNKNOWN in report.diagnosis[0]


def sum_gradients(net, devices):
    for param in params_with_gradients(net):
        scratch.allreduce(param.list_grad())


def clip_all_copies(net, devices):
    arrays = gradients(net, devices)
    norm = sum((array ** 2).sum().item() for array in arrays) ** 0.5
    for array in arrays:
        array *= min(0.5 / norm, 1)


def clip_each_device(net, devices):
    for device in devices:
        clip_all_copies(net, [device])


@pytest.mark.parametrize('changes, fault', [
    ((clip_each_device, sum_gradients), UNKNOWN),
    ((sum_gradients, clip_all_copies), 'times that of one device.Do: clip by the norm of'),
    ((sum_gradients, clip_each_device), '')], ids=['before the sum', 'all copies', 'each copy'])
@pytest.mark.parametrize('options', [{}, slow({'optimizer': 'adam'})])
def test_clipping(changes, fault, options, batches):
    def step(state, X, y, devices):
        net, trainer = state
        take_gradients(lambda X, y: LOSS(net(X), y), [net], X, y, devices)
        for change in changes:
            change(net, devices)
        trainer.step(len(X))
    make = partial(make_network, layers=with_dropout_and_batch_norm, kvstore=None, **options)
    report = check_two(make, step, batches)
    assert report.ok is not fault and fault in ''.join(report.diagnosis), report
