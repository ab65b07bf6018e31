"""ResNet-18: its layers and its size."""
import numpy
import pytest
from bfloat16 import needs_bfloat16

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, init, mx, np
from gluon_mgpu.networks.resnet import Residual, in_float32, resnet18
from gluon_mgpu.programs.onnx.graph import semantics_of


def test_the_number_of_parameters():
    net = resnet18(10)
    net.initialize()
    net(np.zeros((2, 1, 28, 28)))
    # 3x3 convolutions c -> d and three d -> d, each with bias and batch norm (4 d); for another size, a 1x1 with bias
    blocks = sum(9 * c * d + 27 * d * d + 4 * 5 * d + (c * d + d if c < d else 0)
                 for c, d in ((64, 64), (64, 128), (128, 256), (256, 512)))
    assert sum(p.data().size for p in net.collect_params().values()) == 9 * 64 + 5 * 64 + blocks + 512 * 10 + 10


def test_shapes_between_the_layers(devices):
    net, X, shapes = resnet18(10), np.zeros((2, 1, 28, 28), ctx=devices[0]), []
    net.initialize(ctx=devices[0])
    for layer in net:
        X = layer(X)
        shapes.append(X.shape[1:])
    first, pooled = (64, 28, 28), (512, 1, 1)
    assert shapes == [first, first, first, first, (128, 14, 14), (256, 7, 7), (512, 4, 4), pooled, (10,)]


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


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='lower precision needs MXNet 1.9')
def test_only_a_resnet18_is_copied_in_float32():
    net = resnet18(10, 'bfloat16')
    net.add(gluon.nn.Dense(10))
    net.initialize()
    net.infer_shape(np.ones((1, 1, 28, 28)))
    for param in net.collect_params().values():
        param._finish_deferred_init()
    with pytest.raises(ValueError, match='zip'):
        in_float32(net)
