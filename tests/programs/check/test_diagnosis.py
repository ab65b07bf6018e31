"""Mistakes beside the sum of the gradients."""
import re
import types
from functools import partial

import numpy
import pytest
from slow import slow
from steps_to_check import (
    COPIES_DIFFER,
    LOSS,
    LR,
    MOMENTUM,
    NO_SUM_OF_TWO,
    check_two,
    make_arrays,
    make_averages,
    make_momentum,
    make_network,
    network,
    step_from_scratch,
    step_with_trainer,
    take_gradients,
    update,
    with_dropout_and_batch_norm,
)

from gluon_mgpu import check_data_parallel
from gluon_mgpu.mxnet_setup.compat import autograd, gluon, mx, np, npx
from gluon_mgpu.parallel.split import split_batch
from gluon_mgpu.parallel.step import params_with_gradients, zero_grad


def test_a_mistake_beside_batch_norm_and_dropout(batches):
    report = check_two(partial(make_network, layers=with_dropout_and_batch_norm, kvstore=None),
                                 step_with_trainer, batches)
    assert re.search(NO_SUM_OF_TWO, report.diagnosis[0])


def own_parameters(devices):
    return [make_arrays([device])[0] for device in devices]


def copied_before_each_step(state, X, y, devices):
    """The values of the first device are used, whatever the others start with."""
    for params in state[1:]:
        for param, first in zip(params, state[0]):
            first.copyto(param)
    step_from_scratch(state, X, y, devices)


ALONE = 'Without the batches before, from the same parameters, this does not happen.'


def test_devices_that_start_with_their_own_parameters(batches):
    report = check_two(own_parameters, step_from_scratch, batches)
    assert not report.ok and report.diagnosis[0].startswith('WRONG: the devices start with different parameters')
    assert check_two(own_parameters, copied_before_each_step, batches).ok
    other = check_two(own_parameters, partial(step_from_scratch, mistake='averages'), batches)
    assert 'the update is 0.5 times that of one device' in other.diagnosis[0]


def test_a_trainer_whose_devices_start_with_their_own_parameters(batches):
    def make(devices):
        net, trainer = make_network(devices, update_on_kvstore=False)
        for device in devices:
            net(np.zeros((1, 6), ctx=device))
            net[0].weight.data(device)[:] = np.random.normal(size=(5, 6))
        return net, trainer
    report = check_two(make, step_with_trainer, batches)
    assert 'start with different parameters' in report.diagnosis[0]


@pytest.mark.parametrize('momentum_on, kept_in', [
    ('the first device', 'NumPy'), ('devices with rows', 'MXNet'), slow('the first device', 'MXNet'),
    slow('devices with rows', 'NumPy')])
def test_momentum_that_is_not_on_all_devices(momentum_on, kept_in, batches):
    """In arrays of MXNet, the velocities are compared as well."""
    first = momentum_on == 'the first device'

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
    if kept_in == 'MXNet':
        batch, devices = ('batch 1, of 8 rows', 'cpu(1)') if first else ('batch 4, of 1 row', 'cpu(1)')
        assert report.diagnosis[0] == COPIES_DIFFER.format(8, batch, devices).replace('in 4', f'in {4 if first else 8}')
    else:
        batch = 'batch 2, of 7 rows' if first else 'batch 4, of 1 row'
        assert f'{batch}: what the step keeps from the batches before, such as momentum or' in report.diagnosis[0]
        assert report.diagnosis[-1] == ALONE


def test_a_division_by_zero(batches):
    def train_batch(state, X, y, devices):
        step_from_scratch(state, X, y, devices, batch_size=max(len(X) - len(devices) + 1, 0) if len(X) < 3 else None)
        if len(X) < len(devices):
            for param in state[-1]:
                param[:] *= float('nan')
    report = check_two(make_arrays, train_batch, batches)
    assert 'batch 4, of 1 row: parameters become NaN or infinite' in report.diagnosis[0]


def test_a_step_that_keeps_values_elsewhere(batches):
    """A second training does not start as the first did."""
    velocities = {}

    def train_batch(state, X, y, devices):
        step_from_scratch(state, X, y, devices)
        for param in state[0]:
            velocities[param.shape] = 0.9 * velocities.get(param.shape, 0) - LR * param.grad.copy() / len(X)
            param[:] += 0.9 * velocities[param.shape]
    report = check_two(make_arrays, train_batch, batches)
    assert report.diagnosis[0].endswith('or it keeps values that make does not return.')


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


def test_a_gradient_that_is_lost_after_another_batch(batches):
    """As with arrays of gradients that a call before has replaced. The step has no momentum."""
    def train_batch(state, X, y, devices):
        state.before, lost = len(X), state.before == 7 and len(devices) > 1
        X_shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            ls = [LOSS(network(X_shard, params), y_shard) * (0 if lost and i == 0 else 1)
                  for i, (X_shard, y_shard, params) in enumerate(zip(X_shards, y_shards, state.params))]
        update(ls, state.params, len(X))
    report = check_two(lambda devices: types.SimpleNamespace(params=make_arrays(devices), before=0),
                       train_batch, batches)
    assert report.diagnosis[0].endswith('batch 3, of 8 rows: the gradient of cpu(0) counts 0 times.')
    assert report.diagnosis[3] == ALONE and 'momentum' not in str(report)


