"""Training steps for the tests of the check: right ones, and some with mistakes."""
import types
from functools import partial

import numpy
import oracle
import pytest
from slow import slow

from gluon_mgpu import check_data_parallel, concise, scratch
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, init, mx, np
from gluon_mgpu.parallel.split import split_batch
from gluon_mgpu.parallel.step import gradients, params_with_gradients, prepare_idle_devices

LR = 0.1
check_two = partial(check_data_parallel, devices=[mx.cpu(0), mx.cpu(1)])  # half of the time of three
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


def some_slow(names, quick):
    """Return the names for `parametrize`; only the quick ones run without --all."""
    assert {*quick} <= {*names}
    return [name if name in quick else slow(name) for name in names]


def make_arrays(devices):
    """Return the parameters of a small network on each device, as in D2L 13.5."""
    params = [np.random.normal(scale=0.5, size=shape) for shape in ((6, 5), (5,), (5, 4), (4,))]
    return [[copy_with_gradient(param, device) for param in params] for device in devices]


def copy_with_gradient(param, device, grad_req='write'):
    copy = param.copyto(device)
    copy.attach_grad(grad_req)
    return copy


def network(X, params):
    W1, b1, W2, b2 = params
    return np.dot(np.tanh(np.dot(X, W1) + b1), W2) + b2


def update(ls, device_params, rows, lr=LR):
    """Take the rest of the step: backward, the sum over the devices, SGD."""
    for l in ls:
        l.backward()
    for params in device_params[len(ls):]:
        for param in params:
            param.grad[:] = 0
    for arrays in zip(*device_params):
        scratch.allreduce([array.grad for array in arrays])
    for params in device_params:
        scratch.sgd(params, lr, rows)


def step_of_trainer(ls, net, trainer, X, devices, divisor):
    """Take the rest of the step with a Trainer."""
    for l in ls:
        l.backward()
    prepare_idle_devices(net, X, devices)
    trainer.step(divisor)


