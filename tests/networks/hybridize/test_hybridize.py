"""A hybridized network computes and trains the same as the original, on any device and for any rows."""
import copy
import functools
import gc
import json
from concurrent.futures import ThreadPoolExecutor, wait

import numpy
import pytest

from gluon_mgpu.base.nested import leaves
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, autograd, gluon, init, mx, np, npx
from gluon_mgpu.networks.hybridize import static
from gluon_mgpu.networks.hybridize.block import HybridizedBlock, hybridized
from gluon_mgpu.networks.hybridize.eager_only import EagerOnlyError, tracing
from gluon_mgpu.networks.hybridize.graph_operators import Operator, operators_of
from gluon_mgpu.networks.hybridize.static import MAX_OPERATORS, isolate
from gluon_mgpu.networks.hybridize.tracing import trace_block, trace_function
from gluon_mgpu.outputs.onnx_model.graph import semantics_of
from gluon_mgpu.parallel.sync_batch_norm.network import SyncBatchNorm
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


@pytest.mark.parametrize('names', [{'np': np, 'npx': npx}, {'mnp': np, 'operators': npx}])
def test_np_and_npx_may_have_any_names_in_a_module(devices, names):
    x, ops = names
    namespace = dict(names)
    exec(f'def f(a, b):\n    return {ops}.relu({x}.dot(a, b)) + {x}.tanh(a)', namespace)
    a, b = (np.random.normal(size=(3, 3), ctx=devices[0]) for _ in 'ab')
    assert abs(hybridized(namespace['f'])(a, b) - namespace['f'](a, b)).max() < 1e-6  # float32


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


@pytest.mark.parametrize('kind', ['function', 'block'])
def test_a_bounded_number_of_operators(devices, kind, monkeypatch):
    """Each shape has its own operator; those used longest ago are dropped."""
    created, deleted = [], []

    class Operator:
        def __init__(self, operator):
            self.operator = operator
            created.append(self)

        def __call__(self, *arrays):
            return self.operator(*arrays)

        def __del__(self):
            deleted.append(1)

    cached_op = static.cached_op
    monkeypatch.setattr(static, 'cached_op', lambda *args: Operator(cached_op(*args)))
    double = hybridized(lambda a: np.multiply(a, 2)) if kind == 'function' else hybridized(identity_block(devices))
    for n in range(2, 3 * MAX_OPERATORS):
        for rows in (n, 1):  # 1 is used every time, so its operator stays
            double(np.ones((rows, 2), ctx=devices[0])).wait_to_read()
    assert len(created) == 3 * MAX_OPERATORS - 1
    created.clear()
    gc.collect()
    assert len(deleted) == 3 * MAX_OPERATORS - 1 - MAX_OPERATORS


def test_a_device_that_begins_later_gets_its_operator_together_with_the_others(devices, monkeypatch):
    """Otherwise the devices may get the same scratch areas, and wait for each other in each step."""
    created, cached_op = [], static.cached_op
    monkeypatch.setattr(static, 'cached_op', lambda *args: created.append(1) or cached_op(*args))
    square = hybridized(lambda a: a * a)

    def step(*step_devices):
        arrays = [np.array([1.0, 3], ctx=device) for device in step_devices]
        for a in arrays:
            a.attach_grad()
        with autograd.record():
            squares = [square(a) for a in arrays]
        autograd.backward(squares)
        assert [(b.tolist(), a.grad.tolist()) for a, b in zip(arrays, squares)] == [([1, 9], [2, 6])] * len(arrays)

    first, *others = devices
    for _ in range(3):
        step(first)
    assert len(created) == 1
    for _ in range(3):
        step(first, *others)
    assert len(created) == 2  # for all, although the first device had one
    for _ in range(3):
        step(first)
        step(*others)
        step(first, *others)
    assert len(created) == 2
    square = hybridized(lambda a: a * a)
    for _ in range(3):
        step(first, *others)  # all devices in the first step
    assert len(created) == 3


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


def test_no_operator_at_the_edge_takes_a_scratch_area():
    """Graphs keep scratch areas of the engine's one ring; such an operator would take another at each call."""
    graph = isolate(*trace_function(lambda a: np.tanh(a), (np.ones((2, 2)),))[:2])
    operators = [node['op'] for node in json.loads(graph.tojson())['nodes']]
    assert operators == ['null', '_npx_reshape', '_npi_tanh', '_npx_reshape']


# Blocks

def identity_block(devices):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Activation('relu'))
    net.initialize(ctx=devices)
    return net


def hybrid_net(devices):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(3, activation='tanh'), gluon.nn.BatchNorm(), gluon.nn.Dense(2))
    net.initialize(init.Normal(1), ctx=devices)
    return net


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


def trained(hybridize, devices, batches):
    """Train a network on the batches, split over the devices; return the losses and the network."""
    npx.random.seed(3)
    net = hybrid_net(devices)
    net(np.ones((1, 4), ctx=devices[0]))
    fast = hybridized(net) if hybridize else net
    loss, losses = gluon.loss.L2Loss(), []
    trainer = gluon.Trainer(trainable(net), 'sgd', {'learning_rate': 0.1})
    for batch in batches:
        ls = []
        with autograd.record():
            for rows, device in zip(numpy.array_split(batch, len(devices)), devices):
                X = np.array(rows, ctx=device)
                ls.append(loss(fast(X), X[:, :2]))
        autograd.backward(ls)
        trainer.step(len(batch))
        losses += [float(l.mean()) for l in ls]
    return losses, net


