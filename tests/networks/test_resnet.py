"""ResNet-18: its layers, its size, and its batch norm on several devices."""
import copy

import numpy
import pytest
from bfloat16 import needs_bfloat16

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, init, mx, np
from gluon_mgpu.networks.resnet import Residual, in_float32, resnet18
from gluon_mgpu.programs.onnx.graph import semantics_of


def hybridize_in_place(net):
    net.hybridize()
    return net


def num_weights(net):
    return sum(p.data().size for p in net.collect_params().values())


def test_output_and_number_of_parameters(devices):
    net = resnet18(10)
    net.initialize(init=init.Normal(sigma=0.01), ctx=devices[0])
    assert net(np.zeros((2, 1, 28, 28), ctx=devices[0])).shape == (2, 10)

    def convolution(c_in, c_out, side):
        return c_in * c_out * side * side + c_out

    def residual(c_in, c_out):
        norms = 2 * 4 * c_out  # scale, shift, running mean, running variance
        return (convolution(c_in, c_out, 3) + convolution(c_out, c_out, 3) + norms
                + (convolution(c_in, c_out, 1) if c_in != c_out else 0))

    expected = convolution(1, 64, 3) + 4 * 64 + 512 * 10 + 10
    for c_in, c_out in ((64, 64), (64, 128), (128, 256), (256, 512)):
        expected += residual(c_in, c_out) + residual(c_out, c_out)
    if devices[0].device_type == 'cpu':  # Parameter.data() means the current context, cpu(0)
        assert num_weights(net) == expected


def test_shapes_between_the_layers(devices):
    net, X, shapes = resnet18(10), np.zeros((2, 1, 28, 28), ctx=devices[0]), []
    net.initialize(ctx=devices[0])
    for layer in net:
        X = layer(X)
        shapes.append(X.shape[1:])
    first, pooled = (64, 28, 28), (512, 1, 1)
    assert shapes == [first, first, first, first, (128, 14, 14), (256, 7, 7), (512, 4, 4), pooled, (10,)]


@pytest.mark.parametrize(('strides', 'side'), [(1, 9), (2, 5)])
def test_residual_shapes(devices, strides, side):
    blk = Residual(8, use_1x1conv=True, strides=strides)
    blk.initialize(ctx=devices[0])
    assert blk(np.zeros((2, 3, 9, 9), ctx=devices[0])).shape == (2, 8, side, side)


def test_residual_adds_its_input(devices):
    """With both convolutions zero, the block is relu(X)."""
    blk = Residual(3)
    blk.initialize(init=init.Zero(), ctx=devices[0])
    X = np.random.normal(size=(2, 3, 4, 4), ctx=devices[0])
    assert (blk(X) == np.maximum(X, 0)).all()


def test_hybridized_is_the_same(devices):
    net = resnet18(10)
    net.initialize(init=init.Xavier(), ctx=devices[0])
    X = np.random.uniform(size=(2, 1, 28, 28), ctx=devices[0])
    expected = net(X).asnumpy()
    net.hybridize(static_alloc=True, static_shape=True)
    difference = abs(net(X).asnumpy() - expected).max()
    assert difference < 1e-5 * abs(expected).max()  # the same sums in another order
    assert abs(expected).max() > 0


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no networks of mx.nd')
@pytest.mark.parametrize('dtype', ['float32', pytest.param('bfloat16', marks=needs_bfloat16)])
def test_with_mx_nd(dtype):
    """As after npx.reset_np(), or in another thread."""
    scores, images = [], numpy.random.default_rng(0).random((2, 1, 28, 28), 'float32')
    for kind in (mx.np, mx.nd):
        with semantics_of(kind.ones(1)):
            net, X = resnet18(10, dtype), kind.array(images)
            net.initialize(init.Constant(0.01))
            net.hybridize()
            with autograd.record():
                y_hat = net(X)
            y_hat.backward()
            scores.append(y_hat.asnumpy())
            assert type(y_hat) is type(net[-1].weight.grad()) is type(X)
    assert (scores[0] == scores[1]).all() and scores[0].all()


def test_networks_in_float32_stay():
    for net in (resnet18(10), gluon.nn.Dense(3)):
        assert in_float32(net) is net


def test_only_a_resnet18_is_copied_in_float32():
    net = resnet18(10, 'bfloat16')
    net.add(gluon.nn.Dense(10))
    net.initialize()
    net.infer_shape(np.ones((1, 1, 28, 28)))
    for param in net.collect_params().values():
        param._finish_deferred_init()
    with pytest.raises(ValueError, match='zip'):
        in_float32(net)


class Twice(Residual):
    """Subclass that doubles the parent's result."""

    def forward(self, X):
        return 2 * super().forward(X)


class Plain(Residual):
    """Subclass without changes."""


class Thrice(Twice):
    def forward(self, X):
        return super().forward(X) + Residual.forward(self, X)


@pytest.mark.parametrize('copied', [copy.copy, copy.deepcopy])
def test_a_copy_of_a_block_has_its_own_attributes(copied):
    blk, X = Twice(3), np.ones((2, 3, 4, 4))
    blk.initialize(init=init.Zero())
    assert (blk(X) == 2).all()
    other = copied(blk)
    other.relu2 = gluon.nn.Activation('sigmoid')
    sigmoid = 1 / (1 + np.exp(-X))
    assert abs(other(X) - 2 * sigmoid).max() < 1e-6 and (blk(X) == 2).all()


@pytest.mark.parametrize('make_fast', [lambda net: net, hybridize_in_place])
@pytest.mark.parametrize(('cls', 'factor'), [(Plain, 1), (Twice, 2), (Thrice, 3)])
def test_residual_can_be_subclassed(devices, cls, factor, make_fast):
    """Alone or as a layer of a network, normally or hybridized."""
    blk, X = cls(3), np.random.normal(size=(2, 3, 4, 4), ctx=devices[0])
    blk.initialize(init=init.Zero(), ctx=devices[0])
    net = gluon.nn.HybridSequential()
    net.add(blk)
    for network in (blk, net):
        assert (make_fast(network)(X) == factor * np.maximum(X, 0)).all()


def test_each_device_keeps_its_own_batch_norm_statistics(devices):
    blk = Residual(2)
    blk.initialize(ctx=devices)
    for i, device in enumerate(devices):
        with autograd.record():
            y = blk(np.random.normal(loc=10 * i, size=(8, 2, 4, 4), ctx=device))
        y.backward()  # MXNet 2 updates them here, MXNet 1.9 in the forward pass
    means = [blk.bn1.running_mean.data(device).asnumpy() for device in devices]
    assert abs(means[0] - means[1]).max() > 0
