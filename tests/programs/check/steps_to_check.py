"""Training steps for the tests of the check: right ones, whose options make them wrong."""
import types
from functools import partial

import numpy
import oracle
import pytest
from equals_one import sequential, take_gradients
from slow import slow

from gluon_mgpu import check_data_parallel, concise, scratch
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, init, mx, np
from gluon_mgpu.parallel.split import split_batch
from gluon_mgpu.parallel.step import params_with_gradients, prepare_idle_devices

LR = 0.1
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()
MOMENTUM = {'settings': {'momentum': 0.9}}
TWICE = 'the update is 2 times that of one device'
HALF = 'the update is 0.5 times that of one device'
ONLY_1 = pytest.mark.skipif(MXNET_MAJOR > 1, reason='networks of mx.nd, and methods of ParameterDict')
check_two = partial(check_data_parallel, devices=[mx.cpu(0), mx.cpu(1)])  # half of the time of three


def some_slow(names, *slow_ones):
    """Return the names for `parametrize`; the slow ones run only with --all."""
    assert {*slow_ones} <= {*names}
    return [slow(name) if name in slow_ones else name for name in names]


def batches_of_six_numbers(seed=0):
    """Return batches of random rows with 6 numbers, of 4 classes."""
    rng = numpy.random.default_rng(seed)
    return [(rng.normal(size=(16, 6)).astype('float32'), rng.integers(0, 4, 16).astype('int32')) for _ in range(3)]


# --- arrays, as in D2L 13.5 ---

def make_arrays(devices, grad_req='write', dtype=None):
    """Return the parameters of a small network on each device."""
    params = [np.random.normal(scale=0.5, size=shape, dtype=dtype) for shape in ((6, 5), (5,), (5, 4), (4,))]
    return [[copy_with_gradient(param, device, grad_req) for param in params] for device in devices]


def copy_with_gradient(param, device, grad_req='write'):
    copy = param.copyto(device)
    copy.attach_grad(grad_req)
    return copy


def network(X, params):
    W1, b1, W2, b2 = params
    return np.dot(np.tanh(np.dot(X, W1) + b1), W2) + b2


def row_losses(X, y, params):
    return LOSS(network(X, params), y)


def step_from_scratch(device_params, X, y, devices, losses=row_losses, split=split_batch, zeroed=lambda idle: idle,
                      allreduce=scratch.allreduce, divisor=lambda rows, k: rows):
    """Take the step of D2L 13.5.6."""
    idle = backward(device_params, X, y, devices, losses, split)
    set_to_zero(zeroed(idle))
    update(device_params, divisor(len(X), len(devices)), allreduce)


def backward(device_params, X, y, devices, losses=row_losses, split=split_batch):
    """Compute the gradients on each device; return the parameters of devices without rows."""
    with autograd.record():
        ls = [losses(*shard) for shard in zip(*split(X, y, devices), device_params)]
    for l in ls:
        l.backward()
    return device_params[len(ls):]


def set_to_zero(device_params):
    for params in device_params:
        for param in params:
            param.grad[:] = 0


def update(device_params, divisor, allreduce=scratch.allreduce):
    for copies in zip(*device_params):
        allreduce([copy.grad for copy in copies])
    for params in device_params:
        scratch.sgd(params, LR, divisor)


def average(grads):
    scratch.allreduce(grads)
    for grad in grads:
        grad /= len(grads)


def without_the_last(grads):
    scratch.allreduce(grads[:-1] or grads)
    grads[0].copyto(grads[-1])


wrong_step = partial(step_from_scratch, allreduce=average)


def noisy_step(state, X, y, devices):
    step_from_scratch(state, X, y, devices)
    for params in state:
        params[0][:] += np.random.normal(size=params[0].shape)


def make_lenet(devices):
    params = [np.random.normal(scale=0.1, size=shape) for shape in oracle.LENET_SHAPES]
    return [scratch.get_params(params, device) for device in devices]


def step_of_lenet(state, X, y, devices):
    scratch.train_batch(X, y, state, devices, 0.2)


# --- arrays without gradients ---

COPIES_DIFFER = ('WRONG in 4 of {} parameters after {}: copies without gradients, such as a moving average, a target '
                 'network or momentum, differ from those of one device on {}.')


def make_averages(devices):
    params = make_arrays(devices)
    return {'params': params, 'averages': [[param.copy() for param in copies] for copies in params]}


def make_momentum(devices, kept=lambda velocity: velocity):
    """Return parameters and their velocities, in an object."""
    device_params = make_arrays(devices)
    return types.SimpleNamespace(device_params=device_params, kept=kept, velocities=[
        [kept(np.zeros(param.shape, ctx=param.ctx)) for param in params] for params in device_params])


def momentum_from_scratch(state, X, y, devices, updated=lambda rows: None):
    """Take a step; only the first `updated` devices use momentum."""
    before = [[param.copy() for param in params] for params in state.device_params]
    step_from_scratch(state.device_params, X, y, devices)
    for params, old, velocities in [*zip(state.device_params, before, state.velocities)][:updated(len(X))]:
        for param, start, velocity in zip(params, old, velocities):
            velocity[:] = 0.9 * velocity + state.kept(param - start)
            param[:] = start + np.array(velocity, dtype=param.dtype)


# --- networks and Trainers, as in D2L 13.6 ---

def with_trainer(net, devices, optimizer='sgd', settings=(), initializer=None, **options):
    """Initialize a network; return it and its Trainer."""
    net.initialize(initializer or init.Normal(0.5), ctx=devices)
    return net, gluon.Trainer(params_with_gradients(net), optimizer, {'learning_rate': LR, **dict(settings)}, **options)


def make_network(devices, layers=lambda: [gluon.nn.Dense(4)], **options):
    return with_trainer(sequential(gluon.nn.Dense(5, activation='tanh'), *layers()), devices, **options)


def with_dropout_and_batch_norm():
    return [gluon.nn.BatchNorm(), gluon.nn.Dropout(0.5), gluon.nn.Dense(4)]


def step_with_trainer(state, X, y, devices, losses=LOSS, prepared=lambda net: [net], divisor=len):
    """Take the step of D2L 13.6.3; gradients of devices without rows become zero in networks that are `prepared`."""
    net, trainer = state
    take_gradients(lambda X, y: losses(net(X), y), prepared(net), X, y, devices)
    trainer.step(divisor(X))


step_of_means = partial(step_with_trainer, losses=lambda y_hat, y: LOSS(y_hat, y).mean(), divisor=lambda X: 1)


def take_joint_gradients(net, X, y, devices):
    """Compute the gradients of a `SyncBatchNorm`, or of a network with its methods."""
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        ls = [LOSS(y_hat, y_shard) for y_hat, y_shard in zip(net.forward(X_shards), y_shards)]
    net.backward(ls)
    prepare_idle_devices(net, X, devices)


def concise_step(state, X, y, devices):
    net, loss, trainer = state
    concise.train_batch(X, y, net, loss, trainer, devices)


def step_of_several(state, X, y, devices):
    for net_and_trainer in state:
        step_with_trainer(net_and_trainer, X, y, devices)


def late_error(device):
    """Return an array whose computation fails in MXNet's engine."""
    return np.random.normal(np.zeros(2, ctx=device), -np.ones(2, ctx=device))
