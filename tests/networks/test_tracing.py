"""Tests of tracing: arguments, outputs, and networks that cannot be traced."""
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest

from gluon_mgpu.base.nested import leaves
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, autograd, gluon, mx, np, npx
from gluon_mgpu.networks.hybridize.block import hybridized
from gluon_mgpu.networks.hybridize.graph_operators import operators_of
from gluon_mgpu.networks.hybridize.tracing import trace_block
from gluon_mgpu.outputs.onnx_model.graph import semantics_of


def test_arguments_are_matched_by_position(devices):
    @hybridized
    def subtract_second_used_first(a, b):
        return -b + a

    a, b = np.array([5.0], ctx=devices[0]), np.array([2.0], ctx=devices[0])
    assert subtract_second_used_first(a, b).tolist() == [3.0]


def test_an_argument_that_is_not_used(devices):
    @hybridized
    def first(a, b, params):
        return a * params[1]

    a = np.array([5.0], ctx=devices[0])
    assert first(a, a, [a, np.array([2.0], ctx=devices[0])]).tolist() == [10.0]


@pytest.mark.parametrize('names', [{'np': np, 'npx': npx}, {'mnp': np, 'operators': npx}])
def test_np_and_npx_may_have_any_names_in_a_module(devices, names):
    x, ops = names
    namespace = dict(names)
    exec(f'def f(a, b):\n    return {ops}.relu({x}.dot(a, b)) + {x}.tanh(a)', namespace)
    a, b = (np.random.normal(size=(3, 3), ctx=devices[0]) for _ in 'ab')
    assert abs(hybridized(namespace['f'])(a, b) - namespace['f'](a, b)).max() < 1e-6  # float32


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


def test_several_inputs_and_an_unused_one(devices):
    class Difference(HybridBlock):
        def forward(self, a, b, c):
            return b - a

    a, b, c = (np.array([n], ctx=devices[0]) for n in (5.0, 2.0, 9.0))
    assert hybridized(Difference())(a, b, c).tolist() == [-3]


def test_a_network_that_cannot_be_traced_is_an_error(devices, tmp_path):
    def unknown(X):
        return X.no_such_method()

    class Unknown(HybridBlock):
        def forward(self, X):
            return unknown(X)

    def asks(X):
        return X if X.sum() > 0 else -X

    def takes_rows(X):
        return X[[0, 1]]

    def takes_last(X):  # MXNet 1.9's symbols cannot
        return X[-1]

    X = np.ones((2, 3), ctx=devices[0])
    networks = {'unknown': unknown, 'Unknown': Unknown(), 'asks': asks, 'takes_rows': takes_rows}
    if MXNET_MAJOR < 2:
        networks['takes_last'] = takes_last
        net = gluon.nn.Dense(2)
        net.initialize(ctx=devices)
        net.hybridize()
        net(X)
        net.export(str(tmp_path / 'net'))
        networks['SymbolBlock'] = gluon.SymbolBlock.imports(f'{tmp_path}/net-symbol.json', ['data'],
                                                            f'{tmp_path}/net-0000.params', ctx=devices)
    for name, network in networks.items():
        with pytest.raises(ValueError, match=rf'^{name} cannot be traced \(.*\): write it so that'):
            hybridized(network)(X)
    if MXNET_MAJOR < 2:
        assert networks['SymbolBlock'](X).tolist() == net(X).tolist()  # it still works


@pytest.mark.parametrize('k', [3, None, [None, 2.0]])
def test_arguments_that_are_no_arrays(k, devices):
    """With None, the network is traced; with others, it runs as it is."""
    class Net(HybridBlock):
        def forward(self, X, k):
            scale = k[1] if isinstance(k, list) else k
            return X if scale is None else X * scale

    net, X = Net(), np.ones((1, 2), ctx=devices[0])
    forward = getattr(Net.forward, '__wrapped__', Net.forward)  # on MXNet 1.9, `HybridBlock` wraps it
    for network in (lambda X, k: forward(None, X, k), net):
        fast = hybridized(network)
        for _ in range(2):
            assert fast(X, k).tolist() == [[(k[1] if isinstance(k, list) else k) or 1] * 2]


def test_an_array_of_numpy_is_refused_at_each_call(devices):
    net = gluon.nn.Dense(2)
    net.initialize(ctx=devices)
    fast = hybridized(net)
    for _ in range(2):
        fast(np.ones((1, 2), ctx=devices[0]))
        with pytest.raises(ValueError, match='^an argument is an array of NumPy: pass arrays of MXNet'):
            fast(numpy.ones((1, 2), 'float32'))


def test_arguments_in_other_lists_are_traced_again(devices):
    def f(X, mask=None):
        return 2 * X if mask is None else X * mask

    def first_of(X, params):
        return X * params[0]

    def first_of_each(X, params):
        return X * params[0][0] + params[1][0]

    X, w = np.ones((2, 3), ctx=devices[0]), np.array([1, 2, 3], ctx=devices[0])
    calls = {f: [(X,), (X, w)], first_of: [(X, w), (X, [w]), (X, (w,)), (X, [w, X])],
             first_of_each: [(X, [[w], [X]]), (X, ([X], (w, w)))]}
    for function, arguments in calls.items():
        fast = hybridized(function)
        for args in arguments:
            assert fast(*args).tolist() == function(*args).tolist()


def test_types_of_lists_are_told_apart(devices):
    Two, X = namedtuple('Two', 'first second'), np.ones((1, 2), ctx=devices[0])
    fast = hybridized(lambda X, pair: pair.second if isinstance(pair, Two) else X * {list: 1, tuple: 2}[type(pair)])
    for _ in range(2):
        assert [fast(X, pair).tolist()[0][0] for pair in ([X], (X,), Two(X, 3 * X))] == [1, 2, 3]


