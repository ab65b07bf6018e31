"""A hybridized function computes what it computes as written, on any device, for any number of rows."""
import pytest

from gluon_mgpu.compat import autograd, np, npx
from gluon_mgpu.hybridize import hybridize


@hybridize
def dense(X, params, scale):
    W, b = params
    return npx.relu(np.dot(X, W) + b) * scale


def arrays(n, device):
    X = np.random.normal(size=(n, 3), ctx=device)
    params = [np.random.normal(size=(3, 2), ctx=device), np.random.normal(size=2, ctx=device)]
    scale = np.random.normal(size=2, ctx=device)
    for a in (X, *params, scale):
        a.attach_grad()
    return X, params, scale


@pytest.mark.parametrize('n', [4, 1, 4, 7])
def test_value_and_gradients(devices, n):
    for device in devices:
        X, params, scale = arrays(n, device)
        results = []
        for function in (dense, dense.__wrapped__):
            with autograd.record():
                out = function(X, params, scale)
            out.backward()
            assert out.ctx == device
            results.append([a.asnumpy() for a in (out, X.grad, params[0].grad, params[1].grad, scale.grad)])
        for hybridized, as_written in zip(*results):
            assert abs(hybridized - as_written).max() < 1e-6  # float32, the same few operations
        assert abs(results[0][0]).max() > 0


def test_results_outlive_the_next_call(devices):
    """Its memory is used again, but not that of what it returned."""
    X, params, scale = arrays(4, devices[0])
    outs = [dense(X * i, params, scale) for i in range(5)]
    for i, out in enumerate(outs):
        expected = dense.__wrapped__(X * i, params, scale)
        assert abs((out - expected).asnumpy()).max() < 1e-6


def test_two_recorded_calls_before_backward(devices):
    X, params, scale = arrays(4, devices[0])
    with autograd.record():
        outs = [dense(X * i, params, scale) for i in (1, 2)]
    autograd.backward(outs)
    twice = params[0].grad.copy()
    with autograd.record():
        total = sum(dense.__wrapped__(X * i, params, scale) for i in (1, 2))
    total.backward()
    expected = params[0].grad
    # Both calls write to the gradient ('write', not 'add'), but within one backward pass they add up
    assert abs((twice - expected).asnumpy()).max() < 1e-5


def test_arguments_are_told_apart_by_position(devices):
    @hybridize
    def subtract_second_used_first(a, b):
        return -b + a

    a, b = np.array([5.0], ctx=devices[0]), np.array([2.0], ctx=devices[0])
    assert subtract_second_used_first(a, b).tolist() == [3.0]


def test_keeps_name_and_docstring():
    assert dense.__name__ == 'dense'
    assert dense.__wrapped__ is not dense
