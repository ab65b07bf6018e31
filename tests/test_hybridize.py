"""A hybridized function computes what it computes as written, on any device, for any number of rows."""
import pytest

from gluon_mgpu.mxnet_setup.compat import autograd, gluon, init, np, npx
from gluon_mgpu.networks.hybridize import hybridize, hybridize_block


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


def test_an_argument_that_is_not_used(devices):
    @hybridize
    def first(a, b, params):
        return a * params[1]

    a = np.array([5.0], ctx=devices[0])
    assert first(a, a, [a, np.array([2.0], ctx=devices[0])]).tolist() == [10.0]


def test_other_parameters_on_the_same_device(devices):
    """They get gradients of their own, and the first ones keep theirs."""
    kept = []
    for _ in range(2):
        X, params, scale = arrays(4, devices[0])
        gradients = []
        for function in (dense.__wrapped__, dense):
            with autograd.record():
                out = function(X, params, scale)
            out.backward()
            gradients.append(params[0].grad.asnumpy())
        assert abs(gradients[1] - gradients[0]).max() < 1e-6
        assert gradients[1].any()
        kept.append((params[0].grad, gradients[1]))
    for gradient, as_it_was in kept:
        assert (gradient.asnumpy() == as_it_was).all()


def hybrid_net(devices):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(3, activation='relu'), gluon.nn.BatchNorm(), gluon.nn.Dense(2))
    net.initialize(init.Normal(1), ctx=devices)
    return net


def test_a_block_is_the_same_function_for_any_rows_recorded_or_not(devices):
    net = hybrid_net(devices)
    X = {n: np.random.normal(size=(n, 4), ctx=devices[0]) for n in (5, 2)}
    results = []
    for hybridized in (False, True, True):
        if hybridized:
            hybridize_block(net)  # the second time over the first
        results.append([])
        for n in (5, 2, 5):
            results[-1].append(net(X[n]))
            with autograd.record(train_mode=False):
                out = net(X[n])
            out.backward()
            results[-1] += [out, net[0].weight.grad(devices[0]).copy()]
    for by_blocks, *by_graphs in zip(*results):
        assert abs(by_blocks.asnumpy()).max() > 0
        for by_graph in by_graphs:
            assert abs((by_graph - by_blocks).asnumpy()).max() < 1e-5


def test_a_block_that_is_initialized_and_hybridized_again_trains_its_new_parameters(devices):
    net, X = hybrid_net(devices), np.random.normal(size=(5, 4), ctx=devices[0])
    gradients = []
    for _ in range(2):
        net.initialize(init.Normal(1), ctx=devices, force_reinit=True)
        hybridize_block(net)
        with autograd.record():
            out = net(X)
        out.backward()
        gradients.append(net[2].weight.grad(devices[0]).asnumpy())
        assert gradients[-1].any()
    assert (gradients[0] != gradients[1]).any()


def test_keeps_name_and_docstring():
    assert dense.__name__ == 'dense'
    assert dense.__wrapped__ is not dense
