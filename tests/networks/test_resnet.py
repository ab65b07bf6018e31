"""ResNet-18: its layers and its size."""
from gluon_mgpu.mxnet_setup.compat import gluon, init, np
from gluon_mgpu.networks.resnet import Residual, in_float32, resnet18


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


def test_networks_in_float32_stay():
    for net in (resnet18(10), gluon.nn.Dense(3)):
        assert in_float32(net) is net
