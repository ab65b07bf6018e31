"""Networks of many kinds, for MXNet 1.9 and 2: recurrent ones, attention, recommenders, 1-D to 3-D convolutions.

`NETWORKS` maps names to functions that return a network and its examples. `ZOO` has sizes of images for networks of
MXNet's model zoo.
"""
import os
import re
import shutil

import numpy
import onnx
import onnxruntime
from equals_one import sequential

from gluon_mgpu.base.nested import leaves, refill
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, autograd, gluon, init, mx, np
from gluon_mgpu.programs.onnx.examples import array_like
from gluon_mgpu.programs.onnx.writing import to_onnx

nn, rnn = gluon.nn, gluon.rnn
NETWORKS = {}
ZOO = {'alexnet': 224, 'vgg11': 64, 'vgg11_bn': 64, 'resnet18_v1': 64, 'resnet18_v2': 64, 'squeezenet1.1': 224,
       'densenet121': 224, 'inceptionv3': 299, 'mobilenet0.25': 64, 'mobilenetv2_0.25': 64}


def network(function):
    NETWORKS[function.__name__] = function
    return function


def from_zoo(name):
    """Return a network of the model zoo and its examples; on MXNet 1.9, some work with arrays of ``mx.nd`` only."""
    image = random(1, 3, ZOO[name], ZOO[name])
    return gluon.model_zoo.vision.get_model(name, classes=10), [image if MXNET_MAJOR >= 2 else image.as_nd_ndarray()]


def run_model(path, *arrays):
    """Return the results of a model in onnxruntime, at the second call; arrays may be NumPy's."""
    session = onnxruntime.InferenceSession(path, providers=['CPUExecutionProvider'])
    feeds = {value.name: array if isinstance(array, numpy.ndarray) else array.asnumpy()
             for value, array in zip(session.get_inputs(), arrays)}
    session.run(None, feeds)
    return session.run(None, feeds)


def check(net, examples, **settings):
    """Export a network and compare its results for three times as many rows, independently of the export's check.

    Return the line of the export.
    """
    lines = []
    to_onnx(net, 'a.onnx', *examples, log=lines.append, **settings)
    line, = lines
    assert line.startswith('model: a.onnx, checked in onnxruntime: ')
    arrays = leaves(examples)
    axes = settings.get('batch_axis', [0] * len(arrays))
    tripled = [array_like(array, numpy.concatenate([array.asnumpy()] * (1 if axis is None else 3), axis or 0))
               for array, axis in zip(arrays, axes)]
    with autograd.pause():
        results = net(*refill(examples, iter(tripled)))
    compare('a.onnx', tripled, [array.asnumpy() for array in leaves(results)])
    return line


def compare(path, inputs, expected):
    """Compare the results of a model."""
    graph = onnx.load(path).graph
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    assert all(read & {*node.output} for node in graph.node)  # others confuse old versions of onnxruntime
    found = run_model(path, *inputs)
    assert len(found) == len(expected)
    for Y_found, Y in zip(found, expected):
        assert Y_found.shape == Y.shape and Y_found.dtype == Y.dtype
        difference = abs(Y_found.astype('float64') - Y).max()
        assert abs(Y).max() > 0 and difference <= 1e-5 * abs(Y).max()
    if folder := os.environ.get('SAVE_MODELS'):  # for tools/compare_models.py
        name = f'{folder}/{len(os.listdir(folder)):05}'
        numpy.savez(f'{name}.npz', test=os.environ['PYTEST_CURRENT_TEST'],
                    **{f'input{i}': array.asnumpy() for i, array in enumerate(inputs)},
                    **{f'output{i}': array for i, array in enumerate(expected)})
        shutil.copyfile(path, f'{name}.onnx')


def trained(net, *examples, initializer=None):
    """Return a network with parameters that make mistakes visible: biases and statistics are not 0, scales not 1."""
    net.initialize(initializer or init.Uniform(0.3))
    with autograd.pause():
        net(*examples)
    rng = numpy.random.default_rng(0)
    for name, param in net.collect_params().items():
        if len(param.shape) == 1:
            low, high = (0.5, 1.5) if re.search('gamma|running_var', name) else (-0.2, 0.2)
            param.set_data(array_like(param.data(), rng.uniform(low, high, param.shape)))
    return net


def random(*shape):
    return np.array(numpy.random.default_rng(0).normal(size=shape), dtype='float32')


