"""Networks whose code a graph would not repeat run as they are; other threads while one traces."""
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, autograd, gluon, init, mx, np
from gluon_mgpu.networks.hybridize.block import hybridized
from gluon_mgpu.networks.hybridize.eager_only import EagerOnlyError, refuse_modes
from gluon_mgpu.parallel.sync_batch_norm.network import SyncBatchNorm


def test_an_autograd_function_runs_as_it_is(devices):
    """A graph would have the gradient of its forward pass instead of its own."""
    class Reversed(autograd.Function):
        def forward(self, X):
            return X * 1

        def backward(self, dX):
            return -2 * dX

    class Net(HybridBlock):
        def forward(self, X):
            return Reversed()(X)

    X = np.ones((2, 3), ctx=devices[0])
    X.attach_grad()
    for network in (Net(), lambda X: Reversed()(X)):
        fast = hybridized(network)
        for _ in range(2):
            with autograd.record():
                l = fast(X)
            l.backward()
            assert X.grad.tolist() == [[-2] * 3] * 2
    assert hybridized(Net())(X).tolist() == X.tolist()
    message = r'^Net cannot be traced \(Reversed is an autograd.Function'
    with autograd.record(), pytest.raises(ValueError, match=message):
        SyncBatchNorm(Net()).forward([X])
    with autograd.record():
        l = Reversed()(X)
    l.backward()
    assert X.grad.tolist() == [[-2] * 3] * 2


def scaled(X):
    return X * 2 if autograd.is_recording() else X * 3


def paused(X):
    with autograd.pause():
        constant = X * 2
    return X * 3 + constant


DROPOUT = gluon.nn.Dropout(0.9)


def always_training(X):
    with autograd.train_mode():
        return DROPOUT(X)


@pytest.mark.parametrize('forward', [paused, always_training, pytest.param(scaled, marks=pytest.mark.skipif(
    MXNET_MAJOR >= 2, reason='MXNet 2 does not record while it traces, also for net.hybridize()'))])
def test_the_mode_of_autograd(forward, devices):
    """A graph would have the gradient of what is computed in autograd.pause, and only one mode."""
    class Net(HybridBlock):
        def forward(self, X):
            return forward(X)

    X, results = np.ones((50, 3), ctx=devices[0]), []
    X.attach_grad()
    for network in (forward, hybridized(Net()), *([hybridized(forward)] if forward is not always_training else [])):
        for _ in range(2):
            mx.random.seed(1)
            with autograd.record():
                l = network(X)
            l.backward()
            results.append([X.grad.asnumpy().tolist(), network(X).asnumpy().tolist()])
    assert all(result == results[0] for result in results)


def test_mxnet_is_as_before_after_tracing_in_several_threads(devices):
    before = autograd.Function.__call__, autograd._RecordingStateScope.__enter__
    X = np.ones((2, 3), ctx=devices[0])

    def trace_and_pause(n):
        with autograd.record():
            hybridized(lambda X: X * n + paused(X) if n % 2 else X * n)(X)
        with autograd.pause():
            return (X * n).asnumpy().tolist()

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(trace_and_pause, range(40)))
    assert results == [[[n] * 3] * 2 for n in range(40)]
    assert (autograd.Function.__call__, autograd._RecordingStateScope.__enter__) == before


def test_code_that_asks_whether_autograd_records(devices):
    """MXNet 2 traces a block while autograd pauses."""
    class Net(HybridBlock):
        def forward(self, X):
            return X * (2 if autograd.is_recording() else 3) * (5 if autograd.is_training() else 7)

    fast, X = hybridized(Net()), np.ones(1, ctx=devices[0])
    for mode, expected in ((autograd.record, 10), (autograd.train_mode, 15), (autograd.predict_mode, 21),
                           (lambda: autograd.record(train_mode=False), 14)):
        with mode():
            assert fast(X).tolist() == [expected]
    assert len(fast._graphs.graphs) == 4 and None not in fast._graphs.graphs.values()


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 initializes in the call, which runs as it is')
def test_an_initializer_may_read_values(devices):
    class Reading(init.Initializer):
        def _init_weight(self, name, data):
            data[:] = 1
            data[:] = data.asnumpy() + 1

    net, X = gluon.nn.Dense(1), np.ones((1, 3), ctx=devices[0])
    net.initialize(Reading(), ctx=devices)
    fast = hybridized(net)
    assert fast(X).tolist() == [[6]] and None not in fast._graphs.graphs.values()


class Identity(autograd.Function):
    def forward(self, X):
        return X.copy()

    def backward(self, dY):
        return dY


def test_other_threads_while_one_traces():
    """They may change the mode of autograd and call functions, but trace only afterwards."""
    def use_autograd():
        with autograd.record(), autograd.pause():
            return Identity()(np.ones(2)).tolist()

    def trace():
        with refuse_modes():
            return True

    with ThreadPoolExecutor(2) as pool:
        with refuse_modes():
            assert pool.submit(use_autograd).result() == [1, 1]
            with pytest.raises(EagerOnlyError):
                use_autograd()
            with pytest.raises(EagerOnlyError):
                Identity()(np.ones(2))
            other = pool.submit(trace)
            assert not wait([other], timeout=0.2).done
        assert other.result()


def by_class(X):
    return X * (2 if isinstance(X, mx.nd.NDArray) else 3)


WEIGHT = np.ones(1)


def by_value(X):
    return X * float(WEIGHT)


@pytest.mark.parametrize('forward', [by_class, by_value])
def test_code_that_asks_what_arrays_are(forward, devices):
    """Symbols are no arrays, and the values of the first call would stay."""
    class Net(HybridBlock):
        def forward(self, X):
            return forward(X)

    X = np.ones(2, ctx=devices[0])
    for fast in (hybridized(Net()), hybridized(forward)):
        for value in (1, 5):
            WEIGHT[:] = value
            assert fast(X).tolist() == forward(X).tolist()


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 traces with arrays')
@pytest.mark.parametrize('ask', [lambda X: hasattr(X, 'shape'), lambda X: getattr(X, 'ndim', 7)])
def test_attributes_that_only_arrays_have(ask, devices):
    """Not even hasattr gives another answer than for an array."""
    class Net(HybridBlock):
        def forward(self, X):
            return X * int(ask(X))

    with pytest.raises(ValueError, match="cannot be traced .*Symbol' object has no attribute"):
        hybridized(Net())(np.ones((2, 3), ctx=devices[0]))
    assert not hasattr(mx.sym.var('X'), 'shape')


def test_a_trace_within_another(devices):
    """As of a function of constants."""
    double = hybridized(lambda X: X * 2)

    class Net(HybridBlock):
        def forward(self, X):
            double(np.ones(1, ctx=devices[0]))
            return X * 3

    assert hybridized(Net())(np.ones(1, ctx=devices[0])).item() == 3
    assert WEIGHT.shape == (1,) and not hasattr(mx.sym.var('X'), 'shape')
