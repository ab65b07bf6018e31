"""A network and its Trainer on several devices, with the norm of the gradient limited."""
import re

import numpy
import pytest

from gluon_mgpu import concise
from gluon_mgpu.mxnet_setup.compat import HybridBlock, autograd, gluon, init, np
from gluon_mgpu.networks.hybridize.block import HybridizedBlock, hybridized, unwrapped
from gluon_mgpu.networks.loss import cross_entropy
from gluon_mgpu.parallel.data_parallel import data_parallel
from gluon_mgpu.parallel.devices import Devices
from gluon_mgpu.parallel.sync_batch_norm.network import SyncBatchNorm
from gluon_mgpu.training.run import Run

ROWS = (12, 7, 1)  # also fewer than devices


def trained(devices, settings, weight, **options):
    """Train a dense layer in float64; return its weight on each device after each batch."""
    net, rng = gluon.nn.Dense(3, in_units=4, use_bias=False), numpy.random.default_rng(1)
    net.initialize(ctx=devices)
    net.cast('float64')
    net.weight.set_data(np.array(weight, dtype='float64'))
    net, trainer = data_parallel(net, devices, 'sgd', {'learning_rate': 0.5, **settings})
    results = []
    for rows in ROWS:
        X, y = np.array(rng.normal(size=(rows, 4)), dtype='float64'), np.array(rng.integers(0, 3, rows))
        concise.train_batch(X, y, net, cross_entropy, trainer, Devices(devices, **options))
        results.append([w.asnumpy() for w in net.block.weight.list_data()])
    return results


@pytest.mark.parametrize('options', [{}, {'batch_size': 12}, {'parts': 2}])
@pytest.mark.parametrize('num_devices', [1, 2, 3])
@pytest.mark.parametrize('clip_norm', [0.05, 100.0])  # clipped and not
def test_clip_norm(clip_norm, num_devices, options, device_list, rng):
    """The norm is that of the gradient over the rows of all devices, once per step: equal on any number of devices."""
    weight = rng.normal(size=(3, 4))
    one = trained(device_list(1), {'clip_norm': clip_norm}, weight, **options)
    several = trained(device_list(num_devices), {'clip_norm': clip_norm}, weight, **options)
    W, draws, clipped = weight, numpy.random.default_rng(1), []
    for rows, of_one, replicas in zip(ROWS, one, several):
        assert {w.tobytes() for w in replicas} == {replicas[0].tobytes()}
        assert abs(replicas[0] - of_one[0]).max() < 1e-12  # float64: sums in another order
        X, y = draws.normal(size=(rows, 4)), draws.integers(0, 3, rows)
        softmax = numpy.exp(X @ W.T)
        error = softmax / softmax.sum(axis=1, keepdims=True) - numpy.eye(3)[y]
        gradient = error.T @ X / options.get('batch_size', rows)
        scale = min(clip_norm / numpy.sqrt((gradient ** 2).sum()), 1)
        clipped.append(scale < 1)
        W = W - 0.5 * scale * gradient
        # Gluon's SGD keeps 1 / rows in float32
        numpy.testing.assert_allclose(replicas[0], W, rtol=1e-6, atol=1e-7)
    assert any(clipped) == (clip_norm == 0.05)


def dense_in_float64(devices, settings):
    """Return a dense layer in float64 and its Trainer."""
    net = gluon.nn.Dense(3, in_units=4, use_bias=False)
    net.initialize(init.One(), ctx=devices)
    net.cast('float64')
    return data_parallel(net, devices, 'sgd', {'learning_rate': 1, **settings})


def test_clip_norm_between_allreduce_and_update(devices):
    """The gradient's norm is that for the divisor of this update, not of the one before."""
    net, trainer = dense_in_float64(devices, {'clip_norm': 0.5})
    for batch_size in (4, 400):
        before = net.block.weight.data(devices[0]).asnumpy()
        with autograd.record():
            ls = [net(np.ones((1, 4), dtype='float64', ctx=device)) for device in devices]
        autograd.backward(ls)
        trainer.allreduce_grads()
        trainer.update(batch_size)
        norm = 12 ** 0.5 * len(devices) / batch_size
        change = before - net.block.weight.data(devices[0]).asnumpy()
        numpy.testing.assert_allclose(numpy.linalg.norm(change), min(norm, 0.5), rtol=1e-6)  # 1 / rows in float32


def test_clip_norm_ignores_stale_gradients(devices):
    """They are not used in the update, but the sum over the devices grows with each step."""
    class Net(HybridBlock):
        def __init__(self):
            super().__init__()
            self.first, self.second = gluon.nn.Dense(1, in_units=4), gluon.nn.Dense(1, in_units=4)

        def forward(self, X, *more):
            return self.first(X) + sum(self.second(Z) for Z in more)

    net = Net()
    net.initialize(ctx=devices)
    net, trainer = data_parallel(net, devices, 'sgd', {'learning_rate': 1, 'clip_norm': 0.5})
    for num_inputs in (2, 1, 1):
        before = net.block.first.weight.data(devices[0]).asnumpy()
        with autograd.record():
            ls = [net(*[np.ones((1, 4), ctx=device)] * num_inputs) for device in devices]
        autograd.backward(ls)
        trainer.step(1, ignore_stale_grad=True)
        norm = numpy.linalg.norm(before - net.block.first.weight.data(devices[0]).asnumpy())
        # four weights and a bias of each layer in the loss, with equal gradients
        numpy.testing.assert_allclose(norm, 0.5 * (4 / (5 * num_inputs)) ** 0.5, rtol=1e-5)  # float32