def numbers(high, *shape):
    return np.array(numpy.random.default_rng(0).integers(0, high, shape), dtype='int32')


class Lambda(HybridBlock):
    """A function of ``F``, which has `np` and `npx`, and of the results of layers."""

    def __init__(self, function, *layers):
        super().__init__()
        self._function, self.layers = function, sequential(*layers)

    def forward(self, *args):
        return self._function(mx.sym if isinstance(args[0], mx.sym.Symbol) else mx, *self.layers, *args)


def conv(channels, kernel=3, **settings):
    return nn.Conv2D(channels, kernel, activation='relu', **settings)


@network
def unet():
    up = nn.Conv2DTranspose(4, 3, 2, 1, output_padding=1, activation='relu')
    return Lambda(lambda F, top, down, up, last, X: last(F.np.concatenate([top(X), up(down(top(X)))], axis=1)),
                  conv(4, padding=1), conv(8, strides=2, padding=1), up, nn.Conv2D(2, 1)), [random(1, 1, 16, 16)]


@network
def style_transfer():
    norms = [nn.InstanceNorm(), nn.GroupNorm(2)] if MXNET_MAJOR >= 2 else []  # MXNet 1.9 has them for mx.nd only
    return sequential(nn.Conv2D(4, 3), *norms, nn.LeakyReLU(0.1), nn.ELU(), nn.Conv2D(4, 3), nn.BatchNorm(axis=3),
                      nn.SELU(), nn.PReLU(), nn.Swish()), [random(2, 3, 12, 12)]


@network
def squeeze_and_excitation():
    gate = sequential(nn.GlobalAvgPool2D(), conv(2, 1), nn.Conv2D(8, 1), nn.Activation('sigmoid'))
    return Lambda(lambda F, first, gate, X: (lambda Y: F.np.mean(Y * gate(Y) + F.np.exp(-Y), axis=(2, 3)))(first(X)),
                  sequential(nn.Conv2D(8, 3, groups=1), nn.BatchNorm(scale=False), nn.Conv2D(8, 3, groups=4)), gate), [
        random(2, 3, 12, 12)]


@network
def waves():
    return sequential(*(nn.Conv1D(8, 2, dilation=2**i, activation='tanh') for i in range(3)), nn.MaxPool1D(2, 2),
                      nn.Conv1DTranspose(4, 3, 2), nn.BatchNorm(), nn.GlobalMaxPool1D(), nn.Dense(3)), [
        random(2, 4, 40)]


@network
def video():
    return sequential(nn.Conv3D(4, 3, padding=1, activation='relu'), nn.BatchNorm(), nn.MaxPool3D((1, 2, 2)),
                      nn.Conv3D(8, (3, 3, 3), strides=(1, 2, 2)), nn.AvgPool3D(2), nn.GlobalAvgPool3D(), nn.Dense(5)), [
        random(1, 3, 8, 16, 16)]


@network
def text_cnn():
    def forward(F, words, first, second, decoder, X):
        Y = F.np.swapaxes(words(X), 1, 2)
        return decoder(F.np.concatenate([F.np.max(branch(Y), axis=2) for branch in (first, second)], axis=1))
    return Lambda(forward, nn.Embedding(50, 8), nn.Conv1D(6, 3, activation='relu'), nn.Conv1D(6, 5, activation='relu'),
                  nn.Dense(2)), [numbers(50, 2, 12)]


@network
def text_rnn():
    def forward(F, words, encoder, decoder, X):
        Y = encoder(F.np.swapaxes(words(X), 0, 1))  # (T, n, 2 * hidden)
        return decoder(F.np.concatenate([Y[0], Y[11]], axis=1))
    return Lambda(forward, nn.Embedding(50, 8), rnn.LSTM(6, num_layers=2, bidirectional=True), nn.Dense(2)), [
        numbers(50, 2, 12)]


@network
def gru_stacked():
    return rnn.GRU(5, num_layers=3, layout='NTC'), [random(2, 6, 3)]


@network
def rnn_relu():
    return sequential(rnn.RNN(5, layout='NTC'), rnn.RNN(4, activation='tanh', layout='NTC', bidirectional=True),
                      nn.Dense(3, flatten=False)), [random(2, 6, 3)]