def test_batch_norm_trains_as_in_a_plain_network(devices, seed):
    """Scale, shift and running statistics are the same on each device, also with smaller batches."""
    rng = numpy.random.default_rng(seed)
    batches = [rng.normal(size=(n, 4)).astype('float32') for n in (8, 8, 5, 8, 6)]
    losses, net = trained(True, devices, batches)
    expected_losses, expected = trained(False, devices, batches)
    # float32, five steps of the same operations
    numpy.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    npx.waitall()  # MXNet does not wait for running statistics, see `hybridized`
    for p, q in zip(net.collect_params().values(), expected.collect_params().values()):
        for a, b in zip(p.list_data(), q.list_data()):
            numpy.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=1e-4, atol=1e-5)
    means = [net[1].running_mean.data(device).asnumpy() for device in devices[:2]]
    assert abs(means[0]).max() > 0 and (means[0] != means[1]).any()  # each device uses its own rows
    X = np.array(batches[0], ctx=devices[0])
    assert abs((hybridized(net)(X) - net(X)).asnumpy()).max() < 1e-6  # uses the running statistics


def test_evaluation_after_training_sees_the_statistics_of_the_last_batch(devices):
    """MXNet's engine would let it start too early. The network is large enough to show that."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(8, 5), gluon.nn.BatchNorm(), gluon.nn.Conv2D(8, 5))
    net.initialize(init.Normal(1), ctx=devices)
    X = np.random.uniform(1, 2, size=(32, 1, 20, 20), ctx=devices[0])
    fast = hybridized(net)
    fast(X)
    for _ in range(3):
        with autograd.record():
            l = fast(X)
        l.backward()
        immediately = fast(X)
        npx.waitall()
        assert (immediately == fast(X)).all()


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


@pytest.mark.parametrize('order', [lambda f, g: f - g, lambda f, g: g * 2 + f, lambda f, g: f * g])
def test_a_batch_norm_that_is_used_twice(order, devices):
    """Its updates of the statistics, which do not commute, come in the same order as in plain Gluon."""
    class Tower(HybridBlock):
        def __init__(self):
            super().__init__()
            self.norm = gluon.nn.BatchNorm(in_channels=4)

        def forward(self, X, Z):
            return order(self.norm(X), self.norm(Z * 3) + self.norm(X + Z))

    net, found = Tower(), []
    X, Z = (np.random.normal(i, size=(6, 4), ctx=devices[0]) for i in (0, 9))
    for call in (net, hybridized(net)):
        net.initialize(ctx=devices, force_reinit=True)
        for _ in range(3):
            with autograd.record():
                l = call(X, Z)
            l.backward()
        found.append([statistic.data(devices[0]).asnumpy() for statistic in (net.norm.running_mean,
                                                                             net.norm.running_var)])
    numpy.testing.assert_allclose(found[0], found[1], rtol=1e-5)  # float32


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
        with tracing():
            return True

    with ThreadPoolExecutor(2) as pool:
        with tracing():
            assert pool.submit(use_autograd).result() == [1, 1]
            with pytest.raises(EagerOnlyError):
                use_autograd()
            with pytest.raises(EagerOnlyError):
                Identity()(np.ones(2))
            other = pool.submit(trace)
            assert not wait([other], timeout=0.2).done
        assert other.result()


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


def test_several_inputs_and_an_unused_one(devices):
    class Difference(HybridBlock):
        def forward(self, a, b, c):
            return b - a

    a, b, c = (np.array([n], ctx=devices[0]) for n in (5.0, 2.0, 9.0))
    assert hybridized(Difference())(a, b, c).tolist() == [-3]


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
    for network in (lambda X, k: Net.forward.__wrapped__(None, X, k), net):
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


def test_the_name_of_the_function_is_kept():
    assert dense.__name__ == 'dense'
    assert dense.__wrapped__ is not dense


def test_what_only_the_network_itself_has(devices):
    net = gluon.nn.Dense(3, in_units=2)
    net.initialize(ctx=devices)
    with pytest.raises(AttributeError, match='^a hybridized network has no save_parameters: use the network itself'):
        hybridized(net).save_parameters('net.params')
    assert not hasattr(hybridized(net), 'hybridize') and hybridized(net).block is net


def test_the_settings_of_an_operator():
    """As MXNet of each version, and other front ends, write them."""
    texts = {'a': 'false', 'b': 'True', 'c': '(2L, 2L)', 'd': '-inf', 'e': 'None', 'f': '()', 'g': 'same', 'h': '1e-3'}
    assert Operator({'op': 'x', 'attrs': texts}, [], {}).settings == {
        'a': False, 'b': True, 'c': (2, 2), 'd': -numpy.inf, 'g': 'same', 'h': 0.001}
