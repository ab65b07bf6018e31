"""A hybridized network computes and trains the same as the original, on any device and for any rows."""
import copy
import functools

import numpy
import pytest
from small_networks import hybrid_net

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, init, np, npx
from gluon_mgpu.networks.hybridize.block import HybridizedBlock, hybridized
from gluon_mgpu.parallel.trainer import trainable


@hybridized
def dense(X, params, scale):
    W, b = params
    return npx.relu(np.dot(X, W) + b) * scale


def arrays(n, device):
    X = np.random.uniform(0.1, 1, size=(n, 3), ctx=device)  # positive like the weights, so relu is not always 0
    params = [np.random.uniform(0.1, 1, size=(3, 2), ctx=device), np.random.uniform(size=2, ctx=device)]
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
        for by_graph, as_written in zip(*results):
            assert abs(by_graph - as_written).max() < 1e-6  # float32, the same few operations
        assert abs(results[0][1]).max() > 0


def test_results_outlive_the_next_call(devices):
    """The operator reuses its memory, but not that of its results."""
    X, params, scale = arrays(4, devices[0])
    outs = [dense(X * i, params, scale) for i in range(5)]
    for i, out in enumerate(outs):
        expected = dense.__wrapped__(X * i, params, scale)
        assert abs((out - expected).asnumpy()).max() < 1e-6  # float32


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
    assert abs((twice - expected).asnumpy()).max() < 1e-5  # float32


def test_other_parameters_on_the_same_device(devices):
    """They get their own gradients, and the first ones keep theirs."""
    kept = []
    for _ in range(2):
        X, params, scale = arrays(4, devices[0])
        gradients = []
        for function in (dense.__wrapped__, dense):
            with autograd.record():
                out = function(X, params, scale)
            out.backward()
            gradients.append(params[0].grad.asnumpy())
        assert abs(gradients[1] - gradients[0]).max() < 1e-6  # float32
        assert gradients[1].any()
        kept.append((params[0].grad, gradients[1]))
    for gradient, expected in kept:
        assert (gradient.asnumpy() == expected).all()


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='of oneDNN in MXNet 1.9')
def test_relu_of_a_function_returns_0_for_nan():
    """As documented; ``npx.relu`` returns NaN."""
    X = np.array([numpy.nan])
    assert hybridized(lambda X: npx.relu(X))(X).item() == 0
    assert numpy.isnan(npx.relu(X).item())


def test_float32_and_float64_in_turn(devices):
    double = hybridized(lambda a: np.multiply(a, 2))
    for dtype in ('float32', 'float64') * 3:
        result = double(np.array([1.5], dtype=dtype, ctx=devices[0]))
        assert (result.dtype, result.tolist()) == (numpy.dtype(dtype), [3.0])


def call_and_gradient(call, net, X, **record):
    """Return the result and the gradient of the first weight."""
    with autograd.record(**record):
        out = call(X)
        l = out ** 2
    l.backward()
    return out.asnumpy(), net[0].weight.grad(X.ctx).asnumpy()


@pytest.mark.parametrize('hybridize_itself', [False, True])
def test_a_block_gives_the_same_results_for_any_rows_recorded_or_not(devices, hybridize_itself):
    net = hybrid_net(devices)
    if hybridize_itself:
        net.hybridize()
    fast = HybridizedBlock(net)
    for n in (5, 2, 5, 1):
        for device in devices:
            X = np.random.normal(size=(n, 4), ctx=device)
            assert abs((fast(X) - net(X)).asnumpy()).max() < 1e-6  # float32
            for by_graph, by_blocks in zip(call_and_gradient(fast, net, X, train_mode=False),
                                           call_and_gradient(net, net, X, train_mode=False)):
                assert abs(by_graph - by_blocks).max() < 1e-5  # float32
                assert abs(by_blocks).max() > 0


def test_unknown_shapes_are_inferred_in_the_first_call(devices):
    net = hybrid_net(devices)
    out = hybridized(net)(np.ones((2, 4), ctx=devices[1]))
    assert out.shape == (2, 2) and out.ctx == devices[1]
    assert net[0].weight.shape == (3, 4)
    assert net[0].weight.list_ctx() == devices


def test_layers_on_the_devices_in_another_order(devices):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(3, in_units=4), gluon.nn.Dense(2, in_units=3))
    net[0].initialize(init.One(), ctx=devices)
    net[1].initialize(init.One(), ctx=devices[::-1])
    fast = hybridized(net)
    for device in devices:
        assert fast(np.ones((1, 4), ctx=device)).tolist() == [[12, 12]]


def test_dropout_is_random_in_training_and_off_in_evaluation(devices):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dropout(0.5))
    net.initialize(ctx=devices)
    fast = hybridized(net)
    for device in devices:
        X = np.ones((100, 100), ctx=device)
        assert (fast(X).asnumpy() == 1).all()
        with autograd.record():
            first, second = fast(X).asnumpy(), fast(X).asnumpy()
        with autograd.train_mode():
            third = fast(X).asnumpy()
        with autograd.record(train_mode=False):
            assert (fast(X).asnumpy() == 1).all()
        for out in (first, second, third):
            assert set(numpy.unique(out)) == {0, 2}  # Dropout(0.5) doubles the rest
            assert abs(out.mean() - 1) < 0.05  # five standard deviations of the mean of 10,000
        assert (first != second).any() and (second != third).any()


