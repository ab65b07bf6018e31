"""check_data_parallel: names each planted mistake, and finds none in steps that are right."""
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import types
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy
import oracle
import pytest
from bfloat16 import needs_bfloat16
from movable import moving
from slow import slow

import gluon_mgpu as d2l
from gluon_mgpu import check_data_parallel, concise, scratch
from gluon_mgpu.check import Report, __main__ as command_line, trials
from gluon_mgpu.check.report import NOT_CHECKED
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, init, mx, np, npx
from gluon_mgpu.networks.hybridize import HybridizedBlock, hybridized
from gluon_mgpu.networks.precision import Cast, conv2d
from gluon_mgpu.networks.resnet import resnet18
from gluon_mgpu.parallel.devices import Devices
from gluon_mgpu.parallel.split import split_batch
from gluon_mgpu.parallel.step import zero_grad
from gluon_mgpu.parallel.sync_batch_norm import SyncBatchNorm
from gluon_mgpu.parallel.trainer import trainable

K, LR = 3, 0.1
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()
SHARED = gluon.nn.Dense(4, in_units=6)


@pytest.fixture
def batches(seed):
    """Batches of random rows with 6 numbers, of 4 classes."""
    rng = numpy.random.default_rng(seed)
    return [(rng.normal(size=(16, 6)).astype('float32'), rng.integers(0, 4, 16).astype('int32')) for _ in range(3)]


@pytest.fixture
def image_batches(seed):
    rng = numpy.random.default_rng(seed)
    return [(rng.normal(size=(64, 1, 28, 28)).astype('float32'), rng.integers(0, 10, 64).astype('int32'))]


def some_slow(names, quick):
    """Return the names for `parametrize`; only the quick ones run without --all."""
    assert {*quick} <= {*names}
    return [name if name in quick else slow(name) for name in names]


# The scratch chapter's step, with mistakes

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