def step_from_scratch(device_params, X, y, devices, mistake='', batch_size=None):
    """Take the step of D2L 13.5.6, possibly with a mistake."""
    k, rows = len(devices), len(X)
    if mistake == 'skips a small batch' and rows < k:
        return
    if mistake == 'drops the rows that remain':
        X, y = X[:max(rows // k * k, 1)], y[:max(rows // k * k, 1)]
    X_shards, y_shards = split_batch(X, y, devices)
    if mistake in ('overlapping shards', 'a mean of means, the last of more rows') and k > 1:
        overlap = int(mistake == 'overlapping shards')
        X_shards, y_shards = ([array[:rows // 2 + overlap], array[rows // 2 - overlap:].as_in_ctx(devices[1])]
                              for array in (X, y))
    if mistake == 'the first shard on all devices':
        X_shards, y_shards = ([shards[0].as_in_ctx(device) for device in devices] for shards in (X_shards, y_shards))
    with autograd.record():
        ls = [LOSS(network(X_shard, params), y_shard)
              for X_shard, y_shard, params in zip(X_shards, y_shards, device_params)]
        if mistake.startswith('a mean of means'):
            ls = [l.mean() / len(ls) * rows for l in ls]
    for l in ls:
        l.backward()
    if mistake != 'a stale gradient':
        for params in device_params[len(X_shards):]:
            for param in params:
                param.grad[:] = 0
    for i in range(len(device_params[0])):
        grads = [params[i].grad for params in device_params]
        if mistake == 'averages':
            scratch.allreduce(grads)
            for grad in grads:
                grad /= k
        elif mistake == 'does not sum the biases':
            if i % 2 == 0:
                scratch.allreduce(grads)
        elif mistake == 'sums into a new array':
            total = sum(grad.as_in_ctx(devices[0]) for grad in grads)
            grads = [total.as_in_ctx(device) for device in devices]
        elif mistake == 'sums on the first device only':
            for grad in grads[1:]:
                grads[0] += grad.as_in_ctx(devices[0])
        elif mistake == 'misses the last device':
            scratch.allreduce(grads[:max(k - 1, 1)])
            grads[0].copyto(grads[-1])
        else:
            scratch.allreduce(grads)
    divisor = len(X_shards[0]) if mistake == 'divides by the rows of a shard' else rows
    for params in device_params[:max(k - 1, 1)] if mistake == 'updates all but the last' else device_params:
        scratch.sgd(params, LR, batch_size or divisor)


def make_network(devices, layers=lambda: [gluon.nn.Dense(4)], optimizer='sgd', settings=(), **options):
    """Return a network and a Trainer, as in D2L 13.6."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(5, activation='tanh'), *layers())
    net.initialize(init=init.Normal(0.5), ctx=devices)
    return net, gluon.Trainer(params_with_gradients(net), optimizer, {'learning_rate': LR, **dict(settings)}, **options)


def take_gradients(net, X, y, devices):
    """Compute the gradients of a network on all devices; return the losses of the shards."""
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        ls = [LOSS(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
    autograd.backward(ls)
    prepare_idle_devices(net, X, devices)
    return ls


def step_with_trainer(state, X, y, devices, mistake=''):
    """Take the step of D2L 13.6.3, possibly with a mistake."""
    net, trainer = state
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        ls = [LOSS(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
        if mistake == 'means':
            ls = [l.mean() for l in ls]
    for l in ls:
        l.backward()
    if mistake == 'skips stale gradients':
        for gradient in gradients(net, devices[len(X_shards):]):
            gradient[:] = 0
    elif mistake != 'a stale gradient':
        prepare_idle_devices(net, X, devices)
    if mistake == 'clips each gradient':
        for gradient in gradients(net, devices):
            gradient[:] = np.clip(gradient, -0.1, 0.1)
    trainer.step(1 if mistake == 'means' else len(X), ignore_stale_grad=mistake == 'skips stale gradients')


def make_lenet(devices):
    params = [np.random.normal(scale=0.1, size=shape) for shape in oracle.LENET_SHAPES]
    return [scratch.get_params(params, device) for device in devices]


def step_of_lenet(state, X, y, devices):
    scratch.train_batch(X, y, state, devices, 0.2)


def momentum_from_scratch(state, X, y, devices):
    """The optimizer's own arrays are in the state, which is an object."""
    before = [[param.copy() for param in params] for params in state.device_params]
    step_from_scratch(state.device_params, X, y, devices)
    for params, old, velocities in zip(state.device_params, before, state.velocities):
        for param, start, velocity in zip(params, old, velocities):
            velocity[:] = 0.9 * velocity + param - start
            param[:] = start + velocity


def make_momentum(devices):
    device_params = make_arrays(devices)
    return types.SimpleNamespace(device_params=device_params, velocities=[
        [np.zeros(param.shape, ctx=param.ctx) for param in params] for params in device_params])


def make_accumulating(devices):
    return {'params': [[copy_with_gradient(param, device, 'add') for param in params]
                       for params, device in zip(make_arrays(devices), devices)]}


def concise_step(state, X, y, devices):
    net, loss, trainer = state
    concise.train_batch(X, y, net, loss, trainer, devices)


def with_dropout_and_batch_norm():
    return [gluon.nn.BatchNorm(), gluon.nn.Dropout(0.5), gluon.nn.Dense(4)]


COPIES_DIFFER = ('WRONG in 4 of {} parameters after {}: copies without gradients, such as a moving average, a target '
                 'network or momentum, differ from those of one device on {}.')
MOMENTUM = {'settings': {'momentum': 0.9}}


def make_averages(devices):
    params = make_arrays(devices)
    return {'params': params, 'averages': [[param.copy() for param in copies] for copies in params]}


def late_error(device):
    """Return an array whose computation fails in MXNet's engine."""
    return np.random.normal(np.zeros(2, ctx=device), -np.ones(2, ctx=device))


ONLY_1 = pytest.mark.skipif(MXNET_MAJOR > 1, reason="Gluon's networks and losses take no mx.nd")


def batches_of_six_numbers():
    rng = numpy.random.default_rng(0)
    return [(rng.normal(size=(16, 6)).astype('float32'), rng.integers(0, 4, 16))]


def wrong_step(state, X, y, devices):
    step_from_scratch(state, X, y, devices, 'averages')


def noisy_step(state, X, y, devices):
    step_from_scratch(state, X, y, devices)
    for params in state:
        params[0][:] += np.random.normal(size=params[0].shape)


def make_nd(devices):
    """Return arrays of mx.nd with gradients, and a network, as before MXNet had NumPy's semantics."""
    params = [mx.nd.random.normal(scale=0.5, shape=shape) for shape in ((6, 4), (4,))]
    return [[copy_with_gradient(param, device) for param in params] for device in devices]


def step_of_nd(device_params, X, y, devices, mistake=False):
    n, k = X.shape[0], min(X.shape[0], len(devices))
    rows = [n * i // k for i in range(k + 1)]
    with autograd.record():
        ls = [LOSS(mx.nd.broadcast_add(mx.nd.dot(X[i:j].as_in_context(device), W), b), y[i:j].as_in_context(device))
              for i, j, device, (W, b) in zip(rows, rows[1:], devices, device_params)]
    for l in ls:
        l.backward()
    for copies in zip(*device_params):
        total = mx.nd.add_n(*[copy.grad.as_in_context(devices[0]) for copy in copies[:k]])
        for copy in copies:
            total.copyto(copy.grad)
            copy[:] = copy - LR * copy.grad / (n * (len(devices) if mistake else 1))
