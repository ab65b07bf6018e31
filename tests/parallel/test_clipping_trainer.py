"""A Trainer that limits the norm of the gradient, on several devices."""
from functools import partial

import numpy
import pytest
from equals_one import equals_one, sequential, started, take_gradients

from gluon_mgpu import concise
from gluon_mgpu.mxnet_setup.compat import HybridBlock, autograd, gluon, init, np
from gluon_mgpu.networks.loss import cross_entropy
from gluon_mgpu.parallel.accumulation import concise_in_parts
from gluon_mgpu.parallel.clipping import ClippingTrainer
from gluon_mgpu.parallel.workers import Workers


def batches(rng):
    for rows in (12, 7, 1):  # also fewer than devices
        yield rng.normal(size=(rows, 4)), rng.integers(0, 3, rows)


def clipped(devices, rng, clip_norm, batch_size=None, parts=1):
    net = started(gluon.nn.Dense(3, in_units=4, use_bias=False), devices, rng)
    make = Workers().trainer if clip_norm else ClippingTrainer
    trainer = make(net.collect_params(), 'sgd', {'learning_rate': 0.5}, clip_norm)
    step = concise_in_parts(concise.train_batch, parts)
    for X, y in batches(rng):
        step(X, y, net, cross_entropy, trainer, devices, batch_size or len(y))
        yield net


def clipped_by_numpy(devices, rng, clip_norm, batch_size=None, parts=1):
    W, scales = rng.normal(scale=0.5, size=(3, 4)), []
    for X, y in batches(rng):
        softmax = numpy.exp(X @ W.T)
        error = softmax / softmax.sum(axis=1, keepdims=True) - numpy.eye(3)[y]
        gradient = error.T @ X / (batch_size or len(y))
        scales.append(min((clip_norm or 100) / numpy.sqrt((gradient ** 2).sum()), 1))
        W = W - 0.5 * scales[-1] * gradient
        yield {'weight': W}
    assert (min(scales) < 1) == (clip_norm == 0.05)


@pytest.mark.parametrize('options', [{}, {'batch_size': 12}, {'parts': 2}])
@pytest.mark.parametrize('k', [1, 2, 3])
@pytest.mark.parametrize('clip_norm', [0.05, 100.0, None])  # clipped and not
def test_clip_norm(clip_norm, k, options, device_list):
    """The norm is that of the gradient over the rows of all devices, once per step."""
    equals_one(partial(clipped, clip_norm=clip_norm, **options), device_list(k), tolerance=1e-6,  # 1 / rows in float32
               one=partial(clipped_by_numpy, clip_norm=clip_norm, **options))


@pytest.mark.parametrize('value, slope, settings, expected', [
    (1, 0, {'learning_rate': 0.5, 'wd': 0.5}, 0.75),  # nothing may be divided by the norm; weight decay still acts
    (0, 1e25, {'learning_rate': 1}, -0.5 ** 0.5)])    # squares overflow in float32
def test_gradients_of_zeros_and_large_gradients(value, slope, settings, expected, devices):
    net = gluon.nn.Dense(1, in_units=2, use_bias=False)
    net.initialize(init.Constant(value), ctx=devices)
    trainer = ClippingTrainer(net.collect_params(), 'sgd', settings, 1.0)
    take_gradients(lambda X, y: net(X) * slope, [net], np.ones((2, 2)), np.zeros(2), devices)
    trainer.step(1)
    numpy.testing.assert_allclose(net.weight.data(devices[-1]).asnumpy(), expected, rtol=1e-5)


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
    trainer = ClippingTrainer(net.collect_params(), 'sgd', {'learning_rate': 1}, 0.5)
    for num_inputs in (2, 1, 1):
        before = net.first.weight.data(devices[0]).asnumpy()
        with autograd.record():
            ls = [net(*[np.ones((1, 4), ctx=device)] * num_inputs) for device in devices]
        autograd.backward(ls)
        trainer.step(1, ignore_stale_grad=True)
        norm = numpy.linalg.norm(before - net.first.weight.data(devices[0]).asnumpy())
        # four weights and a bias of each layer in the loss, with equal gradients
        numpy.testing.assert_allclose(norm, 0.5 * (4 / (5 * num_inputs)) ** 0.5, rtol=1e-5)  # float32


@pytest.mark.parametrize('float16', ['all', 'the first'])
def test_clip_norm_of_several_dtypes(float16, devices):
    """In float16, the sum of the squares would overflow."""
    net = sequential(gluon.nn.Dense(400, in_units=200, use_bias=False), gluon.nn.Dense(40, in_units=50, use_bias=False))
    net.initialize(init.Zero(), ctx=devices)
    (net if float16 == 'all' else net[0]).cast('float16')
    trainer = ClippingTrainer(net.collect_params(), 'sgd', {'learning_rate': 1}, 1)
    for param in net.collect_params().values():
        for weight, gradient in zip(param.list_data(), param.list_grad()):
            gradient[:] = 100
            weight._fresh_grad = True
    trainer.step(1)
    for param in net.collect_params().values():  # 82,000 equal numbers with the norm 1
        for weight in param.list_data():
            numpy.testing.assert_allclose(weight.asnumpy(), -1 / 82_000 ** 0.5, rtol=2e-3)  # float16


@pytest.mark.parametrize('clip_norm', [0, -1, numpy.nan, 'a'])
def test_invalid_clip_norm(clip_norm, devices):
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize(ctx=devices)
    with pytest.raises(ValueError, match=rf'^clip_norm {clip_norm!r}: must be a number above 0'):
        ClippingTrainer(net.collect_params(), 'sgd', {}, clip_norm)