def test_a_block_initialized_again_or_cast_is_traced_again(devices):
    net, rows = hybrid_net(devices), numpy.random.normal(size=(5, 4))
    fast, gradients = HybridizedBlock(net), []
    for dtype in ('float32', 'float32', 'float64'):
        net.initialize(init.Normal(1), ctx=devices, force_reinit=True)
        net.cast(dtype)
        for device in devices:
            X = np.array(rows, dtype=dtype, ctx=device)
            out, gradient = call_and_gradient(fast, net, X)
            expected, expected_gradient = call_and_gradient(net, net, X)
            assert out.dtype == expected.dtype == dtype
            numpy.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
            numpy.testing.assert_allclose(gradient, expected_gradient, rtol=1e-3, atol=1e-4)
        gradients.append(gradient)
        assert abs(gradient).max() > 0
    assert (gradients[0] != gradients[1]).any()


def test_gradients_are_written_to_the_current_arrays_of_a_parameter(devices):
    net, X = hybrid_net(devices), np.random.normal(size=(5, 4), ctx=devices[0])
    fast = HybridizedBlock(net)
    once = call_and_gradient(fast, net, X)[1]
    net[0].weight.grad_req = 'add'  # in new arrays
    for times in (1, 2):
        summed = call_and_gradient(fast, net, X)[1]
        numpy.testing.assert_allclose(summed, times * once, rtol=1e-4, atol=1e-5)  # float32
    net[0].weight.grad_req = 'null'
    with autograd.record():
        out = fast(X)
    out.backward()
    assert abs(net[2].weight.grad(devices[0])).max() > 0


@pytest.mark.parametrize('first', ['two losses', 'a penalty', 'autograd.grad'])
def test_gradients_are_written_to_the_parameter_after_an_unusual_first_pass(first, devices):
    """In such a pass, the gradients that the operator computes are summed with others, or not the parameters'."""
    net, X = hybrid_net(devices), np.random.normal(size=(5, 4), ctx=devices[0])
    fast = hybridized(net)
    fast(X)  # infers the shapes
    params = trainable(net)
    results: list = [[], []]
    for call, result in zip((fast, net), results):
        with autograd.record():
            l = (call(X) ** 2).sum()
            if first == 'two losses':
                l = l + (call(-X) ** 2).sum()
            elif first == 'a penalty':
                l = l + sum((p.data(devices[0]) ** 2).sum() for p in params)
        if first == 'autograd.grad':
            gradients = autograd.grad(l, [p.data(devices[0]) for p in params])
        else:
            l.backward()
            gradients = [p.grad(devices[0]) for p in params]
        result += [g.asnumpy() for g in gradients]
        for p in params:
            p.grad(devices[0])[:] = 7
        result += call_and_gradient(call, net, X)
        assert (result[-1] != 7).all()
    for by_graph, by_blocks in zip(*results):
        numpy.testing.assert_allclose(by_graph, by_blocks, rtol=1e-3, atol=1e-4)  # float32


def test_the_block_itself_is_not_changed(devices):
    """After a call it can still be hybridized, cast, extended and copied."""
    net, X = hybrid_net(devices), np.random.normal(size=(5, 4), ctx=devices[0])
    fast = hybridized(net)
    expected = fast(X)
    if MXNET_MAJOR < 2:  # where a copy of a block has its own parameters
        other = copy.deepcopy(net)
        other.initialize(init.Zero(), ctx=devices, force_reinit=True)
        assert abs(hybridized(other)(X)).max() == 0 and abs(fast(X)).max() > 0
    net.hybridize()
    assert abs((net(X) - expected).asnumpy()).max() < 1e-6  # float32
    net.add(gluon.nn.Dense(7))
    net[-1].initialize(ctx=devices)
    assert net(X).shape == (5, 7) and hybridized(net)(X).shape == (5, 7)
    net.cast('float64')
    assert net(X.astype('float64')).dtype == numpy.float64


class Callable:
    def __call__(self, X):
        return X * 2

    def method(self, X):
        return X * 2


@pytest.mark.parametrize('network', [gluon.nn.Sequential(), 5, Callable(), Callable().method, Callable, abs,
                                     functools.partial(dense, relu=True)])
def test_other_callables_are_an_error(network):
    with pytest.raises(ValueError, match='is neither a gluon.HybridBlock nor a function of arrays'):
        hybridized(network)


def test_the_name_of_the_function_is_kept():
    assert dense.__name__ == 'dense'
    assert dense.__wrapped__ is not dense


def test_what_only_the_network_itself_has(devices):
    net = gluon.nn.Dense(3, in_units=2)
    net.initialize(ctx=devices)
    with pytest.raises(AttributeError, match='^a hybridized network has no save_parameters: use the network itself'):
        hybridized(net).save_parameters('net.params')
    assert not hasattr(hybridized(net), 'hybridize') and hybridized(net).block is net