def test_clip_norm_of_several_dtypes(devices):
    """In float16, the sum of the squares would overflow."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(40, in_units=50, use_bias=False), gluon.nn.Dense(40, in_units=50, use_bias=False))
    net.initialize(init.Zero(), ctx=devices)
    net[0].cast('float16')
    _, trainer = data_parallel(net, devices, 'sgd', {'learning_rate': 1, 'clip_norm': 1})
    for param in net.collect_params().values():
        for weight, gradient in zip(param.list_data(), param.list_grad()):
            gradient[:] = 100
            weight._fresh_grad = True
    trainer.step(1)
    for param in net.collect_params().values():  # 4000 equal numbers with the norm 1
        for weight in param.list_data():
            numpy.testing.assert_allclose(weight.asnumpy(), -1 / 4000 ** 0.5, rtol=2e-3)  # float16


@pytest.mark.parametrize('clip_norm', [0, -1, numpy.nan, 'a'])
def test_invalid_clip_norm(clip_norm, devices):
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize(ctx=devices)
    with pytest.raises(ValueError, match=rf'^clip_norm {clip_norm!r}: must be a number above 0'):
        data_parallel(net, devices, 'sgd', {'clip_norm': clip_norm})


def test_settings_of_the_trainer_stay(devices):
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize(ctx=devices)
    settings = {'learning_rate': 0.5, 'clip_norm': 1}
    data_parallel(net, devices, 'sgd', settings)
    assert settings == {'learning_rate': 0.5, 'clip_norm': 1}


@pytest.mark.parametrize('options, kind', [({}, HybridizedBlock), ({'sync_batch_norm': True}, SyncBatchNorm)])
def test_the_trainer_sums_the_gradients_of_the_network_as_one_array(options, kind, devices):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(3, in_units=2), gluon.nn.BatchNorm(in_channels=3))
    net.initialize(ctx=devices)
    fast, trainer = data_parallel(net, devices, 'sgd', {}, **options)
    assert type(fast) is kind and trainer._networks == [fast]


def test_a_network_on_other_devices(devices):
    net = gluon.nn.Dense(3, in_units=4)
    with pytest.raises(ValueError, match=r'weight is on no device: call net.initialize\(ctx=devices\), which initial'):
        data_parallel(net, devices, 'sgd', {})
    net.initialize(ctx=devices[:1])
    with pytest.raises(ValueError, match=f'is on .*, but the step is on {re.escape(str(devices))}: use the same'):
        data_parallel(net, devices, 'sgd', {})


def test_a_head_that_is_not_in_the_file(devices, tmp_path):
    """The message names the parameter, and its remedy keeps the others."""
    nets = [gluon.nn.HybridSequential(), gluon.nn.HybridSequential()]
    for net in nets:
        net.add(gluon.nn.Dense(3, in_units=4))
    nets[0].initialize(init.Constant(7), ctx=devices)
    nets[0].save_parameters(str(tmp_path / 'body'))
    nets[1].add(gluon.nn.Dense(2, in_units=3))
    nets[1].load_parameters(str(tmp_path / 'body'), ctx=devices, allow_missing=True)
    head = nets[1][1].weight.name
    with pytest.raises(ValueError, match=rf'^{head} is on no device: call net.initialize\(ctx=devices\), which init'):
        data_parallel(nets[1], devices, 'sgd', {})
    nets[1].initialize(ctx=devices)
    data_parallel(nets[1], devices, 'sgd', {})
    assert (nets[1][0].weight.data(devices[1]).asnumpy() == 7).all()


@pytest.mark.parametrize('first', [False, True])
@pytest.mark.parametrize('second', [False, True])
def test_a_cell_of_a_notebook_that_runs_twice(first, second, devices):
    """The network and the Trainer of the second time train as if there had been no first; also in a chapter."""
    weights, X, y = [], np.arange(32.0).reshape(8, 4) / 32, np.arange(8) % 3
    for times in ([second], [first, second]):
        net = original = gluon.nn.HybridSequential()
        net.add(gluon.nn.BatchNorm(in_channels=4), gluon.nn.Dense(3, in_units=4))
        net.initialize(init.One(), ctx=devices)
        for sync_batch_norm in times:
            net, trainer = data_parallel(net, devices, 'sgd', {'learning_rate': 0.1}, sync_batch_norm)
        concise.train_batch(X, y, net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, devices)
        assert net.block is original and unwrapped(hybridized(net)) is original
        weights.append(original[1].weight.data(devices[1]).asnumpy())
    assert (weights[0] == weights[1]).all() and (weights[0] != 1).any()
    concise.train(2, 8, 0.1, net=net, devices=devices[:2], data=([(X, y)], [(X, y)]), run=Run(1, quiet=True))


def test_a_hybridized_function_that_is_hybridized_again():
    def double(X):
        return 2 * X

    fast = hybridized(hybridized(double))
    assert unwrapped(fast) is double and fast(np.ones(2)).tolist() == [2, 2]
