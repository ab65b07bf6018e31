"""Tests of the graph of a network or function."""
import functools
import re

import onnx
import pytest
from exported import random, run_model

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, gluon, np, npx
from gluon_mgpu.networks.hybridized import hybridized
from gluon_mgpu.programs.onnx.export import to_onnx

nn, rnn = gluon.nn, gluon.rnn
mxnet_1 = pytest.mark.skipif(MXNET_MAJOR >= 2, reason='needs MXNet 1.9')


@mxnet_1
def test_an_overridden_forward_is_found(tmp_path):
    """MXNet traces `hybrid_forward` of a hybridized block and loses what its `forward` adds."""
    class Scaled(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(3)

        def forward(self, X):
            return super().forward(X * 4)

        def hybrid_forward(self, F, X):
            return self.dense(X)

    net, X = Scaled(), random(2, 4)
    net.initialize()
    net.hybridize()
    net(X)
    net.export('a')
    lost = gluon.SymbolBlock.imports('a-symbol.json', ['data'], 'a-0000.params')
    assert abs(lost(X) - net(X)).max() > 0.1  # MXNet's own export
    to_onnx(net, 'a.onnx', X, log=lambda line: None)
    found = run_model('a.onnx', X)[0]
    assert abs(found - net(X).asnumpy()).max() <= 1e-5 * abs(found).max()


@mxnet_1
def test_layers_that_gluon_does_not_know():
    class Net(HybridBlock):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Dense(3, in_units=4)]
            self.layers[0].initialize()

        def forward(self, X):
            return self.layers[0](X)

    net = Net()
    net.initialize()
    with pytest.raises(ValueError, match='^Net cannot be traced with .*, its parameter dense.*_weight is unknown: make '
                                         'each layer an attribute of its block'):
        to_onnx(net, 'a.onnx', random(2, 4))


def test_parameters_of_functions():
    def network(X, params):
        return npx.relu(np.dot(X, params[0]) + params[1])

    X, params = random(2, 3), [random(3, 4), random(4)]
    for names, expected in (((), ['1_0', '1_1']), (['W', 'b'], ['W', 'b'])):
        for given in (params, tuple(params), [array.asnumpy() for array in params]):
            to_onnx(network, 'a.onnx', X, given, param_names=names, log=lambda line: None)
            assert [array.name for array in onnx.load('a.onnx').graph.initializer] == expected
            assert abs(run_model('a.onnx', X)[0] - network(X, params).asnumpy()).max() <= 1e-6
    with pytest.raises(ValueError, match='^param_names: has 1 names for 2 arrays in lists'):
        to_onnx(network, 'b.onnx', X, params, param_names=['W'])
    for examples, kinds in (((X, ['a', 'b']), ['ndarray', 'str', 'str']), (([],), [])):
        with pytest.raises(ValueError, match=re.escape(f'{kinds}: the arguments of a network must be arrays')):
            to_onnx(network, 'b.onnx', *examples)


def test_a_function_that_cannot_be_traced():
    """The line has one reason and one advice."""
    def positive(X):
        return X if X.sum() > 0 else -X

    with pytest.raises(ValueError, match=r'^positive cannot be traced with inputs \(2, 3\) or \(4, 3\), [^:]*: pass '
                                         r'examples of its inputs and their batch_axis; MXNet must be able to hybrid'):
        to_onnx(positive, 'a.onnx', random(2, 3))


def test_a_decorated_function():
    """The model computes what the decorator adds, with `hybridized` around it or not."""
    def network(X):
        return X + 1

    @functools.wraps(network)
    def doubled(X):
        return network(X) * 2

    X = random(2, 3)
    for function, expected in ((doubled, X * 2 + 2), (hybridized(doubled), X * 2 + 2), (hybridized(network), X + 1)):
        to_onnx(function, 'a.onnx', X, log=lambda line: None)
        assert abs(run_model('a.onnx', X)[0] - expected.asnumpy()).max() <= 1e-6