def step_with_limit(state, X, y, devices, write):
    """Keep the parameters small, after each update."""
    step_with_trainer(state, X, y, devices)
    for param in params_with_gradients(state[0]):
        if write == 'set_data':
            param.set_data(np.clip(param.list_data()[0], -0.3, 0.3))
        else:
            for array in param.list_data():
                array[:] = np.clip(array, -0.3, 0.3)


UNDOES = "batch 2, of 7 rows: the Trainer's key-value store updates its own copy of the parameters, and undoes"


@pytest.mark.parametrize('write, options, message', [
    ('list_data', {}, UNDOES),
    slow('list_data', {'optimizer': 'adam'}, UNDOES),
    slow('list_data', MOMENTUM, UNDOES),
    ('set_data', MOMENTUM, "WRONG: the Trainer's key-value store loses the state of the optimizer, as with param.set"),
    slow('set_data', {'optimizer': 'adam'}, "WRONG: the Trainer's key-value store loses the state of the optimizer"),
    ('set_data', {}, ''),
    slow('list_data', {'update_on_kvstore': False}, ''),
    ('list_data', {'update_on_kvstore': False, **MOMENTUM}, ''),
    slow('set_data', {'update_on_kvstore': False, 'optimizer': 'adam'}, ''),
    slow('list_data', {'update_on_kvstore': False, 'layers': with_dropout_and_batch_norm}, ''),
])
def test_a_step_that_writes_into_the_parameters_of_a_trainer(write, options, message, batches):
    report = check_two(partial(make_network, **options), partial(step_with_limit, write=write), batches)
    assert report.ok is not message, report
    if message:
        assert message in report.diagnosis[0]
        assert report.diagnosis[1].startswith('Do: make the Trainer with update_on_kvstore=False')


def test_a_mistake_beside_copies(batches):
    """The diagnosis is that of the parameters, although the copies differ as well."""
    def step(state, X, y, devices):
        step_from_scratch(state['params'], X, y, devices, 'misses the last device')
        for params, squares in zip(state['params'], state['averages']):
            for param, square in zip(params, squares):
                square[:] = param.grad ** 2  # no sum over the rows
    report = check_two(make_averages, step, batches)
    assert 'WRONG in 4 of 8 parameters' not in report.diagnosis[0]
    assert report.diagnosis[0].endswith('the gradient of cpu(1) counts 0 times.'), report


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
        zero_grad(net, devices[len(shards):])
        for gradient in net.bias.list_grad():
            gradient[:] = 0
        net.bias.grad(devices[0])[:] = 2.0 ** -24 * (1 if len(devices) > 1 else -1)
        trainer.step(len(X))
    X = numpy.arange(48 * 6).reshape(48, 6) % 7.0
    report = check_two(make, train_batch, [(X, numpy.zeros(48, 'int32'))])
    assert 'in its own dtype' in report.title
    if optimizer == 'sgd':
        assert report.ok, report
    else:
        assert not report.ok and report.diagnosis[0].startswith('NOT CHECKED: the devices equal each other'), report


@pytest.mark.slow
def test_the_optimizers_state_on_a_device_without_rows(batches):
    """With momentum, a device that skips a batch loses a part of its speed; with plain SGD, nothing."""
    def train_batch(state, X, y, devices):
        net, trainer = state
        step_with_trainer(state, X, y, devices)
        if isinstance(trainer.optimizer, mx.optimizer.Adam) and len(X) < len(devices):
            net[0].bias.data(devices[-1])[:] += 1
    report = check_two(partial(make_network, optimizer='adam'), train_batch, batches)
    assert report.diagnosis[0].startswith('WRONG: the state of the optimizer differs')


