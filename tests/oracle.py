"""The book's networks in NumPy and in Gluon, as references for those of the package."""
import numpy
from numpy.lib.stride_tricks import sliding_window_view

from gluon_mgpu.mxnet_setup.compat import gluon, np

LENET_SHAPES = [(20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,), (800, 128), (128,), (128, 10), (10,)]


def lenet_params(rng, scale=0.01, dtype='float32'):
    """Return LeNet's parameters as NumPy arrays, with biases that are not zero."""
    return [rng.normal(scale=scale, size=shape).astype(dtype) for shape in LENET_SHAPES]


def to_mx(arrays):
    return [np.array(a, dtype=a.dtype) for a in arrays]


def images(rng, n, dtype='float32'):
    """Return n random images and their labels."""
    return rng.random((n, 1, 28, 28)).astype(dtype), rng.integers(0, 10, n).astype('int32')


def bright_halves(rng, n, side=28, axis=2):
    """Return n images, bright in their first or second half along an axis, and the number of that half as label."""
    y = rng.integers(0, 2, n).astype('int32')
    X = 0.1 * rng.random((n, 1, side, side)).astype('float32')
    for label in (0, 1):
        half = slice(label * side // 2, (label + 1) * side // 2)
        numpy.moveaxis(X, axis, 1)[y == label, half] += 0.9
    return X, y


def numpy_lenet(X, params):
    """Compute LeNet's scores in NumPy."""
    W1, b1, W2, b2, W3, b3, W4, b4 = params

    def convolution(X, W, b):
        windows = sliding_window_view(X, W.shape[2:], axis=(2, 3))  # (n, c, h, w, kh, kw)
        return numpy.einsum('nchwij,ocij->nohw', windows, W, optimize=True) + b[:, None, None]

    def average_pooling(X):
        n, c, h, w = X.shape
        X = X[:, :, :h // 2 * 2, :w // 2 * 2]
        return X.reshape(n, c, h // 2, 2, w // 2, 2).mean(axis=(3, 5))

    h1 = average_pooling(numpy.maximum(convolution(X, W1, b1), 0))
    h2 = average_pooling(numpy.maximum(convolution(h1, W2, b2), 0)).reshape(len(X), 800)
    h3 = numpy.maximum(h2 @ W3 + b3, 0)
    return h3 @ W4 + b4


def numpy_loss(y_hat, y):
    """Compute the softmax cross-entropy of every row in NumPy."""
    y_hat = y_hat - y_hat.max(axis=1, keepdims=True)
    return numpy.log(numpy.exp(y_hat).sum(axis=1)) - y_hat[numpy.arange(len(y)), y]


def gluon_lenet(params, devices):
    """Return LeNet as Gluon layers on `devices`, with the given parameters (NumPy arrays)."""
    nn = gluon.nn
    net = nn.HybridSequential()
    net.add(nn.Conv2D(20, 3, activation='relu'), nn.AvgPool2D(2, 2),
            nn.Conv2D(50, 5, activation='relu'), nn.AvgPool2D(2, 2),
            nn.Dense(128, activation='relu'), nn.Dense(10))
    dtype = params[0].dtype.name
    net.initialize(ctx=devices)
    for device in devices:
        net(np.zeros((1, 1, 28, 28), ctx=device))  # decides the shapes
    net.cast(dtype)
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    layers = [(net[0], W1, b1), (net[2], W2, b2), (net[4], W3.T, b3), (net[5], W4.T, b4)]
    for layer, weight, bias in layers:
        layer.weight.set_data(np.array(weight, dtype=dtype))
        layer.bias.set_data(np.array(bias, dtype=dtype))
    return net


def gluon_lenet_params(net, device):
    """Return the parameters of `gluon_lenet` on one device, in the order and layout of the scratch chapter."""
    layers = [net[0], net[2], net[4], net[5]]
    arrays = [p.data(device).asnumpy() for layer in layers for p in (layer.weight, layer.bias)]
    return [a.T if a.ndim == 2 else a for a in arrays]
