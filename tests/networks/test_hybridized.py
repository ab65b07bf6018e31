"""A hybridized function computes the same as the original, for any arguments."""
import functools
import gc
import itertools
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import numpy
import pytest

from gluon_mgpu.base.nested import leaves, refill
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, graph_to_json, mx, np, npx
from gluon_mgpu.networks import hybridized as module
from gluon_mgpu.networks.hybridized import MAX_OPERATORS, hybridized


@hybridized
def dense(X, params, scale):
    W, b = params
    return npx.relu(np.dot(X, W) + b) * scale


def arrays(n, device):
    X = np.random.uniform(0.1, 1, size=(n, 3), ctx=device)  # positive like the weights, so relu is not always 0
    params = [np.random.uniform(0.1, 1, size=(3, 2), ctx=device), np.random.uniform(size=2, ctx=device)]
    return X, params, np.random.normal(size=2, ctx=device)


def check_same(fast, *args):
    """Compare values and gradients with those of the function as it is written."""
    found = []
    for call in (fast, fast.function):
        for array in leaves(args):
            array.attach_grad()
        with autograd.record():
            outputs = call(*args)
            last = leaves(outputs)[-1]
        last.backward()
        values = [array.asnumpy() for array in (*leaves(outputs), *(array.grad for array in leaves(args)))]
        found.append((str(refill(outputs, repeat(last.ctx))), values))
    assert found[0][0] == found[1][0]
    for by_graph, as_written in zip(found[0][1], found[1][1], strict=True):
        assert by_graph.dtype == as_written.dtype
        numpy.testing.assert_allclose(by_graph, as_written, rtol=1e-5, atol=1e-6)  # float32, the same few operations


def test_values_and_gradients(devices):
    """Also with other parameters on the same device, whose gradients stay as they were."""
    kept = []
    for n, device in itertools.product((4, 1, 4, 7), devices):
        X, params, scale = arrays(n, device)
        check_same(dense, X, params, scale)
        assert params[0].grad.any()
        kept.append((params[0].grad, params[0].grad.copy()))
    for gradient, expected in kept:
        assert (gradient == expected).all()


def test_several_calls_before_a_backward_pass(devices):
    """The operator reuses its memory, but not that of its results; gradients of one backward pass add up."""
    X, params, scale = arrays(4, devices[0])
    found = []
    for function in (dense, dense.function):
        params[0].attach_grad()
        with autograd.record():
            outs = [function(X * i, params, scale) for i in range(5)]
        autograd.backward(outs)
        found.append([a.asnumpy() for a in (*outs, params[0].grad)])
    for by_graph, as_written in zip(*found):
        assert abs(by_graph - as_written).max() < 1e-5  # float32


W, TWO = np.array([1, 2, 3]), np.ones((2, 3))
Two = namedtuple('Two', 'first second')


@pytest.mark.parametrize('function, calls', [
    (lambda a, b: -b + a, [(TWO, W)]),
    (lambda a, b, params: a * params[1], [(TWO, TWO, [TWO, W])]),  # not all are used
    (lambda X, mask=None: 2 * X if mask is None else X * mask, [(TWO,), (TWO, W)]),
    (lambda X, params: X * params[0], [(TWO, W), (TWO, [W]), (TWO, (W,)), (TWO, [W, TWO])]),
    (lambda X, params: X * params[0][0] + params[1][0], [(TWO, [[W], [TWO]]), (TWO, ([TWO], (W, W)))]),
    (lambda a: [a * 2], [(TWO,)]), (lambda a: (a * 2, a * 3), [(TWO,)]), (lambda a: [a * 2, (a * 3, a)], [(TWO,)]),
    (lambda a: Two(a * 2, a * 3), [(TWO,)]),
    (lambda X: np.multiply(X, 2), [(TWO.astype(dtype),) for dtype in ('float32', 'float64') * 2])])
def test_lists_of_arguments_and_results(function, calls):
    fast = hybridized(function)
    for args in calls:
        check_same(fast, *args)