def test_arrays_of_np_and_nd_are_told_apart(devices):
    kinds, fast = [np.ndarray, mx.nd.NDArray], hybridized(lambda X: X.sum())
    for X in [np.ones((1, 2), ctx=devices[0]), mx.nd.ones((1, 2), ctx=devices[0])] * 2:
        assert (type(fast(X)), fast(X).shape) == (type(X), X.sum().shape) and type(X) in kinds


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 traces with arrays')
def test_a_function_with_a_layer(devices):
    layer = gluon.nn.Dense(2, in_units=3)
    layer.initialize(ctx=devices)
    with pytest.raises(ValueError, match='^<lambda> uses .*_bias.*, which is not among its arguments: make it a Hybri'):
        hybridized(lambda X: layer(X))(np.ones((1, 3), ctx=devices[0]))


@pytest.mark.parametrize('kind', [type('Rows', (list,), {}), type('Pair', (tuple,), {})])
def test_lists_of_other_classes(kind, devices):
    """The network may ask for them."""
    class Net(HybridBlock):
        def forward(self, arrays):
            return arrays[0] * (2 if isinstance(arrays, kind) else 3)

    fast, X = hybridized(Net()), np.ones(2, ctx=devices[0])
    assert [fast(kind([X])).tolist(), fast(kind.__base__([X])).tolist()] == [[2, 2], [3, 3]]


@pytest.mark.parametrize('dtype', ['int32', 'uint8', 'bool', 'float16', 'float64'])
def test_numbers_keep_the_dtype_as_in_plain_gluon(dtype, devices):
    """MXNet 1.9 says for symbols only that a number is no integer, which makes integers float64.

    Symbols of MXNet 2, which functions are traced with, do not have that difference.
    """
    def compute(X):
        return [X * 1.5, 2 * X, X + 1.7, 3 - X, X / 2, 1 - X * 2]

    class Net(HybridBlock):
        def forward(self, X):
            return compute(X)

    X = np.array([1, 0, 1], dtype=dtype, ctx=devices[0])
    for fast in (hybridized(Net()), *([hybridized(compute)] if MXNET_MAJOR < 2 else [])):
        assert ([(result.dtype, result.tolist()) for result in fast(X)]
                == [(result.dtype, result.tolist()) for result in compute(X)])


def test_a_block_that_takes_lists(devices):
    class Net(HybridBlock):
        def __init__(self):
            super().__init__()
            self.layer = gluon.nn.Dense(4)

        def forward(self, X, pair):
            return self.layer(X) * pair[0], pair[1][0]

    net, X = Net(), np.ones((2, 3), ctx=devices[0])
    net.initialize(ctx=devices)
    fast, first, second = hybridized(net), np.full((2, 4), 2, ctx=devices[0]), np.full((2, 4), 3, ctx=devices[0])
    for pair in ([first, [second]], (second, (first,)), [first, [second, X]]):
        gradients = []
        for call in (net, fast):
            with autograd.record():
                Y, other = call(X, pair)
            Y.backward()
            gradients.append([Y.tolist(), other.tolist(), net.layer.weight.grad(devices[0]).tolist()])
        assert gradients[0] == gradients[1]


def test_an_lstm_with_its_states(devices):
    net, X = gluon.rnn.LSTM(4), np.ones((5, 2, 3), ctx=devices[0])
    net.initialize(ctx=devices)
    states = net.begin_state(2, ctx=devices[0])
    expected, found = (leaves(call(X, states)) for call in (net, hybridized(net)))
    assert len(found) == 3 and [Y.tolist() for Y in found] == [Y.tolist() for Y in expected]


def test_a_first_call_in_several_threads(devices):
    nets = []
    for _ in range(10):
        net = gluon.nn.HybridSequential()
        net.add(*[gluon.nn.Dense(8, in_units=8) for _ in range(10)])
        net.initialize(ctx=devices)
        nets.append(net)
    X = np.ones((2, 8), ctx=devices[0])
    for net in nets:
        fast, expected = hybridized(net), net(X).tolist()
        with ThreadPoolExecutor(4) as pool:
            assert all(y.tolist() == expected for y in pool.map(fast, [X] * 4))


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
    with pytest.raises(ValueError, match="^Unused does not use its parameter 'dense\\d+_weight', whose shape is "
                                         'therefore unknown: remove that layer, or give it in_units'):
        hybridized(net)(X)
    net.unused.weight.shape = (2, 4)
    net.initialize(ctx=devices, force_reinit=True)
    assert hybridized(net)(X).tolist() == net(X).tolist()


@pytest.mark.parametrize('lists', [lambda *Y: [Y[0]], lambda *Y: Y, lambda *Y: [Y[0], (Y[1], Y[0])]])
def test_lists_of_outputs(lists, devices):
    class Several(HybridBlock):
        def forward(self, a):
            return lists(a * 2, a * 3)

    def several(a):
        return lists(a * 2, a * 3)

    a = np.ones(2, ctx=devices[0])
    a.attach_grad()
    for network in (Several(), several):
        results = []
        for call in (network, hybridized(network)):
            with autograd.record():
                outputs = call(a)
                l = leaves(outputs)[-1].sum()
            l.backward()
            results.append(f'{outputs} {a.grad}')
        assert results[0] == results[1]


def test_default_values():
    @hybridized
    def f(X, Y=2, *, scale=3.0):
        return X * Y * scale

    assert f(np.ones(1)).item() == 6