class CountsItsCalls(mx.optimizer.Optimizer):
    """An optimizer that a user wrote, with a step that gets shorter with each call."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.calls = 0

    def create_state(self, index, weight):
        return None

    def update(self, indices, weights, gradients, states):
        if not isinstance(weights, (list, tuple)):
            weights, gradients = [weights], [gradients]
        for weight, gradient in zip(weights, gradients):
            self.calls += 1
            weight[:] -= self.lr * self.rescale_grad / self.calls * gradient

    step = update  # for MXNet 2


class OwnNadam(mx.optimizer.Nadam):
    pass


def step_that_reads_its_optimizer(state, X, y, devices):
    assert state[1].optimizer.calls >= 0
    step_with_trainer(state, X, y, devices)


@pytest.mark.parametrize('name, step', [
    ('nadam', step_with_trainer), slow('ownnadam', step_with_trainer), ('lars', step_with_trainer),
    slow('sgld', step_with_trainer), ('countsitscalls', step_with_trainer),
    slow('countsitscalls', step_that_reads_its_optimizer)])
def test_optimizers_that_each_device_calls(name, step, batches, monkeypatch):
    """With updates on the key-value store, all are right, also those that a user wrote."""
    for kind in (CountsItsCalls, OwnNadam):
        monkeypatch.setitem(mx.optimizer.Optimizer.opt_registry, kind.__name__.lower(), kind)
    for on_kvstore in (False, None, True):
        report = check_two(partial(make_network, optimizer=name, update_on_kvstore=on_kvstore), step, batches)
        assert report.ok is (on_kvstore is not False), report
        if not on_kvstore and not report.ok:
            optimizer = type(mx.optimizer.create(name)).__name__
            assert report.diagnosis == [
                f'WRONG: {optimizer} counts its calls or draws random numbers, and with update_on_kvstore=False, each '
                'device calls it, so they drift apart.',
                'Do: leave update_on_kvstore out, so that the key-value store updates once; or take another optimizer.']


@pytest.mark.parametrize('on_kvstore', [False, None])
def test_a_step_without_zero_grad(on_kvstore, batches):
    """It is right except for fewer rows than devices, which the Trainer refuses, or its key-value store adds."""
    step = partial(step_with_trainer, mistake='a stale gradient')
    report = check_two(partial(make_network, update_on_kvstore=on_kvstore), step, batches)
    assert report.ok is (on_kvstore is False), report
    if report.ok:
        assert 'The step is right, except for batches of 1 row: k devices compute' in ' '.join(str(report).split())
        assert report.notes[0] == (
            'batches of 1 row are not checked, because the devices without rows have the gradients of the batch '
            'before: call zero_grad(net, devices[len(y):]) before trainer.step()')
    else:
        assert 'batch 4, of 1 row: the gradient of the batch before is added' in report.diagnosis[0]
        assert 'before the sum: zero_grad(net, devices[len(y):])' in report.diagnosis[1]


def test_layers_on_different_devices(batches):
    def make(devices):
        layers = [gluon.nn.Dense(4, in_units=units) for units in (6, 4)]
        for layer, device in zip(layers, (devices[0], devices[-1])):
            layer.initialize(ctx=device)
        return layers, [gluon.Trainer(layer.collect_params(), 'sgd') for layer in layers]

    def train_batch(state, X, y, devices):
        (first, second), trainers = state
        with autograd.record():
            l = LOSS(second(first(X.as_in_ctx(devices[0])).as_in_ctx(devices[-1])), y.as_in_ctx(devices[-1]))
        l.backward()
        for trainer in trainers:
            trainer.step(len(X))
    with pytest.raises(ValueError, match='every device needs its own copy of all parameters, so layers on different'):
        check_two(make, train_batch, batches)


def test_parameters_that_become_nan_on_one_device(batches):
    def train_batch(state, X, y, devices):
        step_from_scratch(state, X, y, devices)
        for params in state if len(X) == 7 else []:
            params[0][:] *= float('nan')
    report = check_two(make_arrays, train_batch, batches)
    assert 'batch 2, of 7 rows: parameters become NaN or infinite, on one device as well.' in report.diagnosis[0]


def counting(state, X, y, devices, update):
    """Add gradients up; `update` says whether to take a step, from the calls and shards so far."""
    net, trainer = state['state']
    ls = take_gradients(net, X, y, devices)
    state['calls'] += 1
    state['shards'] += len(ls)
    update(state, net, trainer)


def by_shards(state, net, trainer):
    if state['shards'] >= 2:
        trainer.step(24)
        state['shards'] = 0


def broken(state, net, trainer):
    trainer.step(24)
    if state['calls'] > 1:
        trainer.no_such_method()


def make_counting(devices, **options):
    return {'state': make_network(devices, **options), 'calls': 0, 'shards': 0}


def test_a_step_that_counts_shards_instead_of_batches(batches):
    report = check_data_parallel(make_counting, partial(counting, update=by_shards), batches)
    assert re.search('after batch 1, of 12 rows: 3 devices update their parameters after this batch, and one device '
                     'does not.$', report.diagnosis[0]), report


def test_an_error_in_a_later_batch(batches):
    """It was taken for a batch that the step need not take."""
    with pytest.raises(AttributeError, match='no_such_method'):
        check_data_parallel(make_counting, partial(counting, update=broken), batches)


@pytest.mark.parametrize('optimizer, name', [('sgd', 'lr of SGD'), ('adam', 'lr of Adam')])
def test_a_learning_rate_for_the_number_of_devices(optimizer, name, batches):
    report = check_data_parallel(lambda devices: make_network(devices, optimizer=optimizer, settings={
        'learning_rate': 0.1 * len(devices)}), step_with_trainer, batches)
    assert report.diagnosis[0] == f'WRONG: the setting {name} is 0.3 on 3 devices, and 0.1 on one.'


def noisy(state, X, y, devices):
    net, trainer = state
    take_gradients(net, X, y, devices)
    trainer.allreduce_grads()
    for param in params_with_gradients(net):
        for gradient in param.list_grad():
            gradient += 0.01 * np.random.normal(size=gradient.shape, ctx=gradient.ctx)
    trainer.update(len(X))


def test_noise_after_the_sum(batches):
    report = check_data_parallel(partial(make_network, update_on_kvstore=False), noisy, batches)
    assert report.diagnosis[0].startswith('NOT CHECKED: the step draws random numbers'), report