def test_a_function_with_a_frozen_weight(devices):
    X, W, b = (np.ones(shape, ctx=devices[0]) for shape in ((4, 3), (2, 3), 2))
    b.attach_grad()
    with autograd.record():
        Y = hybridized(lambda X, W, b: npx.fully_connected(X, W, b, num_hidden=2))(X, W, b)
    Y.backward()
    assert b.grad.tolist() == [4, 4]


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='symbols of MXNet 2 do not have that difference')
@pytest.mark.parametrize('dtype', ['int32', 'uint8', 'bool', 'float16', 'float64'])
def test_numbers_keep_the_dtype(dtype, devices):
    """MXNet 1.9 says for symbols only that a number is no integer, which makes integers float64."""
    fast = hybridized(lambda X: [X * 1.5, 2 * X, X + 1.7, 3 - X, X / 2, 1 - X * 2])
    X = np.array([1, 0, 1], dtype=dtype, ctx=devices[0])
    assert ([(result.dtype, result.tolist()) for result in fast(X)]
            == [(result.dtype, result.tolist()) for result in fast.function(X)])


def test_names_and_default_values():
    """np and npx may have any names in a module."""
    namespace = {'mnp': np, 'operators': npx}
    exec('def f(a, b=2, *, scale=3.0):\n    return operators.relu(mnp.dot(a, a)) * b * scale', namespace)
    check_same(hybridized(namespace['f']), np.random.normal(size=(3, 3)))


def test_training_and_prediction(devices):
    """Each mode has its own operator."""
    drop = hybridized(lambda X: npx.dropout(X, 0.5))
    X = np.ones((100, 100), ctx=devices[0])
    for _ in range(2):
        assert (drop(X).asnumpy() == 1).all()
        with autograd.record():
            assert set(numpy.unique(drop(X).asnumpy())) == {0, 2}
        with autograd.record(train_mode=False):
            assert (drop(X).asnumpy() == 1).all()


def test_a_branch_for_training(devices):
    @hybridized
    def by_mode(X):
        return X * 2 if autograd.is_training() else X

    X = np.ones(1, ctx=devices[0])
    X.attach_grad()
    for _ in range(2):
        assert by_mode(X).item() == 1
        with autograd.record():
            Y = by_mode(X)
        Y.backward()
        assert (Y.item(), X.grad.item()) == (2, 2)
        with autograd.train_mode():
            assert by_mode(X).item() == 2


def test_an_argument_that_is_returned(devices):
    a = np.array([5.0], ctx=devices[0])
    same = hybridized(lambda a: [a, a * 2])(a)
    a[:] = 7
    assert [array.tolist() for array in same] == [[5], [10]]


def test_a_captured_value_stays_as_it_was(devices):
    """As for ``jax.jit``: what is read besides the arguments is a part of the trace."""
    factor = 2
    fast, a = hybridized(lambda a: a * factor), np.ones(1, ctx=devices[0])
    assert fast(a).item() == 2
    factor = 3
    assert fast(a).item() == 2 and fast(np.ones(2, ctx=devices[0])).tolist() == [3, 3]


def unknown(X):
    return X.no_such_method()


def asks(X):
    return X if X.sum() > 0 else -X


def takes_rows(X):
    return X[[0, 1]]


def takes_last(X):
    return X[-1]


def does_not_fit(X):
    return np.dot(X, X)


@pytest.mark.parametrize('function', [unknown, asks, takes_rows, takes_last, does_not_fit])
def test_a_function_that_cannot_be_traced_is_an_error(function, devices):
    if function is takes_last and MXNET_MAJOR >= 2:
        pytest.skip('symbols of MXNet 2 can do that')
    with pytest.raises(ValueError, match=rf'^{function.__name__} cannot be traced \(.*\)'):
        hybridized(function)(np.ones((2, 3), ctx=devices[0]))


@pytest.mark.parametrize('num_outputs', [1, 2])
def test_a_function_of_autograd(num_outputs, devices):
    """MXNet takes its symbols for arrays and crashes."""
    class Own(autograd.Function):
        def forward(self, X):
            return X if num_outputs == 1 else (X, X * 2)

        def backward(self, *gradients):
            return gradients[0] * 5

    @hybridized
    def call(X):
        return Own()(X)

    X = np.ones((2, 3), ctx=devices[0])
    with autograd.record(), pytest.raises(ValueError, match='^call calls Own, an autograd.Function'):
        call(X)
    assert call(X)[-1].shape  # without a gradient


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 traces with arrays')
def test_a_function_with_a_layer(devices):
    layer = gluon.nn.Dense(2, in_units=3)
    layer.initialize(ctx=devices)
    with pytest.raises(ValueError, match='^<lambda> uses .*_bias.*, which is not among its arguments: make it a Hybri'):
        hybridized(lambda X: layer(X))(np.ones((1, 3), ctx=devices[0]))