def step_from_scratch(device_params, X, y, devices, mistake='', batch_size=None):
    """Take the step of D2L 13.5.6, possibly with a mistake."""
    k, rows = len(devices), len(X)
    if mistake == 'drops the rows that remain':
        X, y = X[:max(rows // k * k, 1)], y[:max(rows // k * k, 1)]
    X_shards, y_shards = split_batch(X, y, devices)
    if mistake == 'the first shard on all devices':
        X_shards, y_shards = ([shards[0].as_in_ctx(device) for device in devices] for shards in (X_shards, y_shards))
    with autograd.record():
        ls = [LOSS(network(X_shard, params), y_shard)
              for X_shard, y_shard, params in zip(X_shards, y_shards, device_params)]
        if mistake == 'a mean of means':
            ls = [l.mean() / len(ls) * rows for l in ls]
    for l in ls:
        l.backward()
    if mistake != 'a stale gradient':
        for params in device_params[len(X_shards):]:
            for param in params:
                param.grad[:] = 0
    for i in range(len(device_params[0])):
        gradients = [params[i].grad for params in device_params]
        if mistake == 'averages':
            scratch.allreduce(gradients)
            for gradient in gradients:
                gradient /= k
        elif mistake == 'does not sum the biases':
            if i % 2 == 0:
                scratch.allreduce(gradients)
        elif mistake == 'sums into a new array':
            total = sum(gradient.as_in_ctx(devices[0]) for gradient in gradients)
            gradients = [total.as_in_ctx(device) for device in devices]
        elif mistake == 'sums on the first device only':
            for gradient in gradients[1:]:
                gradients[0] += gradient.as_in_ctx(devices[0])
        elif mistake == 'misses the last device':
            scratch.allreduce(gradients[:max(k - 1, 1)])
            gradients[0].copyto(gradients[-1])
        elif mistake == 'counts the first device twice':
            total = sum((gradient.as_in_ctx(devices[0]) for gradient in gradients), gradients[0] * (k > 1))
            for gradient in gradients:
                total.copyto(gradient)
        else:
            scratch.allreduce(gradients)
    divisor = {'divides by the rows of a shard': len(X_shards[0]), 'divides twice': rows * k}.get(mistake, rows)
    for params in device_params[:max(k - 1, 1)] if mistake == 'updates all but the last' else device_params:
        scratch.sgd(params, LR, batch_size or divisor)


NO_SUM = r'batch 1, of 12 rows: the sum of the gradients does not reach cpu\(0\), cpu\(1\), cpu\(2\)'
MISTAKES_FROM_SCRATCH = {
    'divides by the rows of a shard': 'the update is 3 times that of one device, as if 12 rows were divided by 4',
    'divides twice': 'the update is 0.333 times that of one device, as if 12 rows were divided by 36',
    'averages': 'the update is 0.333 times that of one device, as if 12 rows were divided by 36',
    'a mean of means': 'batch 2, of 10 rows: each device has the same weight whatever its rows, a mean of means',
    'a stale gradient': r'batch 4, of 2 rows: the gradient of the batch before is added, from cpu\(2\) without rows',
    'sums into a new array': NO_SUM,
    'sums on the first device only': r'the sum of the gradients does not reach cpu\(1\), cpu\(2\)',
    'does not sum the biases': 'WRONG in 2 of 4 parameters after ' + NO_SUM,
    'misses the last device': r'batch 1, of 12 rows: the gradient of cpu\(2\) counts 0 times',
    'counts the first device twice': r'batch 1, of 12 rows: the gradient of cpu\(0\) counts 2 times',
    'the first shard on all devices': r'the gradient of cpu\(0\) counts 3 times, '
                                      r'the gradient of cpu\(1\) counts 0 times, the gradient of cpu\(2\) counts 0',
    'drops the rows that remain': 'batch 2, of 10 rows: row 10 counts 0 times',
    'updates all but the last': r'batch 1, of 12 rows: the update leaves out cpu\(2\)\.',
}


@pytest.mark.parametrize('mistake', some_slow(MISTAKES_FROM_SCRATCH, quick=(
    'averages', 'a mean of means', 'a stale gradient', 'sums into a new array', 'drops the rows that remain')))
def test_mistakes_from_scratch(mistake, batches):
    def train_batch(state, X, y, devices):
        step_from_scratch(state, X, y, devices, mistake, batch_size=None)
    report = check_data_parallel(make_arrays, train_batch, batches)
    assert not report.ok
    assert re.search(MISTAKES_FROM_SCRATCH[mistake], report.diagnosis[0])
    right = ['parameter 0', 'parameter 2'] if mistake == 'does not sum the biases' else []
    assert [name for name, _, _, verdict in report.parameters if verdict == 'equal'] == right


# The concise chapter's step, with mistakes

def make_network(devices, layers=lambda: [gluon.nn.Dense(4)], optimizer='sgd', settings=(), kind=gluon.Trainer,
                 **options):
    """Return a network and a Trainer, as in D2L 13.6."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(5, activation='tanh'), *layers())
    net.initialize(init=init.Normal(0.5), ctx=devices)
    return net, kind(trainable(net), optimizer, {'learning_rate': LR, **dict(settings)}, **options)


def step_with_trainer(state, X, y, devices, mistake=''):
    """Take the step of D2L 13.6.3, possibly with a mistake."""
    net, trainer = state
    k, rows = len(devices), len(X)
    if mistake == 'drops the rows that remain':
        X, y = X[:max(rows // k * k, 1)], y[:max(rows // k * k, 1)]
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        ls = [LOSS(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
        if mistake.startswith('means'):
            ls = [l.mean() for l in ls]
    for l in ls:
        l.backward()
    if mistake == 'skips stale gradients':
        for param in trainable(net):
            for device in devices[len(X_shards):]:
                param.grad(device)[:] = 0
    elif mistake != 'a stale gradient':
        zero_grad(net, devices[len(X_shards):])
    if mistake == 'clips each gradient':
        for param in trainable(net):
            for gradient in param.list_grad():
                gradient[:] = np.clip(gradient, -0.1, 0.1)
    divisor = {'means': 1, 'means of devices': len(ls), 'divides by the rows of a shard': len(X_shards[0]),
               'steps by the number of devices': k * rows, 'steps by one more per device': rows + k}.get(mistake, rows)
    trainer.step(divisor, ignore_stale_grad=mistake == 'skips stale gradients')


MISTAKES_WITH_TRAINER = {
    'no kvstore': NO_SUM,
    'divides by the rows of a shard': 'the update is 3 times that of one device, as if 12 rows were divided by 4',
    'means': 'the update is 3 times that of one device, as if 12 rows were divided by 4',
    'means of devices': 'batch 2, of 10 rows: each device has the same weight whatever its rows, a mean of means',
    'steps by the number of devices': 'the update is 0.333 times that of one device, as if 12 rows were divided by 36',
    'steps by one more per device': 'the update is 0.867 times that of one device, as if 12 rows were divided by 13.8',
    'a stale gradient': r'batch 4, of 2 rows: the gradient of the batch before is added, from cpu\(2\) without rows',
    'skips stale gradients': r'batch 4, of 2 rows: the update leaves out cpu\(2\)\.',
    'drops the rows that remain': 'batch 2, of 10 rows: row 10 counts 0 times',
    'clips each gradient': 'each device clips its own gradient before the sum',
}


@pytest.mark.parametrize('mistake', some_slow(MISTAKES_WITH_TRAINER, quick=(
    'no kvstore', 'means', 'skips stale gradients', 'clips each gradient')))
def test_mistakes_with_a_trainer(mistake, batches):
    options = {'no kvstore': {'kvstore': None}, 'skips stale gradients': {'update_on_kvstore': False}}.get(mistake, {})
    report = check_data_parallel(partial(make_network, **options), partial(step_with_trainer, mistake=mistake), batches)
    assert not report.ok
    assert re.search(MISTAKES_WITH_TRAINER[mistake], report.diagnosis[0])


# Steps that are right

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


def accumulate(state, X, y, devices, parts=2):
    """Add the gradients of parts of each shard before one update."""
    device_params = state['params']
    for params in device_params:
        for param in params:
            param.grad[:] = 0
    for X_shard, y_shard, params in zip(*split_batch(X, y, devices), device_params):
        for part in range(min(parts, len(X_shard))):
            with autograd.record():
                l = LOSS(network(X_shard[part::parts], params), y_shard[part::parts])
            l.backward()
    for arrays in zip(*device_params):
        scratch.allreduce([array.grad for array in arrays])
    for params in device_params:
        scratch.sgd(params, LR, len(X))


def make_accumulating(devices):
    return {'params': [[copy_with_gradient(param, device, 'add') for param in params]
                       for params, device in zip(make_arrays(devices), devices)]}


def one_list_per_parameter(devices):
    return [list(copies) for copies in zip(*make_arrays(devices))]


def step_of_one_list_per_parameter(state, X, y, devices):
    step_from_scratch([list(params) for params in zip(*state)], X, y, devices)


def interleaved(state, X, y, devices):
    """Split the rows in another order: 0, 3, 6, ... on the first device."""
    order = numpy.concatenate([numpy.arange(len(X))[i::len(devices)] for i in range(len(devices))])
    step_from_scratch(state, X[order], y[order], devices)


def synchronized_batch_norm(state, X, y, devices):
    """Normalize by mean and variance over the rows of all devices; one backward pass over all losses."""
    X_shards, y_shards = split_batch(X, y, devices)

    def mean(arrays):
        return sum(array.sum(axis=0).as_in_ctx(devices[0]) for array in arrays) / len(X)

    with autograd.record():
        H = [np.dot(X_shard, params[0]) + params[1] for X_shard, params in zip(X_shards, state)]
        center = mean(H)
        H = [h - center.as_in_ctx(h.ctx) for h in H]
        variance = mean([h ** 2 for h in H])
        ls = [LOSS(np.dot(h / (variance.as_in_ctx(h.ctx) + 0.1) ** 0.5, params[2]) + params[3], y_shard)
              for h, params, y_shard in zip(H, state, y_shards)]
    autograd.backward(ls)
    for params in state[len(X_shards):]:
        for param in params:
            param.grad[:] = 0
    for arrays in zip(*state):
        scratch.allreduce([array.grad for array in arrays])
    for params in state:
        scratch.sgd(params, LR, len(X))


def same_arrays_twice(devices):
    device_params = make_arrays(devices)
    return device_params, [tuple(params) for params in device_params]


def step_of_the_same_arrays(state, X, y, devices):
    step_from_scratch(state[1], X, y, devices)


def augmented(state, X, y, devices):
    noise = [module.random.normal(size=X.shape) for module in (np, numpy)]
    step_from_scratch(state, X + noise[0].astype(X.dtype) + np.array(noise[1], dtype=X.dtype), y, devices)


def on_first_device(state, X, y, devices):
    """Update on the first device alone, as in Minerva; the others get copies."""
    step_from_scratch([state, *([copy_with_gradient(param, device) for param in state] for device in devices[1:])],
                      X, y, devices)


def concise_step(state, X, y, devices, **options):
    net, loss, trainer = state
    concise.train_batch(X, y, net, loss, trainer, Devices(devices, 12, **options))


def make_concise(devices, **options):
    net, trainer = make_network(devices, **options)
    return hybridized(net), hybridized(LOSS), trainer


def make_only_a_network(devices, kind):
    """Return nothing but a network, hybridized or with batch norm over all devices."""
    layers = [gluon.nn.BatchNorm(), gluon.nn.Dense(4)] if kind is SyncBatchNorm else [gluon.nn.Dense(4)]
    return kind(make_network(devices, layers=lambda: layers)[0])


def step_without_trainer(net, X, y, devices):
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        y_hats = net.forward(X_shards) if isinstance(net, SyncBatchNorm) else [net(X_shard) for X_shard in X_shards]
        ls = [LOSS(y_hat, y_shard) for y_hat, y_shard in zip(y_hats, y_shards)]
    (net.backward if isinstance(net, SyncBatchNorm) else autograd.backward)(ls)
    zero_grad(net, devices[len(X_shards):])
    for param in trainable(net):
        scratch.allreduce(param.list_grad())
        scratch.sgd(param.list_data(), LR, len(X))


def with_dropout_and_batch_norm():
    return [gluon.nn.BatchNorm(), gluon.nn.Dropout(0.5), gluon.nn.Dense(4)]


RIGHT = {
    'from scratch': (make_arrays, step_from_scratch),
    'momentum from scratch': (make_momentum, momentum_from_scratch),
    'accumulated gradients': (make_accumulating, accumulate),
    'one list per parameter': (one_list_per_parameter, step_of_one_list_per_parameter),
    'interleaved rows': (make_arrays, interleaved),
    'synchronized batch norm': (make_arrays, synchronized_batch_norm),
    'random numbers': (make_arrays, augmented),
    'the same arrays twice': (same_arrays_twice, step_of_the_same_arrays),
    'one copy of the parameters': (lambda devices: make_arrays(devices)[0], on_first_device),
    'with a Trainer': (make_network, step_with_trainer),
    'weight decay and momentum': (partial(make_network, settings={'momentum': 0.9, 'wd': 0.01}), step_with_trainer),
    'Adam': (partial(make_network, optimizer='adam'), step_with_trainer),
    'the Trainer with few calls': (partial(make_network, kind=moving),
                                   step_with_trainer),
    'layer normalization': (partial(make_network, layers=lambda: [gluon.nn.LayerNorm(), gluon.nn.Dense(4)]),
                            step_with_trainer),
    'only a hybridized network': (partial(make_only_a_network, kind=hybridized), step_without_trainer),
    'SyncBatchNorm': (partial(make_only_a_network, kind=SyncBatchNorm), step_without_trainer),
    'the concise chapter': (make_concise, concise_step),
    'the concise chapter in parts': (make_concise, partial(concise_step, parts=2)),
    'updates on the devices': (partial(make_concise, update_on_kvstore=False), concise_step),
}


@pytest.mark.parametrize('case', some_slow(RIGHT, quick=(
    'from scratch', 'momentum from scratch', 'accumulated gradients', 'random numbers', 'Adam',
    'the same arrays twice', 'the concise chapter')))
def test_no_mistake_in_steps_that_are_right(case, batches):
    report = check_data_parallel(*RIGHT[case], batches)
    assert report.ok, report
    assert 'float64' in report.title and not report.diagnosis
    assert len(report.parameters) == (6 if case in ('layer normalization', 'SyncBatchNorm') else 4)
    assert {(between, verdict) for _, _, between, verdict in report.parameters} == {(0, 'equal')}  # to the last bit


@pytest.mark.slow
def test_batch_norm_and_dropout_are_named_and_are_no_mistakes(batches):
    report = check_data_parallel(partial(make_network, layers=with_dropout_and_batch_norm), step_with_trainer, batches)
    assert report.ok, report
    assert report.notes[:2] == ['dropout (2): each device draws its own random numbers; checked without dropout.',
                                'batch norm (1): each device normalizes by its own rows; checked with fixed '
                                'statistics.']
    assert {row[3] for row in report.parameters} == {'batch norm'}


def test_a_mistake_beside_batch_norm_and_dropout(batches):
    report = check_data_parallel(partial(make_network, layers=with_dropout_and_batch_norm, kvstore=None),
                                 step_with_trainer, batches)
    assert re.search(NO_SUM, report.diagnosis[0])


# Whole networks

@pytest.mark.slow
def test_lenet(image_batches):
    report = check_data_parallel(make_lenet, step_of_lenet, image_batches)
    assert report.ok and len(report.parameters) == 8, report


def make_resnet(devices, dtype='float32'):
    net = resnet18(10, dtype)
    net.initialize(init=init.Xavier(), ctx=devices)
    return hybridized(net), hybridized(LOSS), moving(trainable(net), 'sgd', {'learning_rate': LR})


@pytest.mark.slow
def test_resnet18(image_batches):
    """In small: images of 8x8."""
    report = check_data_parallel(make_resnet, concise_step, [(X[..., :8, :8], y) for X, y in image_batches])
    assert report.ok and report.notes[0].startswith('batch norm (1, 3.0.bn1, 3.0.bn2')
    assert 'and 68 others' in str(report)


def test_earlier_networks_are_freed(batches):
    """A check makes many networks; in memory are those of the current comparison, on one device and on several."""
    alive, numbers = weakref.WeakSet(), []

    def make(devices):
        net, trainer = make_network(devices)
        alive.add(net)
        numbers.append(len(alive))
        return net, trainer
    assert check_data_parallel(make, step_with_trainer, batches).ok
    assert len(numbers) > 4 and max(numbers) <= 3


def test_a_difference_above_rounding(batches):
    """Without a Trainer, which keeps the learning rate in float32, a difference of 1e-8 is a fault."""
    def step(device_params, X, y, devices):
        step_from_scratch(device_params, X, y, devices, batch_size=len(X) * (1 + 1e-8 * len(devices)))
    assert not check_data_parallel(make_arrays, step, batches).ok


@pytest.mark.slow
@needs_bfloat16
@pytest.mark.parametrize('sums', [True, False])
def test_bfloat16(image_batches, sums):
    """The step cannot compute in float64, so larger differences are rounding."""
    def make(devices):
        nn, net = gluon.nn, gluon.nn.HybridSequential()
        net.add(Cast('bfloat16'), conv2d(16, kernel_size=3, dtype='bfloat16'), nn.Activation('relu'), Cast('float32'),
                nn.Dense(10))
        net.initialize(init=init.Xavier(), ctx=devices)
        trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': LR}, update_on_kvstore=False)
        if not sums:
            trainer._allreduce_grads = lambda: None
        return HybridizedBlock(net), hybridized(LOSS), trainer  # as in the chapter
    report = check_data_parallel(make, concise_step, [(X[..., :8, :8], y) for X, y in image_batches])
    assert report.ok is sums, report
    assert 'in its own dtype' in report.title


@pytest.mark.slow
@pytest.mark.parametrize('name', ['resnet18_v1', 'mobilenet0_25'])
def test_the_model_zoo(name, seed):
    """In small."""
    def make(devices):
        net = getattr(gluon.model_zoo.vision, name)(classes=10)
        net.initialize(init=init.Xavier(), ctx=devices)
        return net, gluon.Trainer(trainable(net), 'sgd', {'learning_rate': 0.01, 'momentum': 0.9})
    rng = numpy.random.default_rng(seed)
    batch = rng.normal(size=(12, 3, 16, 16)).astype('float32'), rng.integers(0, 10, 12)
    report = check_data_parallel(make, step_with_trainer, [batch], [mx.cpu(0), mx.cpu(1)])
    assert report.ok, report


# The code cells of the book

def books_allreduce(data):
    for i in range(1, len(data)):
        data[0][:] += data[i].copyto(data[0].ctx)
    for i in range(1, len(data)):
        data[0].copyto(data[i])


def books_split_batch(X, y, devices):
    assert X.shape[0] == y.shape[0]
    return (gluon.utils.split_and_load(X, devices),
            gluon.utils.split_and_load(y, devices))


def books_train_batch(device_params, X, y, devices, lr=0.2):
    X_shards, y_shards = books_split_batch(X, y, devices)
    with autograd.record():
        ls = [LOSS(scratch.lenet.__wrapped__(X_shard, device_W), y_shard)
              for X_shard, y_shard, device_W in zip(X_shards, y_shards, device_params)]
    for l in ls:
        l.backward()
    for i in range(len(device_params[0])):
        books_allreduce([device_params[c][i].grad for c in range(len(devices))])
    for param in device_params:
        d2l.sgd(param, lr, X.shape[0])


def books_concise_loop(state, X, y, devices, batch_size=12):
    net, trainer = state
    X_shards, y_shards = books_split_batch(X, y, devices)
    with autograd.record():
        ls = [LOSS(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
    for l in ls:
        l.backward()
    trainer.step(batch_size)


def books_network(devices):
    """In small: with one residual block."""
    net = gluon.nn.Sequential()
    net.add(d2l.Residual(4, use_1x1conv=True, strides=2), gluon.nn.GlobalAvgPool2D(), gluon.nn.Dense(10))
    net.initialize(init=init.Normal(sigma=0.01), ctx=devices)
    return net, gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})


@pytest.mark.slow
def test_the_books_scratch_chapter(image_batches):
    """Right, but it divides the update of a short last batch by its own rows, and splits evenly only."""
    def make(devices):
        params = scratch.init_params()
        return [oracle.books_get_params(params, device) for device in devices]
    report = check_data_parallel(make, books_train_batch, image_batches)
    assert report.ok, report
    *uneven, own_rows = report.notes
    assert 'the last 96 then weigh 2.7 times as much as others' in own_rows
    assert len(uneven) == 3 and all('are not checked' in note for note in uneven)


def test_the_books_concise_chapter(image_batches):
    """It divides by the batch size, and batch norm is per device."""
    report = check_data_parallel(books_network, books_concise_loop, [(X[..., :8, :8], y) for X, y in image_batches])
    assert report.ok, report
    *uneven, batch_norm = report.notes
    assert batch_norm.startswith('batch norm (0.bn1, 0.bn2): each device normalizes by its own rows')
    assert len(uneven) == 3


# Faults beside the sum of the gradients

def own_parameters(devices):
    return [make_arrays([device])[0] for device in devices]


def copied_before_each_step(state, X, y, devices):
    """The values of the first device are used, whatever the others start with."""
    for params in state[1:]:
        for param, first in zip(params, state[0]):
            first.copyto(param)
    step_from_scratch(state, X, y, devices)


def test_devices_that_start_with_their_own_parameters(batches):
    report = check_data_parallel(own_parameters, step_from_scratch, batches)
    assert not report.ok and report.diagnosis[0].startswith('WRONG: the devices start with different parameters')
    assert check_data_parallel(own_parameters, copied_before_each_step, batches).ok
    other = check_data_parallel(own_parameters, partial(step_from_scratch, mistake='averages'), batches)
    assert 'the update is 0.333 times that of one device' in other.diagnosis[0]


def test_a_trainer_whose_devices_start_with_their_own_parameters(batches):
    def make(devices):
        net, trainer = make_network(devices, update_on_kvstore=False)
        for device in devices:
            net(np.zeros((1, 6), ctx=device))
            net[0].weight.data(device)[:] = np.random.normal(size=(5, 6))
        return net, trainer
    report = check_data_parallel(make, step_with_trainer, batches)
    assert 'start with different parameters' in report.diagnosis[0]


@pytest.mark.parametrize('momentum_on', ['the first device', 'devices with rows'])
def test_momentum_that_is_not_on_all_devices(momentum_on, batches):
    def train_batch(state, X, y, devices):
        before = [[param.copy() for param in params] for params in state.device_params]
        step_from_scratch(state.device_params, X, y, devices)
        n = 1 if momentum_on == 'the first device' else len(X)
        for params, old, velocities in [*zip(state.device_params, before, state.velocities)][:n]:
            for param, start, velocity in zip(params, old, velocities):
                velocity[:] = 0.9 * velocity + param - start
                param[:] = start + velocity
    report = check_data_parallel(make_momentum, train_batch, batches)
    batch = 'batch 2, of 10 rows' if momentum_on == 'the first device' else 'batch 4, of 2 rows'
    assert f'{batch}: what the step keeps from the batches before, such as momentum, differs' in report.diagnosis[0]


@pytest.mark.parametrize('fault', ['weight decay', 'loss', 'first device'])
def test_weight_decay_that_differs(fault, batches):
    """On each device before the sum, as a term of each loss, or on one device only."""
    def decayed(l, params):
        return l.sum() + 0.1 * (params[0] ** 2).sum() if fault == 'loss' else l

    def train_batch(state, X, y, devices):
        X_shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            ls = [decayed(LOSS(network(X_shard, params), y_shard), params)
                  for X_shard, params, y_shard in zip(X_shards, state, y_shards)]
        for l in ls:
            l.backward()
        if fault != 'loss':
            for params in state if fault == 'weight decay' else state[:1] * (len(devices) > 1):
                for param in params:
                    param.grad[:] += 0.1 * param
        for arrays in zip(*state):
            scratch.allreduce([array.grad for array in arrays])
        for params in state:
            scratch.sgd(params, LR, len(X))
    report = check_data_parallel(make_arrays, train_batch, batches)
    assert 'each row counts once, to three digits, but something else differs' in report.diagnosis[0]


def test_a_step_that_updates_no_device(batches):
    def train_batch(state, X, y, devices):
        if len(devices) == 1:
            step_from_scratch(state, X, y, devices)
    report = check_data_parallel(make_arrays, train_batch, batches)
    assert 'the update leaves out cpu(0), leaves out cpu(1), leaves out cpu(2).' in report.diagnosis[0]


def test_another_learning_rate_on_each_device(batches):
    def train_batch(state, X, y, devices):
        step_from_scratch(state, X, y, devices)
        for param in state[1] if len(devices) > 1 else []:
            param[:] -= LR * param.grad / len(X)
    report = check_data_parallel(make_arrays, train_batch, batches)
    assert report.diagnosis[0].endswith('of 12 rows: the update counts 2 times on cpu(1).')


def test_a_division_by_zero(batches):
    def train_batch(state, X, y, devices):
        step_from_scratch(state, X, y, devices, batch_size=max(len(X) - len(devices) + 1, 0) if len(X) < 3 else None)
        if len(X) < len(devices):
            for param in state[-1]:
                param[:] *= float('nan')
    report = check_data_parallel(make_arrays, train_batch, batches)
    assert 'batch 4, of 2 rows: parameters become NaN or infinite' in report.diagnosis[0]


def test_a_step_that_keeps_values_elsewhere(batches):
    """A second training does not start as the first did."""
    velocities = {}

    def train_batch(state, X, y, devices):
        step_from_scratch(state, X, y, devices)
        for param in state[0]:
            velocities[param.shape] = 0.9 * velocities.get(param.shape, 0) - LR * param.grad.copy() / len(X)
            param[:] += 0.9 * velocities[param.shape]
    report = check_data_parallel(make_arrays, train_batch, batches)
    assert report.diagnosis[0].endswith('or it keeps values that make does not return.')


@pytest.mark.parametrize('draw', [lambda X: npx.dropout(X, p=0.5), lambda X: X * np.random.normal(size=(1, 6))])
def test_random_numbers_on_each_device(draw, batches):
    def train_batch(state, X, y, devices):
        X_shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            ls = [LOSS(network(draw(X_shard), params), y_shard)
                  for X_shard, params, y_shard in zip(X_shards, state, y_shards)]
        for l in ls:
            l.backward()
        for params in state[len(ls):]:
            for param in params:
                param.grad[:] = 0
        for arrays in zip(*state):
            scratch.allreduce([array.grad for array in arrays])
        for params in state:
            scratch.sgd(params, LR, len(X))
    report = check_data_parallel(make_arrays, train_batch, batches)
    assert not report.ok and report.diagnosis[0].startswith('NOT CHECKED: the step draws random numbers')


def test_batch_norm_that_was_traced_before(batches):
    """With a warm-up call in `make`, and a step that cannot compute in float64."""
    def make(devices, as_one):
        net, trainer = make_network(devices, layers=with_dropout_and_batch_norm)
        net.hybridize()
        net = as_one(net)
        for device in devices:
            with autograd.record():
                net(np.zeros((2, 6), ctx=device))
        return net, trainer

    def train_batch(state, X, y, devices):
        step_with_trainer(state, X.astype('float32'), y, devices)
    for as_one in (lambda net: net, hybridized):
        report = check_data_parallel(partial(make, as_one=as_one), train_batch, batches)
        assert report.ok and 'in its own dtype' in report.title, report


@pytest.mark.parametrize('fault', [0.002, 0.01, 0.0101, -0.01])
def test_small_faults_are_printed(fault, batches):
    def train_batch(state, X, y, devices):
        step_from_scratch(state, X, y, devices, batch_size=len(X) / (1 + fault * (len(devices) > 1)))
    report = check_data_parallel(make_arrays, train_batch, batches)
    ratio = round(1 + fault, 3)
    assert f'the update is {ratio} times that of one device, as if 12 rows were divided by' in report.diagnosis[0]
    assert f'cpu(0): {ratio}, ' in report.diagnosis[4]


@pytest.mark.parametrize('mistake', ['', 'no sum'])
@pytest.mark.parametrize('every, found_in', [(2, 'batch 2, of 10 rows'), slow(3, 'batch 3, of 12 rows')])
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
    report = check_data_parallel(make, train_batch, batches)
    assert report.ok is not mistake, report
    if mistake:
        assert f'{found_in}: the sum of the gradients does not reach' in report.diagnosis[0]


def test_few_rows_are_read_and_few_states_made(batches):
    read, made = [], []

    def make(devices):
        made.append(devices)
        return make_arrays(devices)

    def stream():
        for batch in batches * 9:
            read.append(batch)
            yield batch
    assert check_data_parallel(make, step_from_scratch, stream()).ok
    assert len(read) == 3 and len(made) == 9  # 43 of 48 rows


# Clipping, counts and the Trainer's own copies

def scale(gradients, norm, max_norm=0.5):
    for gradient in gradients:
        gradient *= np.minimum(max_norm / norm, 1).as_in_ctx(gradient.ctx)


def norm_of(gradients):
    return sum((gradient.as_in_ctx(mx.cpu(0)) ** 2).sum() for gradient in gradients) ** 0.5


def step_with_clipping(state, X, y, devices, where, max_norm=0.5):
    """Clip by the norm of: each gradient, or all of them, before the sum; all copies, or each copy, after the sum."""
    net, trainer = state
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        ls = [LOSS(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
    for l in ls:
        l.backward()
    zero_grad(net, devices[len(X_shards):])
    gradients = [[param.grad(device) for param in trainable(net)] for device in devices]
    if 'cop' in where:
        for arrays in zip(*gradients):
            scratch.allreduce([*arrays])
    norms = [norm_of(arrays) for arrays in gradients]
    if where.startswith('all'):
        norms = [sum(norm ** 2 for norm in norms) ** 0.5] * len(norms)
    for arrays, norm in zip(gradients, norms):
        scale(arrays, norm, max_norm)
    if 'cop' not in where:
        for arrays in zip(*gradients):
            scratch.allreduce([*arrays])
    trainer.step(len(X))


BY_OTHER_NORMS = {
    'each gradient': 'batch 1, of 12 rows: each device clips its own gradient before the sum.',
    'all gradients': 'and this number changes with the rows: the norm by which the gradients are clipped is not that',
    'all copies': 'the update is 0.577 times that of one device, 1 over the square root of 3: the gradients are',
}


def make_for_clipping(devices, **options):
    return make_network(devices, kvstore=None, **options)  # the step sums


@pytest.mark.parametrize('where', BY_OTHER_NORMS)
@pytest.mark.parametrize('optimizer', ['sgd', slow('adam')])
def test_clipping_by_another_norm_than_that_of_the_sum(where, optimizer, batches):
    report = check_data_parallel(partial(make_for_clipping, optimizer=optimizer),
                                 partial(step_with_clipping, where=where), batches)
    assert not report.ok and BY_OTHER_NORMS[where] in report.diagnosis[0], report
    assert "clip each device's copy by the norm of that copy alone" in report.diagnosis[1]
    assert '\n\n\n' not in str(report)


@pytest.mark.parametrize('options', [{}, slow({'optimizer': 'adam'}), slow({'settings': {'momentum': 0.9}}),
                                     slow({'layers': with_dropout_and_batch_norm})])
@pytest.mark.parametrize('max_norm', [0.5, 3, 1e9])  # clips all batches, some, none
def test_clipping_after_the_sum_is_right(options, max_norm, batches):
    report = check_data_parallel(partial(make_for_clipping, **options),
                                 partial(step_with_clipping, where='each copy', max_norm=max_norm), batches)
    assert report.ok, report


def test_a_factor_that_is_no_clipping(batches):
    """The square root of the devices in a step without clipping is a wrong divisor."""
    def step(device_params, X, y, devices):
        step_from_scratch(device_params, X, y, devices, batch_size=len(X) * len(devices) ** 0.5)
    report = check_data_parallel(make_arrays, step, batches)
    assert 'the update is 0.577 times that of one device, as if 12 rows were divided by 20.78' in report.diagnosis[0]


def test_labels_of_other_rows_are_not_named_clipping(batches):
    def step(state, X, y, devices):
        order = numpy.roll(numpy.arange(len(y)), len(devices) - 1)
        step_from_scratch(state, X, y[order], devices)
    report = check_data_parallel(make_arrays, step, batches)
    assert 'The cause is unknown' in report.diagnosis[0]


@pytest.mark.parametrize('rows', ['its own', 'all'])
def test_each_device_divides_by_its_own_rows(rows, batches):
    """After the sum, times the devices, so that even batches are right; a device without rows divides by all rows."""
    def train_batch(state, X, y, devices):
        step_from_scratch(state, X, y, devices, batch_size=1e9)  # sums, and updates by almost nothing
        for i, params in enumerate(state):
            own = len(range(i, len(X), len(devices))) * len(devices)
            scratch.sgd(params, LR, (own if rows == 'its own' else 0) or len(X))
    report = check_data_parallel(make_arrays, train_batch, batches)
    assert report.ok is (rows == 'all'), report
    if not report.ok:
        assert report.diagnosis[0].endswith(
            'batch 2, of 10 rows: each device divides by its own rows, so the update counts 0.833 times on cpu(0), '
            'counts 1.111 times on cpu(1), counts 1.111 times on cpu(2).')
        assert report.diagnosis[1].startswith('Do: divide by the rows of the whole batch, or by the batch size')


@pytest.mark.parametrize('count', ['its own', 'all'])
def test_each_device_divides_by_its_own_count(count, batches):
    """Labels of 0 do not count, as in padded sentences."""
    def train_batch(state, X, y, devices):
        net, trainer = state
        X_shards, y_shards = split_batch(X, y, devices)
        valid = max(float((y > 0).sum()), 1)
        with autograd.record():
            ls = []
            for X_shard, y_shard in zip(X_shards, y_shards):
                mask = y_shard > 0
                l = (LOSS(net(X_shard), y_shard) * mask).sum()
                ls.append(l / mask.sum() / len(devices) if count == 'its own' else l / valid)
        for l in ls:
            l.backward()
        zero_grad(net, devices[len(X_shards):])
        trainer.step(1)
    X, y = (numpy.concatenate(arrays) for arrays in zip(*batches))
    y[:12] = [0, 1, 2, 3, 1, 2, 3, 1, 0, 0, 0, 2]
    report = check_data_parallel(make_network, train_batch, [(X, y)])
    assert report.ok is (count == 'all'), report
    if not report.ok:
        assert 'each device divides by its own count, such as that of its valid labels' in report.diagnosis[0]


def test_a_shard_whose_labels_do_not_count(batches):
    """The cause stays unknown, because the shard alone has no finite update."""
    def train_batch(state, X, y, devices):
        net, trainer = state
        X_shards, y_shards = split_batch(X, y, devices)
        valid = float((y > 0).sum())
        with autograd.record():
            ls = [(LOSS(net(X_shard), y_shard) * (y_shard > 0)).sum() / np.array(valid, ctx=X_shard.ctx)
                  for X_shard, y_shard in zip(X_shards, y_shards)]
        for l in ls:
            l.backward()
        zero_grad(net, devices[len(X_shards):])
        for device in devices:
            gradients = [param.grad(device) for param in trainable(net)]
            scale(gradients, norm_of(gradients), 0.05)
        trainer.step(1)
    X, y = (numpy.concatenate(arrays) for arrays in zip(*batches))
    y[:12] = [1, 2, 3, 1, 0, 0, 0, 0, 2, 3, 1, 2]
    report = check_data_parallel(make_network, train_batch, [(X, numpy.where(numpy.arange(48) < 12, y, 1))])
    assert 'The cause is unknown' in report.diagnosis[0], report


def step_with_limit(state, X, y, devices, write):
    """Keep the parameters small, after each update."""
    step_with_trainer(state, X, y, devices)
    for param in trainable(state[0]):
        if write == 'set_data':
            param.set_data(np.clip(param.list_data()[0], -0.3, 0.3))
        else:
            for array in param.list_data():
                array[:] = np.clip(array, -0.3, 0.3)


UNDOES = "batch 2, of 10 rows: the Trainer's key-value store updates its own copy of the parameters, and undoes"
MOMENTUM = {'settings': {'momentum': 0.9}}


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
    report = check_data_parallel(partial(make_network, **options), partial(step_with_limit, write=write), batches)
    assert report.ok is not message, report
    if message:
        assert message in report.diagnosis[0]
        assert report.diagnosis[1].startswith('Do: make the Trainer with update_on_kvstore=False')


def make_with_older_trainer(devices, made_for, steps=0, new=False, **options):
    """Return a network that moved to other devices after its Trainer was made."""
    before = [mx.cpu(i) for i in range(made_for)]
    net, trainer = make_network(before, **options)
    net(np.zeros((1, 6), ctx=before[0]))
    for _ in range(steps):
        step_with_trainer((net, trainer), np.ones((4, 6)), np.zeros(4), before)
    net.collect_params().reset_ctx(devices)
    if new:
        trainer = gluon.Trainer(trainable(net), 'sgd', {'learning_rate': LR})
    return net, trainer


@pytest.mark.skipif('MXNET_MAJOR > 1', reason='collect_params() returns a dict')
@pytest.mark.parametrize('made_for, options', [(1, {}), slow(1, {'update_on_kvstore': False}),
                                               (2, {'optimizer': 'adam', 'update_on_kvstore': False})])
def test_a_trainer_older_than_the_devices(made_for, options, batches):
    report = check_data_parallel(partial(make_with_older_trainer, made_for=made_for, **options), step_with_trainer,
                                 batches)
    devices = ['1 device', '2 devices'][made_for - 1]
    assert report.diagnosis[:2] == [f'WRONG: the Trainer was made for {devices}, and its parameters are on 3.',
                                    'Do: make a new Trainer after reset_ctx or another initialize.']


@pytest.mark.skipif('MXNET_MAJOR > 1', reason='collect_params() returns a dict')
def test_an_older_trainer_on_which_mxnet_would_crash(batches):
    with pytest.raises(ValueError, match='^the Trainer was made for 2 devices, and its parameters are on 3, on which '
                                         'MXNet crashes: make a new Trainer after reset_ctx or another initialize$'):
        check_data_parallel(partial(make_with_older_trainer, made_for=2, steps=1), step_with_trainer, batches)


@pytest.mark.skipif('MXNET_MAJOR > 1', reason='collect_params() returns a dict')
@pytest.mark.parametrize('options', [{'made_for': 2, 'steps': 1, 'new': True}, slow({'made_for': 3, 'steps': 1}),
                                     slow({'made_for': 4}), {'made_for': 4, 'steps': 1}])
def test_a_trainer_of_enough_devices_is_right(options, batches):
    """After a step in `make`, a Trainer keeps float32, so the check does not compute in float64."""
    report = check_data_parallel(partial(make_with_older_trainer, **options), step_with_trainer, batches)
    assert report.ok, report


# Steps that cannot do everything

def test_arrays_in_attributes_of_a_block(batches):
    """As in the models that D2L writes from scratch. They are parameters as well."""
    class Net(gluon.Block):
        def __init__(self, params):
            super().__init__()
            self.W, self.b, self._V, self.c = params

    def make(devices):
        return [Net(params) for params in make_arrays(devices)]

    def train_batch(nets, X, y, devices, mistake=''):
        step_from_scratch([[net.W, net.b, net._V, net.c] for net in nets], X, y, devices, mistake)
    report = check_data_parallel(make, train_batch, batches)
    assert report.ok and [row[0] for row in report.parameters] == ['W', 'b', '_V', 'c'], report
    assert 'in float64' in report.title
    report = check_data_parallel(make, partial(train_batch, mistake='misses the last device'), batches)
    assert 'the gradient of cpu(2) counts 0 times' in report.diagnosis[0]


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
    report = check_data_parallel(make, train_batch, [(X, numpy.zeros(48, 'int32'))])
    assert 'in its own dtype' in report.title
    if optimizer == 'sgd':
        assert report.ok, report
    else:
        assert not report.ok and report.diagnosis[0].startswith('NOT CHECKED: the devices equal each other'), report


def test_a_crash_of_mxnet_shows_the_line(tmp_path):
    """Such as the gradient of a convolution without rows, in float64."""
    (tmp_path / 'crashing.py').write_text("""
import os, signal
def make(devices):
    os.kill(os.getpid(), signal.SIGFPE)  # as a division by zero in MXNet
train_batch = None
""")
    command = [sys.executable, '-m', 'gluon_mgpu.check', 'crashing:make', 'crashing:train_batch']
    env = {**os.environ, 'PYTHONPATH': str(Path(__file__).parents[1])}
    result = subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True)
    assert result.returncode < 0 and 'crashing.py", line 4 in make' in result.stderr


def test_a_step_that_computes_in_float32(batches):
    def make(devices):
        return [[copy_with_gradient(param.astype('float32'), param.ctx) for param in params]
                for params in make_arrays(devices)]

    def train_batch(state, X, y, devices, mistake=''):
        step_from_scratch(state, X.astype('float32'), y, devices, mistake)
    report = check_data_parallel(make, train_batch, batches)
    assert report.ok and 'in its own dtype' in report.title
    assert max(row[1] for row in report.parameters) < 1e-4
    report = check_data_parallel(make, partial(train_batch, mistake='misses the last device'), batches)
    assert 'the gradient of cpu(2) counts 0 times' in report.diagnosis[0]


def test_a_step_that_needs_an_even_split(batches):
    """Gluon's split_and_load raises an error, so the mistake is not silent."""
    def train_batch(state, X, y, devices):
        gluon.utils.split_and_load(X, devices)
        step_from_scratch(state, X, y, devices)
    report = check_data_parallel(make_arrays, train_batch, batches)
    assert report.ok and 'over batches of 12, 12 rows' in report.title
    assert re.match('batches of 10 rows are not checked, because the step raises ValueError', report.notes[0])
    assert len(report.notes) == 4


def test_a_step_that_fails_after_updating_some_devices(batches):
    """The batch is skipped; its half-made update is not a mistake of the next one."""
    def train_batch(state, X, y, devices):
        if len(X) < len(devices):
            state[0][0][:] += 1
            raise AssertionError
        step_from_scratch(state, X, y, devices)
    report = check_data_parallel(make_arrays, train_batch, batches)
    assert report.ok
    assert 'of 2 rows are not checked, because the step raises AssertionError (AssertionError)' in report.notes[0]


def late_error(device):
    """Return an array whose computation fails in MXNet's engine."""
    return np.random.normal(np.zeros(2, ctx=device), -np.ones(2, ctx=device))


def test_errors_of_the_engine_are_not_those_of_the_next_step(batches):
    """Neither in the same check nor in the next one, nor in what the user computes afterwards."""
    def train_batch(state, X, y, devices, fails):
        if fails(len(X)):
            late_error(devices[-1])
            raise AssertionError
        step_with_trainer(state, X, y, devices)
    with pytest.raises(AssertionError):
        check_data_parallel(make_network, partial(train_batch, fails=lambda n: True), batches)
    npx.waitall()
    late_error(mx.cpu(0))
    report = check_data_parallel(make_network, partial(train_batch, fails=lambda n: n == 10), batches)
    assert report.ok and 'over batches of 12, 12, 2, 7 rows' in report.title, report
    npx.waitall()


def test_an_error_that_no_parameter_shows(batches):
    def train_batch(state, X, y, devices):
        step_with_trainer(state, X, y, devices)
        if len(X) == 10:
            late_error(devices[-1])
    report = check_data_parallel(make_network, train_batch, batches)
    assert report.ok and re.match('batches of 10 rows are not checked, because the step raises ValueError',
                                  report.notes[0])


@pytest.mark.parametrize('options', [{'update_on_kvstore': None}, MOMENTUM, slow({'optimizer': 'adam'})])
def test_a_step_that_fails_after_the_update(options, batches):
    """The next batch does not start with what the Trainer keeps: its copies of the parameters, and momentum."""
    def train_batch(state, X, y, devices):
        step_with_trainer(state, X, y, devices)
        assert len(X) != 10
    report = check_data_parallel(partial(make_network, **options), train_batch, batches)
    assert report.ok and 'over batches of 12, 12, 2, 7 rows' in report.title, report


def step_with_empty_shards(state, X, y, devices):
    """The commonest step of all."""
    net, trainer = state
    X_shards, y_shards = (gluon.utils.split_and_load(a, devices, even_split=False) for a in (X, y))
    with autograd.record():
        ls = [LOSS(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
    for l in ls:
        l.backward()
    trainer.step(len(X))


def crash_without_rows(state, X, y, devices):
    step_with_trainer(state, X, y, devices)
    if len(X) < len(devices):
        print('before the crash', file=sys.stderr)
        os.write(1, b'as a program in C')
        os.kill(os.getpid(), signal.SIGFPE)


CRASHED = ('batches of 2 rows are not checked, because MXNet ends the process with SIGFPE, as some operators do for '
           'arrays without rows, such as those of split_and_load(even_split=False): leave them out')


@pytest.mark.skipif(sys.platform != 'linux', reason='the step runs in a forked process')
def test_a_crash_does_not_end_the_check(batches, capfd):
    """A crash by hand, because not every build of MXNet has one; verdicts on the other batches remain."""
    report = check_data_parallel(make_network, crash_without_rows, batches)
    assert report.ok and 'over batches of 12, 10, 12, 7 rows' in report.title and report.notes[0] == CRASHED, report
    report = check_data_parallel(partial(make_network, kvstore=None), crash_without_rows, batches)
    assert re.search(NO_SUM, report.diagnosis[0]) and not any(capfd.readouterr())


@pytest.mark.skipif(sys.platform != 'linux', reason='the step runs in a forked process')
def test_a_step_with_a_thread_pool(batches, monkeypatch):
    """The forked process lacks the threads; it is waited for once."""
    hung, pool = [], ThreadPoolExecutor(1)
    kill = multiprocessing.process.BaseProcess.kill
    monkeypatch.setattr(trials, 'SECONDS', 1)
    monkeypatch.setattr(multiprocessing.process.BaseProcess, 'kill', lambda process: [
        hung.append(process.exitcode is None), kill(process)])
    report = check_data_parallel(make_network, lambda *args: pool.submit(step_with_trainer, *args).result(), batches)
    assert report.ok and '12, 10, 12, 2, 7 rows' in report.title and hung == [True]
    wrong = partial(step_with_trainer, mistake='a stale gradient')
    report = check_data_parallel(make_network, lambda *args: pool.submit(wrong, *args).result(), batches)
    assert not report.ok and sum(hung) == 2


@pytest.mark.parametrize('kvstore, ok', [('device', True), slow(None, False)])
def test_empty_shards_of_mxnet(kvstore, ok, batches):
    report = check_data_parallel(partial(make_network, kvstore=kvstore), step_with_empty_shards, batches)
    assert report.ok is ok, report
    if MXNET_MAJOR == 1 and ok:
        assert report.notes[0] == CRASHED


def test_a_crash_in_a_notebook(tmp_path):
    """The functions of a notebook are in __main__ alone; other threads run."""
    code = """
import threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
import gluon_mgpu as d2l
import test_check as t
def train_batch(state, X, y, devices):
    t.crash_without_rows(state, X, y, devices)
report = d2l.check_data_parallel(lambda devices: t.make_network(devices), train_batch, t.batches_of_six_numbers())
print(report.notes[0])
"""
    env = {**os.environ, 'PYTHONPATH': os.pathsep.join(map(str, (Path(__file__).parents[1], Path(__file__).parent)))}
    result = subprocess.run([sys.executable, '-'], input=code, cwd=tmp_path, env=env, text=True, capture_output=True)
    assert result.returncode == 0 and result.stdout.strip().replace('SIGABRT', 'SIGFPE') == CRASHED, result  # MXNet 2


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_an_error_of_a_step_that_cannot_compute_in_float64(dtype, batches):
    """NumPy's default in the batches does not hide it, and the batches stay as they are."""
    def train_batch(state, X, y, devices):
        step_with_trainer(state, X.astype('float32'), y, devices)
        raise KeyError('a name')
    batches = [(X.astype(dtype), y) for X, y in batches]
    before = [X.copy() for X, _ in batches]
    with pytest.raises(KeyError, match='a name'):
        check_data_parallel(make_network, train_batch, batches)
    assert all(X.dtype == dtype and (old == X).all() for (X, _), old in zip(batches, before))


def test_a_layer_that_cannot_be_cast(batches):
    class Layer(gluon.nn.Dense):
        def cast(self, dtype):
            raise TypeError('only float32')
    report = check_data_parallel(partial(make_network, layers=lambda: [Layer(4)]), step_with_trainer, batches)
    assert report.ok and 'in its own dtype' in report.title, report


@pytest.mark.parametrize('use_bias', [True, False])
def test_batches_in_float64_for_a_step_in_float32(use_bias, batches):
    """The step does not cast: MXNet's parameters are in float32. Without biases, none exists before the first step."""
    def make(devices):
        net = gluon.nn.Dense(4, use_bias=use_bias)
        net.initialize(init.Normal(0.5), ctx=devices)
        return net, gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': LR})

    def train_batch(state, X, y, devices):
        step_with_trainer(state, X, y, devices)
        assert X.dtype == 'float32', 'not in float64'
    report = check_data_parallel(make, train_batch, [(X.astype('float64'), y) for X, y in batches])
    assert report.ok and 'in its own dtype' in report.title, report


# Arrays of mx.nd

ONLY_1 = pytest.mark.skipif('MXNET_MAJOR > 1', reason="Gluon's networks and losses take no mx.nd")

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


def make_nd_network(devices, kvstore='device', layers=()):
    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.hidden, self.out = gluon.nn.Dense(5), gluon.nn.Dense(4)

        def hybrid_forward(self, F, X):
            return self.out(F.Activation(self.hidden(X), act_type='tanh'))
    net = gluon.nn.HybridSequential()
    net.add(Net(), *layers)
    net.initialize(init.Normal(0.5), ctx=devices)
    net.hybridize()
    return net, gluon.Trainer(trainable(net), 'adam', {'learning_rate': LR}, kvstore=kvstore)


def step_of_nd_network(state, X, y, devices):
    step_with_empty_shards(state, X, y, devices)
    assert type(X) is mx.nd.NDArray


@ONLY_1
def test_a_step_written_with_nd(batches):
    """Without npx.reset_np or as_nd_ndarray; afterwards, NumPy's semantics are as before."""
    report = check_data_parallel(make_nd, step_of_nd, batches)
    assert report.ok and 'in float64, over batches of 12, 10, 12, 2, 7 rows' in report.title, report
    report = check_data_parallel(make_nd, partial(step_of_nd, mistake=True), batches)
    assert 'the update is 0.333 times that of one device, as if 12 rows were divided by 36' in report.diagnosis[0]
    in_threads = []
    thread = threading.Thread(target=lambda: in_threads.append((npx.is_np_array(), npx.is_np_shape())))
    thread.start()
    thread.join()
    assert [(npx.is_np_array(), npx.is_np_shape()), *in_threads] == [(True, True)] * 2


@ONLY_1
@pytest.mark.parametrize('kvstore', ['device', None])
def test_a_network_written_with_nd(kvstore, batches):
    """MXNet itself raises an error for shards without rows there."""
    report = check_data_parallel(partial(make_nd_network, kvstore=kvstore), step_of_nd_network, batches)
    assert report.ok is (kvstore is not None), report
    if report.ok:
        assert report.notes[0].startswith('batches of 2 rows are not checked, because the step raises MXNetError')
    else:
        assert re.search(NO_SUM, report.diagnosis[0])


def step_with_sparse_gradients(state, X, y, devices, mistake=False):
    """Take a step with a network or lists of arrays, whose first parameter has a sparse gradient."""
    X = mx.nd.abs(X * 4).floor()  # words from 0 to 9
    shards = [gluon.utils.split_and_load(a, devices, even_split=False) for a in (X, y)]
    with autograd.record():
        ls = [LOSS(params(X_shard) if callable(params) else mx.nd.Embedding(
            X_shard, params[0], input_dim=40, output_dim=4, sparse_grad=True).sum(axis=1), y_shard)
            for X_shard, y_shard, params in zip(*shards, state if isinstance(state, list) else [state[0]] * 3)]
    for l in ls:
        l.backward()
    divisor = len(X) * (len(devices) if mistake else 1)
    if not isinstance(state, list):
        state[1].step(divisor)
        return
    total = sum(W.grad.tostype('default').as_in_context(devices[0]) for W, in state[:len(ls)])
    for W, in state:
        W[:] = W - LR / divisor * total.as_in_context(W.context)


@ONLY_1
@pytest.mark.parametrize('kind', ['network', 'arrays'])
def test_sparse_gradients(kind, batches):
    def make(devices):
        if kind == 'network':
            net = gluon.nn.HybridSequential()
            net.add(gluon.nn.Embedding(40, 4, sparse_grad=True), gluon.nn.Dense(4))
            net.initialize(init.Normal(0.5), ctx=devices)
            return net, gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': LR})
        W = mx.nd.random.normal(shape=(40, 4))
        state = [[W.copyto(device)] for device in devices]
        for W, in state:
            W.attach_grad(stype='row_sparse')
        return state

    assert check_data_parallel(make, step_with_sparse_gradients, batches).ok
    report = check_data_parallel(make, partial(step_with_sparse_gradients, mistake=True), batches)
    assert 'the update is 0.333 times that of one device' in report.diagnosis[0]


@ONLY_1
def test_nd_in_a_step_on_several_devices_alone(batches):
    def train_batch(state, X, y, devices):
        if len(devices) > 1:
            assert mx.nd.add_n(X, X).shape == X.shape
        step_with_empty_shards(state, X, y, devices)
    assert check_data_parallel(make_network, train_batch, batches).ok


@ONLY_1
def test_a_program_that_has_left_numpy_semantics(batches):
    """As users did before the check knew mx.nd."""
    def step(state, X, y, devices):
        step_of_nd(state, X.as_nd_ndarray(), y.as_nd_ndarray(), devices)
    npx.reset_np()
    try:
        assert check_data_parallel(make_nd, step, batches).ok
        assert not npx.is_np_array() and not npx.is_np_shape()
    finally:
        mx.util.set_np_shape(2)
        mx.util._set_np_array(True)


@ONLY_1
def test_an_error_of_a_step_written_with_nd(batches):
    def step(state, X, y, devices):
        step_of_nd(state, X, y, devices)
        raise KeyError('a name')
    with pytest.raises(KeyError, match='a name'):
        check_data_parallel(make_nd, step, batches)


def test_a_step_that_takes_whole_batches_only(batches):
    def train_batch(state, X, y, devices):
        assert len(X) == 12, 'not a whole batch'
        step_from_scratch(state, X, y, devices)
    report = check_data_parallel(make_arrays, train_batch, batches)
    assert report.ok and 'over batches of 12, 12 rows' in report.title
    assert all('are not checked, because the step raises AssertionError (not a whole' in note for note in report.notes)


@pytest.mark.parametrize('dtype', ['float16', slow('float32')])
@pytest.mark.parametrize('factor', [1, slow(1.05), 3])
def test_a_step_that_casts_to_another_dtype(factor, dtype, batches):
    """Parameters in float64 do not make such a step exact."""
    def train_batch(device_params, X, y, devices):
        X_shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            hidden = [(X_shard.reshape(-1, 6, 1).astype(dtype) * W.reshape(1, 6, 5).astype(dtype)).sum(axis=1)
                      for X_shard, (W, *_) in zip(X_shards, device_params)]
            ls = [LOSS(np.dot(np.tanh(h.astype(b.dtype) + b), W2) + b2, y_shard)
                  for h, (_, b, W2, b2), y_shard in zip(hidden, device_params, y_shards)]
        for l in ls:
            l.backward()
        for params in device_params[len(ls):]:
            for param in params:
                param.grad[:] = 0
        for arrays in zip(*device_params):
            scratch.allreduce([array.grad for array in arrays])
        for params in device_params:
            scratch.sgd(params, LR * (factor if len(devices) > 1 else 1), len(X))
    report = check_data_parallel(make_arrays, train_batch, batches)
    assert report.ok is (factor == 1) and 'in its own dtype' in report.title, report
    if factor != 1:
        found = re.search(r'the update is (\S+) times that of one device', report.diagnosis[0])
        assert float(found[1]) == pytest.approx(factor, abs=0.01)  # as precise as weights are measured there


@pytest.mark.slow
def test_recurrent_layers(batches):
    """MXNet's gradients of two layers are wrong in float64."""
    def make(devices):
        net = gluon.nn.Sequential()
        net.add(gluon.nn.Lambda(lambda X: X.reshape(-1, 1, 6).swapaxes(0, 1)), gluon.rnn.LSTM(5, num_layers=2),
                gluon.nn.Lambda(lambda H: H[-1]), gluon.nn.Dense(4))
        net.initialize(init=init.Normal(0.5), ctx=devices)
        return net, gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': LR})
    report = check_data_parallel(make, step_with_trainer, batches)
    assert report.ok and 'in its own dtype' in report.title, report


@pytest.mark.slow
@pytest.mark.parametrize('draw', range(4))
def test_rows_that_influence_each_other(draw, batches):
    """Batch norm by hand cannot be switched off, and is not named clipping."""
    batches = [(numpy.roll(X, draw, axis=1), y) for X, y in batches]

    def network_with_norm(X, params):
        return network((X - X.mean(axis=0)) / (X.var(axis=0) + 1) ** 0.5, params)

    def train_batch(state, X, y, devices):
        X_shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            ls = [LOSS(network_with_norm(*pair), y) for *pair, y in zip(X_shards, state, y_shards)]
        for l in ls:
            l.backward()
        for arrays in zip(*state):
            scratch.allreduce([array.grad for array in arrays])
        for params in state:
            scratch.sgd(params, LR, len(X))
    report = check_data_parallel(make_arrays, train_batch, batches)
    assert 'The cause is unknown' in report.diagnosis[0] and 'rows may influence each other' in report.diagnosis[0]


def test_a_single_number_as_parameter(batches):
    """The weights are measured row by row, so they need no more numbers than rows."""
    def make(devices):
        return [copy_with_gradient(np.ones(1), device) for device in devices]

    def train_batch(params, X, y, devices):
        X_shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            ls = [(w * X_shard[:, 0] - y_shard) ** 2 for w, X_shard, y_shard in zip(params, X_shards, y_shards)]
        for l in ls:
            l.backward()
        scratch.allreduce([w.grad for w in params[:max(len(devices) - 1, 1)]])
        params[0].grad.copyto(params[-1].grad)
        scratch.sgd(params, LR, len(X))
    report = check_data_parallel(make, train_batch, batches)
    assert report.diagnosis[0] == ('WRONG in 1 of 1 parameters after batch 1, of 12 rows: the gradient of cpu(2) '
                                   'counts 0 times.')


@pytest.mark.parametrize('rows', [33, 200])  # with 33, the batches repeat rows
def test_a_device_left_out_is_found_in_repeated_rows(batches, rows):
    X, y = (numpy.concatenate(arrays)[:rows] for arrays in zip(*batches))
    report = check_data_parallel(partial(make_network, update_on_kvstore=False),
                                 partial(step_with_trainer, mistake='skips stale gradients'), [(X, y)])
    assert 'the update leaves out cpu(2)' in report.diagnosis[0]


def clipped_by_norm(device_params, X, y, devices, max_norm=0.1):
    before = [[param.copy() for param in params] for params in device_params]
    step_from_scratch(device_params, X, y, devices)
    for params, old in zip(device_params, before):
        norm = sum(((param - start) ** 2).sum() for param, start in zip(params, old)) ** 0.5 / LR
        for param, start in zip(params, old):
            param[:] = start + (param - start) * np.minimum(max_norm / norm, 1)


def adam_from_scratch(state, X, y, devices):
    before = [[param.copy() for param in params] for params in state.device_params]
    step_from_scratch(state.device_params, X, y, devices)
    for params, old, squares in zip(state.device_params, before, state.velocities):
        for param, start, square in zip(params, old, squares):
            square[:] = 0.9 * square + (param - start) ** 2
            param[:] = start + LR * (param - start) / (square ** 0.5 + 1e-8)


@pytest.mark.parametrize('make, step, is_noted', [
    (make_arrays, step_from_scratch, True), (make_momentum, momentum_from_scratch, True),
    (make_arrays, partial(step_from_scratch, batch_size=12), False), (make_arrays, clipped_by_norm, False),
    (make_arrays, partial(clipped_by_norm, max_norm=1e9), True), (make_momentum, adam_from_scratch, False)])
def test_the_note_on_the_rows_of_a_short_last_batch(make, step, is_noted, batches):
    report = check_data_parallel(make, step, batches)
    assert report.ok, report
    assert ['divided by the rows of its own batch' in note for note in report.notes] == [True] * is_noted


@pytest.mark.slow
def test_the_optimizers_state_on_a_device_without_rows(batches):
    """With momentum, a device that skips a batch loses a part of its speed; with plain SGD, nothing."""
    def train_batch(state, X, y, devices):
        net, trainer = state
        step_with_trainer(state, X, y, devices)
        if isinstance(trainer.optimizer, mx.optimizer.Adam) and len(X) < len(devices):
            net[0].bias.data(devices[-1])[:] += 1
    report = check_data_parallel(partial(make_network, optimizer='adam'), train_batch, batches)
    assert report.diagnosis[0].startswith('WRONG: the state of the optimizer differs')


# The report, the page, bad input, the command line

def code_of_the_page():
    """Return the blocks of docs/check.md by the comments before them."""
    page = (Path(__file__).parents[1] / 'docs' / 'check.md').read_text()
    return {name: textwrap.dedent(block) for name, block in
            re.findall(r'^<!-- (.*) -->\n\n((?:    .*\n|\n)+)', page, re.MULTILINE)}


def test_the_page(image_batches):
    """Its step is wrong, then less wrong, then right; the diagnoses are those on the page."""
    blocks = code_of_the_page()
    before, end = blocks['wrong'].split('    for i in range(2):\n')
    codes = {'report': blocks['wrong'], 'next report': blocks['wrong'] + blocks['right'], 'right': ''.join(
        [before, textwrap.indent(blocks['also right'].strip('\n'), '    '), '\n    for i in range(2):\n', end,
         blocks['right']])}
    for name, code in codes.items():
        names = {}
        exec(code, names)
        report = check_data_parallel(names['make'], names['train_batch'], image_batches)
        assert report.ok is (name == 'right'), report
        if not report.ok:
            printed, shown = (text.partition('WRONG')[2].split() for text in (str(report), blocks[name]))
            assert printed[:len(shown)] == shown
            assert printed[len(shown):] == ([] if name == 'report' else NOT_CHECKED.split())


def test_many_parameters_are_cut(batches):
    def make(devices):
        return [params + [copy_with_gradient(np.ones(1), device) for _ in range(9)]
                for device, params in zip(devices, make_arrays(devices))]

    def train_batch(state, X, y, devices):
        step_from_scratch([params[:4] for params in state], X, y, devices)
    lines = str(check_data_parallel(make, train_batch, batches)).splitlines()
    assert lines[lines.index('and 5 others') + 1] == ''


@pytest.mark.slow
def test_the_same_report_again(batches):
    wrong = partial(step_from_scratch, mistake='a stale gradient')
    first, second = (str(check_data_parallel(make_arrays, wrong, batches)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize('change, message', [
    ({'devices': [mx.cpu(0)]}, 'the number of devices 1: must be an integer of at least 2'),
    ({'batches': []}, 'batches have 0 rows: 3 devices need at least 12'),
    ({'batches': [(numpy.ones((16, 6)), numpy.ones((16, 2)), numpy.ones(16))]}, r'batches must be a list of \(X, y\)'),
    *[({'batches': [batch]}, r'batches must be a list of \(X, y\), two arrays with the same number of rows each')
      for batch in (((numpy.ones((16, 6)), numpy.ones((16, 2))), numpy.ones(16)), (numpy.ones((16, 6)), numpy.ones(15)),
                    (numpy.ones((16, 6)), numpy.float32(3)),
                    mx.io.DataBatch([mx.nd.ones((16, 6))], [mx.nd.ones(16)]))],
    ({'batches': [(numpy.ones((16, 6)), numpy.ones(16, 'complex64'))]}, '^dtype complex64: MXNet has no such arrays'),
    ({'make': lambda devices: [SHARED.initialize(ctx=devices, force_reinit=True), SHARED]},
     'make returns the same network at each call: create a new one in it'),
    ({'make': lambda devices: len}, 'make returned builtin_function_or_method without parameters: return the network'),
    ({'train_batch': lambda *args: None}, 'train_batch changes no parameter on one device in 5 batches: it must'),
    ({'make': lambda devices: [np.ones(3)]}, 'make returned list without parameters'),
    ({'make': lambda devices: [params[:4 - i] for i, params in enumerate(make_arrays(devices))]},
     r'make puts 3 parameters on cpu\(1\), and 4 on the first device: every device needs its own copy of all'),
    ({'make': lambda devices: make_arrays([mx.cpu(i) for i in range(3)])},
     r'make puts parameters on cpu\(1\): use only the devices that it gets, \[cpu\(0\)\]'),
])
def test_bad_input_in_one_line(change, message, batches):
    arguments = {'make': make_arrays, 'train_batch': step_from_scratch, 'batches': batches, **change}
    with pytest.raises(ValueError, match=message) as error:
        check_data_parallel(**arguments)
    assert len(str(error.value).splitlines()) == 1


def test_long_names_do_not_break_the_table():
    lines = str(Report(True, '3 devices', [('layer' * 20, 1e-9, 0.0, 'equal')], [], [])).splitlines()
    assert lines[2].endswith('  verdict') and lines[3].endswith('  0.0e+00  equal')


def test_an_error_of_the_step_itself(batches):
    def train_batch(state, X, y, devices):
        raise KeyError('a name')
    with pytest.raises(KeyError, match='a name'):
        check_data_parallel(make_arrays, train_batch, batches)


def batches_of_six_numbers():
    rng = numpy.random.default_rng(0)
    return [(rng.normal(size=(16, 6)).astype('float32'), rng.integers(0, 4, 16))]


def wrong_step(state, X, y, devices):
    step_from_scratch(state, X, y, devices, 'averages')


def test_command_line(capsys):
    names = [f'test_check:{name}' for name in ('make_arrays', 'step_from_scratch', 'batches_of_six_numbers')]
    assert command_line.main(names) == 0
    assert '3 devices compared with one' in capsys.readouterr().out
    names[1] = 'test_check:wrong_step'
    assert command_line.main([*names, '--devices', 'cpu:0-1']) == 1
    assert 'the update is 0.5 times' in capsys.readouterr().out


@pytest.mark.slow
def test_command_line_on_the_default_images(capsys):
    assert command_line.main(['test_check:make_lenet', 'test_check:step_of_lenet']) == 0
    assert 'over batches of 12, 10, 12, 2, 7 rows' in capsys.readouterr().out


def test_a_step_for_other_inputs_than_the_default_images(capsys):
    assert command_line.main(['test_check:make_arrays', 'test_check:step_from_scratch']) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(
        '; X has random images, (256, 1, 28, 28): for other inputs, name MODULE:batches as well')


@pytest.mark.parametrize(('code', 'words'), [
    ("def make(devices): raise ValueError('mine')", 'ValueError: mine'),
    ("def make(devices): return {}['mine']", "KeyError: 'mine'"),
    ('def make(devices): return np.dot(np.ones(2), np.ones(3))', 'MXNetError'),
    ("def batches(): return {}['mine']", "KeyError: 'mine'"), ('{}.mine', "AttributeError: 'dict' object has no"),
    ('int([])', 'TypeError: int()'), ("int('mine')", 'ValueError: invalid literal'),
    ('import mine', "ModuleNotFoundError: No module named 'mine'"), ('1 +', 'SyntaxError: invalid syntax')])
def test_an_error_in_the_users_code_keeps_its_traceback(code, words, tmp_path, monkeypatch, capsys):
    """It has the status of input that cannot be checked, not that of a wrong step."""
    before = 'from test_check import *', 'make = make_arrays', 'batches = batches_of_six_numbers'
    (tmp_path / 'users.py').write_text('\n'.join([*before, code]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, 'users', raising=False)
    assert command_line.main(['users:make', 'users:step_from_scratch', 'users:batches']) == 2
    err = capsys.readouterr().err
    assert 'users.py", line 4' in err and words in err
    assert err.splitlines()[-1].startswith('check: nothing was checked because of' if 'np' not in code else
                                           'check: MXNet failed (')


def test_a_late_error_of_mxnet_is_no_verdict(batches, monkeypatch, capsys):
    """It has no line of the user's code."""
    def train_batch(state, X, y, devices):
        late_error(devices[0])

    monkeypatch.setattr(sys.modules[__name__], 'step_from_scratch', train_batch)
    assert command_line.main([f'{__name__}:make_arrays', f'{__name__}:step_from_scratch',
                              f'{__name__}:batches_of_six_numbers']) == 2
    assert re.fullmatch('check: MXNet failed .*: set MXNET_ENGINE_TYPE=NaiveEngine to see where\n',
                        capsys.readouterr().err)


@pytest.mark.parametrize(('name', 'words'), [
    ('make_arrays', "missing 1 required positional argument: 'devices'"),
    ('no_batches', "'int' object is not iterable")])
def test_batches_of_another_kind_are_no_verdict(name, words, monkeypatch, capsys):
    """No line of the traceback is in the user's code."""
    monkeypatch.setattr(sys.modules[__name__], 'no_batches', 3, raising=False)
    assert command_line.main([f'{__name__}:make_arrays', f'{__name__}:step_from_scratch', f'{__name__}:{name}']) == 2
    *_, error, last = capsys.readouterr().err.splitlines()
    assert error.startswith('TypeError') and error.endswith(words)
    assert last == 'check: nothing was checked because of the error above'


def test_a_step_with_other_arguments(capsys):
    assert command_line.main([f'{__name__}:make_arrays', f'{__name__}:make_arrays']) == 2
    assert re.fullmatch(r'check: .*:make_arrays takes \(.*\), but the check passes \(state, X, y, devices\): join '
                        'several inputs in the columns of X\n', capsys.readouterr().err)


@pytest.mark.parametrize('name', ['test_check', 'test_check:nothing', 'no_such_module:make', './test_check:make',
                                  'no_such_package.module:make', 'test_check.nothing:make', 'test_check:', ':make'])
def test_a_name_that_cannot_be_loaded(name, capsys):
    assert command_line.main([name, 'test_check:step_from_scratch']) == 2
    assert re.fullmatch(rf"check: '{name}' cannot be loaded \(.*\): write MODULE:NAME, .*\n", capsys.readouterr().err)
