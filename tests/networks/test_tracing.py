"""Tests of tracing a block, for synchronized batch norm: arguments, outputs, and blocks that cannot be traced."""
import pytest

from gluon_mgpu import SyncBatchNorm
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, autograd, gluon, mx, np
from gluon_mgpu.networks.graph_operators import operators_of
from gluon_mgpu.networks.tracing import trace_block
from gluon_mgpu.programs.onnx.graph import semantics_of


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no networks of mx.nd')
@pytest.mark.parametrize('grad_req, added', [('write', []), ('null', ['_npi_add'])])
def test_only_a_dense_layer_with_a_frozen_weight_gets_another_operator_for_its_bias(grad_req, added):
    """A weight that is cast, as by MXNet's amp, is trained as well. The sum would be rounded once more."""
    class Cast(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.weight = self.params.get('weight', shape=(2, 3), grad_req=grad_req)
            self.bias = self.params.get('bias', shape=(2,))

        def hybrid_forward(self, F, X, weight, bias):
            return F.FullyConnected(X, F.amp_cast(weight, dtype='float32'), bias, num_hidden=2)

    with semantics_of(mx.nd.ones(1)):
        net = Cast()
        net.initialize()
        graph = trace_block(net, (mx.nd.ones((1, 3)),))[0]
    assert [operator.node['op'] for operator in operators_of(graph)[0]] == ['amp_cast', 'FullyConnected', *added]


def test_several_inputs_and_lists(devices):
    class Net(HybridBlock):
        def forward(self, a, pair, unused):
            return [pair[1][0] - a, (pair[0],)]

    a, b, c = (np.ones(n, ctx=devices[0]) for n in (1, 1, 2))
    graph, names, lists, params = trace_block(Net(), (a, [c, (b,)], c))
    assert len(names) == 4 and len(graph.list_inputs()) == 3 and not params
    assert (lists, len(graph.list_outputs())) == ([True, (True,)], 2)


def test_a_block_that_cannot_be_traced_is_an_error(devices, tmp_path):
    class Unknown(HybridBlock):
        def forward(self, X):
            return X.no_such_method()

    class Asks(HybridBlock):
        def forward(self, X):
            return X if X.sum() > 0 else -X

    X, networks = np.ones((2, 3), ctx=devices[0]), [Unknown()]
    if MXNET_MAJOR < 2:  # MXNet 2 traces with arrays
        net = gluon.nn.Dense(2)
        net.initialize(ctx=devices)
        net.hybridize()
        net(X)
        net.export(str(tmp_path / 'net'))
        networks += [Asks(), gluon.SymbolBlock.imports(f'{tmp_path}/net-symbol.json', ['data'],
                                                       f'{tmp_path}/net-0000.params', ctx=devices)]
    for network in networks:
        with pytest.raises(ValueError, match=rf'^{type(network).__name__} cannot be traced \(.*\)'):
            trace_block(network, (X,))
    if MXNET_MAJOR < 2:
        assert networks[-1](X).tolist() == net(X).tolist()  # it still works


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 traces only the layers that are used')
def test_an_unused_layer_of_unknown_shape_is_an_error(devices):
    class Unused(HybridBlock):
        def __init__(self):
            super().__init__()
            self.used, self.unused = gluon.nn.Dense(3), gluon.nn.Dense(2)

        def forward(self, X):
            return self.used(X)

    net, X = Unused(), np.ones((2, 4), ctx=devices[0])
    net.initialize(ctx=devices)
    with pytest.raises(ValueError, match=r"^Unused cannot be traced \('dense\d+_weight'\): pass inputs that fit"):
        trace_block(net, (X,))
    net.unused.weight.shape = (2, 4)
    net.initialize(ctx=devices, force_reinit=True)
    trace_block(net, (X,))


@pytest.mark.parametrize('active', [True, False])
def test_a_network_with_inputs_of_a_wrong_shape(active, devices):
    """Hybridized or not, it can be called afterwards."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(3, in_units=4), gluon.nn.BatchNorm())
    net.initialize(ctx=devices)
    net.hybridize(active)
    synchronized = SyncBatchNorm(net)
    with autograd.record():
        with pytest.raises(ValueError, match=r'^HybridSequential cannot be traced \(.*\): pass inputs that fit'):
            synchronized.forward([np.ones((5, 3), ctx=devices[0])])
        assert synchronized.forward([np.ones((5, 4), ctx=devices[0])])[0].shape == (5, 3)
    assert net._active is active