@network
def language_model():
    def forward(F, words, gru, decoder, X, state):
        Y, new = gru(F.np.swapaxes(words(X), 0, 1), state)
        return decoder(Y), new[0] if isinstance(new, (list, tuple)) else new
    return Lambda(forward, nn.Embedding(20, 8), rnn.GRU(6), nn.Dense(20, flatten=False)), [
        numbers(20, 2, 7), random(1, 2, 6)]


def attention(F, queries, keys, values, X):
    def split(Y):  # (n, T, 8) -> (n, heads, T, 4)
        return F.np.transpose(F.npx.reshape(Y, (-2, -2, 2, -1)), axes=(0, 2, 1, 3))
    scores = F.np.einsum('nhqd,nhkd->nhqk', split(queries(X)), split(keys(X))) / 2
    Y = F.np.einsum('nhqk,nhkd->nhqd', F.npx.softmax(scores, axis=-1), split(values(X)))
    return F.npx.reshape(F.np.transpose(Y, axes=(0, 2, 1, 3)), (-2, -2, -1))


@network
def transformer_encoder():
    def dense(size):
        return nn.Dense(size, flatten=False)

    def forward(F, words, queries, keys, values, project, norm1, expand, gelu, shrink, norm2, X):
        E = words(X) * 8 ** 0.5
        E = norm1(E + project(attention(F, queries, keys, values, E)))
        return norm2(E + shrink(gelu(expand(E))))
    return Lambda(forward, nn.Embedding(30, 8), dense(8), dense(8), dense(8), dense(8), nn.LayerNorm(), dense(16),
                  nn.GELU(), dense(8), nn.LayerNorm()), [numbers(30, 2, 5)]


@network
def masked_attention():
    def forward(F, queries, keys, X, lengths):
        scores = F.npx.batch_dot(queries(X), keys(X), transpose_b=True)
        rows = F.npx.sequence_mask(X, lengths, use_sequence_length=True, axis=1, value=-1)
        return F.npx.batch_dot(F.npx.softmax(scores, axis=-1), rows), F.npx.log_softmax(scores, axis=1)
    return Lambda(forward, nn.Dense(8, flatten=False), nn.Dense(8, flatten=False)), [
        random(3, 5, 4), np.array([1, 5, 3], dtype='float32')]


@network
def vision_transformer():
    def forward(F, patches, queries, keys, values, norm, head, X):
        E = F.np.transpose(F.npx.reshape(patches(X), (-2, -2, -1)), axes=(0, 2, 1))
        E = E + attention(F, queries, keys, values, norm(E))
        return head(F.np.mean(E, axis=1))
    return Lambda(forward, nn.Conv2D(8, 4, 4), *(nn.Dense(8, flatten=False) for _ in range(3)), nn.LayerNorm(),
                  nn.Dense(10)), [random(1, 1, 16, 16)]


@network
def neural_matrix_factorization():
    def forward(F, P, Q, U, V, tower, head, user, item):
        Y = tower(F.np.concatenate([U(user), V(item)], axis=1))
        return F.npx.sigmoid(head(F.np.concatenate([P(user) * Q(item), Y], axis=1)))
    embeddings = (nn.Embedding(size, 4) for size in (9, 7, 9, 7))
    return Lambda(forward, *embeddings, sequential(nn.Dense(8, activation='relu'), nn.Dense(4)), nn.Dense(1)), [
        numbers(9, 3), numbers(7, 3)]


@network
def factorization_machine():
    def forward(F, embedding, linear, X):
        E = embedding(X)
        squares = F.np.square(F.np.sum(E, axis=1)) - F.np.sum(F.np.square(E), axis=1)
        return F.npx.sigmoid(F.np.sum(linear(X), axis=1) + 0.5 * F.np.sum(squares, axis=1, keepdims=True))
    return Lambda(forward, nn.Embedding(20, 4), nn.Embedding(20, 1)), [numbers(20, 3, 5)]


@network
def siamese():
    def forward(F, tower, A, B):
        a, b = (Y / F.np.sqrt(F.np.sum(Y * Y, axis=1, keepdims=True)) for Y in (tower(A), tower(B)))
        return F.np.sum(a * b, axis=1), F.np.stack([a, b], axis=1)
    return Lambda(forward, sequential(conv(4, 3), nn.MaxPool2D(3, 2, padding=1), nn.GlobalMaxPool2D(), nn.Dense(6))), [
        random(2, 1, 9, 9), random(2, 1, 9, 9)]