@pytest.mark.parametrize('argument', [3, [None, 2.0], numpy.ones(2)])
def test_arguments_that_are_no_arrays(argument, devices):
    fast, X = hybridized(lambda X, k: X if k is None else X * k), np.ones((1, 2), ctx=devices[0])
    for _ in range(2):
        assert fast(X, None).tolist() == [[1, 1]]
        with pytest.raises((AttributeError, TypeError)):
            fast(X, argument)


def test_types_of_lists_are_told_apart(devices):
    X = np.ones((1, 2), ctx=devices[0])
    fast = hybridized(lambda X, pair: pair.second if isinstance(pair, Two) else X * {list: 1, tuple: 2}[type(pair)])
    for _ in range(2):
        assert [fast(X, pair).tolist()[0][0] for pair in ([X], (X,), Two(X, 3 * X))] == [1, 2, 3]


def test_arrays_of_np_and_nd_are_told_apart(devices):
    fast = hybridized(lambda X: X.sum())
    for X in [np.ones((1, 2), ctx=devices[0]), mx.nd.ones((1, 2), ctx=devices[0])] * 2:
        assert (type(fast(X)), fast(X).shape) == (type(X), X.sum().shape)


def test_a_first_call_in_several_threads(devices):
    X = np.ones((2, 8), ctx=devices[0])
    for i in range(10):
        fast = hybridized(lambda X, i=i: np.tanh(X) * i + X)
        with ThreadPoolExecutor(4) as pool:
            found = [y.tolist() for y in pool.map(fast, [X] * 4)]
        assert found == [fast.function(X).tolist()] * 4


def test_a_bounded_number_of_operators(devices, monkeypatch):
    """Each shape has its own operator; those used longest ago are dropped."""
    created, deleted, cached_op = [], [], module.cached_op

    class Operator:
        def __init__(self, operator):
            self.operator = operator
            created.append(1)

        def __call__(self, *arrays):
            return self.operator(*arrays)

        def __del__(self):
            deleted.append(1)

    monkeypatch.setattr(module, 'cached_op', lambda *args: Operator(cached_op(*args)))
    double = hybridized(lambda a: np.multiply(a, 2))
    for n in range(2, 3 * MAX_OPERATORS):
        for rows in (n, 1, n):  # 1 is used every time, so its operator stays
            double(np.ones((rows, 2), ctx=devices[0])).wait_to_read()
    gc.collect()
    assert len(created) == 3 * MAX_OPERATORS - 1 == len(deleted) + MAX_OPERATORS


def test_an_operator_dropped_before_its_backward_pass(devices):
    a = np.ones((1, 2), ctx=devices[0])
    a.attach_grad()
    square = hybridized(lambda a: a * a)
    with autograd.record():
        out = square(a)
        for n in range(2, MAX_OPERATORS + 3):
            square(np.ones((n, 2), ctx=devices[0]))
    gc.collect()
    out.backward()
    assert a.grad.tolist() == [[2, 2]]


def test_no_operator_at_the_edge_takes_a_scratch_area(monkeypatch):
    """Graphs keep scratch areas of the engine's one ring; such an operator would take another at each call."""
    graphs, cached_op = [], module.cached_op
    monkeypatch.setattr(module, 'cached_op', lambda graph, flags: graphs.append(graph) or cached_op(graph, flags))
    hybridized(lambda a: np.tanh(a))(np.ones((2, 2)))
    operators = [node['op'] for node in graph_to_json(graphs[0])['nodes']]
    assert operators == ['null', '_npx_reshape', '_npi_tanh', '_npx_reshape']


class Call:
    def __call__(self, X):
        return X * 2

    def method(self, X):
        return X * 2


@pytest.mark.parametrize('value', [gluon.nn.HybridSequential(), 5, Call(), Call().method, Call, abs,
                                   functools.partial(dense, scale=1)])
def test_other_callables_are_an_error(value):
    with pytest.raises(ValueError, match=r'is no function of arrays: call net.hybridize\(\) for a network$'):
        hybridized(value)


def test_the_name_of_the_function_is_kept():
    assert dense.__name__ == 'dense' and dense.__wrapped__ is dense.function


def test_a_function_that_is_hybridized_again():
    """As in a cell of a notebook that runs twice."""
    fast = hybridized(dense)
    assert fast.function is dense.function
