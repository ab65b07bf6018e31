"""Each operator that may run with static memory computes and differentiates as plain Gluon."""
import gc
import json
from unittest.mock import patch

import numpy
import pytest
from slow import slow

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, init, mx, np, npx
from gluon_mgpu.networks.hybridize import static
from gluon_mgpu.networks.hybridize.block import HybridizedBlock, hybridized
from gluon_mgpu.networks.hybridize.static import MAX_OPERATORS, TESTED, TESTED_IN_A_GRAPH, isolate
from gluon_mgpu.networks.hybridize.tracing import trace_block, trace_function

IMAGE, ROWS, MATRIX = (4, 6, 6), (4,), (3, 4)  # shapes without the batch

# name: (shape of a row, shapes of the parameters, function of np, npx, X and the parameters)
EXAMPLES = {
    'convolution': (IMAGE, [(3, 4, 3, 3), (3,)],
                    lambda np, npx, X, W, b: npx.convolution(X, W, b, kernel=(3, 3), num_filter=3, pad=(1, 1))),
    'convolution without bias': (IMAGE, [(3, 4, 3, 3)], lambda np, npx, X, W: npx.convolution(
        X, W, kernel=(3, 3), num_filter=3, stride=(2, 2), no_bias=True)),
    'convolution of 16 channels': ((16, 6, 6), [(16, 16, 3, 3), (16,)], lambda np, npx, X, W, b: npx.convolution(
        X, W, b, kernel=(3, 3), num_filter=16)),
    'convolution in groups': (IMAGE, [(4, 1, 3, 3), (4,)], lambda np, npx, X, W, b: npx.convolution(
        X, W, b, kernel=(3, 3), num_filter=4, num_group=4, dilate=(2, 2))),
    'convolution of sequences': (MATRIX, [(3, 3, 3), (3,)],
                                 lambda np, npx, X, W, b: npx.convolution(X, W, b, kernel=(3,), num_filter=3)),
    'dense': (IMAGE, [(3, 144), (3,)], lambda np, npx, X, W, b: npx.fully_connected(X, W, b, num_hidden=3)),
    'dense of the last axis': (MATRIX, [(5, 4), (5,)], lambda np, npx, X, W, b: npx.fully_connected(
        X, W, b, num_hidden=5, flatten=False)),
    'dense without bias': (ROWS, [(5, 4)],
                           lambda np, npx, X, W: npx.fully_connected(X, W, num_hidden=5, no_bias=True)),
    'embedding': (ROWS, [(5, 4)], lambda np, npx, X, W: npx.embedding(
        np.sign(X) + 2, W, input_dim=5, output_dim=4)),
    'layer norm': (MATRIX, [(4,), (4,)], lambda np, npx, X, g, b: npx.layer_norm(X, g, b, axis=-1)),
    'layer norm of channels': (IMAGE, [(4,), (4,)], lambda np, npx, X, g, b: npx.layer_norm(X, g, b, axis=1)),
    'dot': (ROWS, [(4, 5)], lambda np, npx, X, W: np.dot(X, W)),
    'matmul': (MATRIX, [(4, 5)], lambda np, npx, X, W: np.matmul(X, W)),
    'batch dot': (MATRIX, [], lambda np, npx, X: npx.batch_dot(X, X, transpose_b=True)),
    'broadcast': (MATRIX, [(1, 4)], lambda np, npx, X, W: np.broadcast_to(W, (3, 4)) * X),
    'arithmetic': (MATRIX, [(3, 4)], lambda np, npx, X, W: (X + W) * (X - W) / (np.abs(X * W) + 1)),
    'arithmetic of one shape': (MATRIX, [], lambda np, npx, X: (X + X * X) * (X - np.tanh(X)) / (X / (1 + X * X) + 9)),
    'arithmetic with broadcasting': (MATRIX, [(1, 4)], lambda np, npx, X, W: (X + W) * (X - W) / (X * W + 50)),
    'arithmetic with numbers': (MATRIX, [], lambda np, npx, X: (1 - (X + 1.5) * 0.7) / 3 + 1 / (X * X + 1) - 2),
    'maximum': (MATRIX, [(3, 4)], lambda np, npx, X, W: np.maximum(X, W) + np.minimum(X, 2 * W)),
    'maximum with numbers': (MATRIX, [], lambda np, npx, X: np.maximum(X, 0.1) + np.minimum(X, 0.2)),
    'concatenate': (MATRIX, [], lambda np, npx, X: np.concatenate([X, X * 2, X], axis=1)),
    'where': (MATRIX, [], lambda np, npx, X: np.where(X > 0.1, X, X * 0.3) + (X <= 0.3) * X),
    'oneDNN sum': (MATRIX, [], lambda np, npx, X: as_legacy(lambda F, X: F.elemwise_add(X, X), X)),
    'cast': (MATRIX, [], lambda np, npx, X: as_legacy(
        lambda F, X: F.amp_cast(F.amp_cast(X, dtype='float16'), dtype='float32'), X)),
    'L2 normalization': (IMAGE, [], lambda np, npx, X: as_legacy(lambda F, X: F.L2Normalization(X, mode='channel'), X)),
    'upsampling': (IMAGE, [], lambda np, npx, X: as_legacy(
        lambda F, X: F.UpSampling(X, scale=2, sample_type='nearest'), X)),
    'slice of an axis': (IMAGE, [], lambda np, npx, X: as_legacy(
        lambda F, X: F.slice_axis(X, axis=1, begin=0, end=2), X)),
    'squeeze and excitation': (IMAGE, [(4, 4), (4,)], lambda np, npx, X, W, b: X * npx.sigmoid(npx.fully_connected(
        npx.pooling(X, kernel=(1, 1), global_pool=True, pool_type='avg'), W, b, num_hidden=4)).reshape(-1, 4, 1, 1)),
    'dropout of nothing': (MATRIX, [], lambda np, npx, X: npx.dropout(X, p=0.0)),
    'reshape': (MATRIX, [], lambda np, npx, X: np.reshape(X, (-1, 12))),
    'reshape of npx': (MATRIX, [], lambda np, npx, X: npx.reshape(X, (-2, -1))),
    'reshape like': (MATRIX, [], lambda np, npx, X: npx.reshape_like(X * 2, X)),
    'flatten': (MATRIX, [], lambda np, npx, X: npx.batch_flatten(X)),
    'transpose': (MATRIX, [], lambda np, npx, X: np.transpose(X, (0, 2, 1))),
    'swap axes': (MATRIX, [], lambda np, npx, X: np.swapaxes(X, 1, 2)),
    'stack': (MATRIX, [], lambda np, npx, X: np.stack([X, X * X])),
    'split': (MATRIX, [], lambda np, npx, X: np.multiply(*np.split(X, 2, axis=2))),
    'slice': (MATRIX, [], lambda np, npx, X: X[:, 1:, :-1]),
    'index': (MATRIX, [], lambda np, npx, X: X[:, 0]),
    'expand': (MATRIX, [], lambda np, npx, X: np.squeeze(np.expand_dims(X, 1) * 2, 1)),
    'tile': (MATRIX, [], lambda np, npx, X: np.tile(X, (1, 2, 1))),
    'repeat': (MATRIX, [], lambda np, npx, X: np.repeat(X, 2, axis=1)),
    'flip': (MATRIX, [], lambda np, npx, X: np.flip(X, 1)),
    'copy': (MATRIX, [], lambda np, npx, X: np.copy(X)),
    'mean': (MATRIX, [], lambda np, npx, X: X - np.mean(X, axis=-1, keepdims=True) + np.mean(X)),
    'sum': (MATRIX, [], lambda np, npx, X: np.sum(X, axis=1)),
    'extrema': (MATRIX, [], lambda np, npx, X: np.max(X, axis=1) - np.min(X, axis=1)),
    'softmax': (IMAGE, [], lambda np, npx, X: npx.softmax(X, axis=1) + npx.softmax(X, axis=-1)),
    'log softmax': (MATRIX, [], lambda np, npx, X: npx.log_softmax(X, axis=-1)),
    'pick': (MATRIX, [], lambda np, npx, X: npx.pick(X, np.sign(X[:, :, 0]) + 1, axis=-1)),
    'clip': (MATRIX, [], lambda np, npx, X: np.clip(X, -0.5, 0.5)),
    'smooth l1': (MATRIX, [], lambda np, npx, X: npx.smooth_l1(X, scalar=1.0)),
    'power': (MATRIX, [], lambda np, npx, X: X ** 2 + (np.abs(X) + 0.5) ** -0.5),
    'logarithm': (MATRIX, [], lambda np, npx, X: np.log(np.sqrt(np.abs(X) + 0.5))),
    'sign': (MATRIX, [], lambda np, npx, X: X * np.sign(X)),
    **{name: (MATRIX, [], lambda np, npx, X, name=name: getattr(np, name)(X))
       for name in ('abs', 'exp', 'negative', 'square', 'tanh')},
    **{name: (IMAGE, [], lambda np, npx, X, name=name: getattr(npx, name)(X)) for name in ('relu', 'sigmoid')},
    **{f'activation {kind}': (IMAGE, [], lambda np, npx, X, kind=kind: npx.activation(X, act_type=kind))
       for kind in ('relu', 'sigmoid', 'tanh', 'softrelu', 'softsign')},
    **{f'leaky {kind}': (IMAGE, [], lambda np, npx, X, kind=kind: npx.leaky_relu(X, act_type=kind, slope=0.3))
       for kind in ('leaky', 'elu', 'selu', 'gelu')},
    **{f'{kind} pooling': (IMAGE, [], lambda np, npx, X, kind=kind: npx.pooling(
        X, kernel=(2, 2), stride=(2, 2), pool_type=kind)) for kind in ('max', 'avg', 'sum')},
    **{f'overlapping {kind} pooling': (IMAGE, [], lambda np, npx, X, kind=kind: npx.pooling(
        X, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type=kind)) for kind in ('max', 'avg')},
    **{f'global {kind} pooling': (IMAGE, [], lambda np, npx, X, kind=kind: npx.pooling(
        X, kernel=(1, 1), global_pool=True, pool_type=kind)) for kind in ('max', 'avg')},
}
OTHERS = {  # of mx.nd: F, X and the parameters, as arrays of mx.nd
    'transposed convolution': (IMAGE, [(4, 3, 4, 4), (3,)], lambda F, X, W, b: F.Deconvolution(
        X, W, b, kernel=(4, 4), num_filter=3, stride=(2, 2), pad=(1, 1), no_bias=False)),
    'transposed convolutions without bias': (IMAGE, [(4, 3, 2, 2), (3, 4, 3, 3)], lambda F, X, W, V: F.Deconvolution(
        F.Deconvolution(X, W, kernel=(2, 2), num_filter=3, stride=(2, 2)), V, kernel=(3, 3), num_filter=4)),
    'broadcasting': (MATRIX, [(1, 3, 4)], lambda F, X, W: F.broadcast_div(F.broadcast_mul(
        F.broadcast_add(X, W), F.broadcast_sub(X, W)), F.broadcast_add(F.abs(X), 1 + F.zeros_like(W)))),
    'one shape': (MATRIX, [], lambda F, X: (X - X * X) / (X * X + 1) - X * F.exp(X)),
    'numbers': (MATRIX, [], lambda F, X: 1 - (2 / (3 + X * X / 2) - 1) ** 2),
    'functions': (MATRIX, [], lambda F, X: F.log(F.sqrt(F.square(X) + 1)) + F.tanh(X) * F.sigmoid(X) - F.relu(X)),
    'sums': (MATRIX, [], lambda F, X: F.broadcast_sub(X, F.mean(X, axis=1, keepdims=True)).sum(axis=2)
             + X.max(axis=2) - F.min(X, axis=2)),
    'shapes': (MATRIX, [], lambda F, X: F.transpose(F.reshape(X, (0, 2, -1)), axes=(0, 2, 1)) * 2),
    'matrices': (ROWS, [(4, 5)], lambda F, X, W: F.dot(X, W)),
    'pieces': (IMAGE, [], lambda F, X: F.slice_like(F.pad(X, mode='constant', pad_width=(0, 0, 0, 0, 1, 1, 1, 1)), X,
                                                    axes=(2, 3)) + F.concat(*F.split(X, num_outputs=2, axis=1), dim=1)),
    'norms': (IMAGE, [(4,), (4,), *[(2 if MXNET_MAJOR < 2 else 4,)] * 2], lambda F, X, g, b, h, c: F.GroupNorm(
        F.InstanceNorm(X, g, b), h, c, num_groups=2)),
    'indices': (ROWS, [], lambda F, X: F.broadcast_add(F.one_hot(F.sign(X) + 1, depth=3).sum(axis=2), F.dot(
        X, X, transpose_b=True).sum(axis=1, keepdims=True))),
    'casts': (MATRIX, [], lambda F, X: F.cast(F.cast(X, 'float64'), 'float32')
              + F.BlockGrad(X) * F.where(X > 0, X, X * 2)),
}
BATCH_NORMS = {  # options of the layer
    'scale and shift': {}, 'shift': {'scale': False}, 'given statistics': {'use_global_stats': True},
    'last axis': {'axis': 3}}
AFTER = {  # an operator that follows, which could overwrite the output in place
    'nothing': lambda np, npx, Y: Y, 'relu': lambda np, npx, Y: npx.activation(Y, act_type='relu'),
    'sum': lambda np, npx, Y: Y + 1, 'product': lambda np, npx, Y: Y * Y}
# Names that do not occur on MXNet 1.9, on MXNet 2
RENAMED = [set(names.split()) for names in (
    'Concat stack _npi_copy _npi_dot _npi_max _npi_min _npi_repeats _npi_squeeze _npi_sum _npi_transpose',
    '_npi_concatenate _npi_stack _np_copy _np_dot _np_max _np_min repeat _np_squeeze _np_sum _np_transpose '
    '_np_reshape elemwise_div elemwise_mul elemwise_sub')]


def as_legacy(function, *arrays):
    """Call a function of ``mx.nd`` or ``mx.sym``."""
    F = mx.sym if isinstance(arrays[0], mx.sym.Symbol) else mx.nd
    return function(F, *(array.as_nd_ndarray() for array in arrays)).as_np_ndarray()


class Network(gluon.HybridBlock):
    """X * 0.9, the function of an example, and the operator that follows."""

    def __init__(self, shapes, function, after):
        super().__init__()
        self._function, self._after, self._num_params = function, after, len(shapes)
        for i, shape in enumerate(shapes):
            if MXNET_MAJOR < 2:
                setattr(self, f'p{i}', self.params.get(f'p{i}', shape=shape))
            else:
                setattr(self, f'p{i}', gluon.Parameter(f'p{i}', shape=shape))

    def params_in_order(self):
        return [getattr(self, f'p{i}') for i in range(self._num_params)]

    def compute(self, np, npx, X, *params):
        return self._after(np, npx, self._function(np, npx, X * 0.9, *params))

    if MXNET_MAJOR < 2:
        def hybrid_forward(self, F, X, **params):
            return self.compute(F.np, F.npx, X, *(params[f'p{i}'] for i in range(self._num_params)))
    else:
        def forward(self, X):
            return self.compute(np, npx, X, *(param.data(X.ctx) for param in self.params_in_order()))


def results(call, net, X, mode):
    """Return the output, the gradient of X if it has one, and those of the parameters by name, after two passes."""
    trained = {name: param for name, param in net.collect_params().items() if param.grad_req != 'null'}
    for _ in range(2):
        for param in trained.values():
            param.grad(X.ctx)[:] = 7  # to be overwritten
        with autograd.record(train_mode=mode == 'training'):
            Y = call(X)
        Y.backward(np.arange(Y.size, ctx=X.ctx).reshape(Y.shape).astype(Y.dtype) / Y.size,
                   train_mode=mode == 'training')
    npx.waitall()
    arrays = {'Y': Y, 'X': X.grad, **{name: param.grad(X.ctx) for name, param in trained.items()}}
    return {name: array.asnumpy() for name, array in arrays.items() if array is not None}


def batches(after):
    """Return (rows, number of the device): in the quick cases, each device gets batches of one size."""
    return [(3, 0), (2, 1)] if after == 'product' else [(3, 0), (3, 1), (2, 0), (2, 1)]


def check(net, shape, devices, rng, sizes, modes=('training', 'prediction'), attach_grad=True, memories=(True, False)):
    """Compare with plain Gluon: modes, static memory or not, batches of two sizes, devices, frozen parameters."""
    params = [param for param in net.collect_params().values() if param.grad_req != 'null']
    cases = [(mode, np.array(rng.normal(size=(n, *shape)), dtype='float32', ctx=devices[i]))
             for mode in modes for n, i in sizes]
    for _, X in cases if attach_grad else ():
        X.attach_grad()
    expected = [results(net, net, X, mode) for mode, X in cases]
    for frozen in (None, *params) if attach_grad else (None,):
        for param in params:
            param.grad_req = 'null' if param is frozen else 'write'
        for with_memory in memories if frozen is None or len(sizes) > 2 else memories[:1]:
            fast = HybridizedBlock(net)
            with patch.object(static, 'MAX_CREATED', 12 if with_memory else 0):
                for (mode, X), reference in zip(cases, expected):
                    for name, array in results(fast, net, X, mode).items():
                        numpy.testing.assert_allclose(array, reference[name], rtol=1e-3,  # float32
                                                      atol=1e-4 * (1 + abs(reference[name]).max()),
                                                      err_msg=f'{name}, {mode}, {X.shape}, {frozen}, {with_memory}')
                    if mode == 'prediction':
                        numpy.testing.assert_allclose(fast(X).asnumpy(), net(X).asnumpy(), rtol=1e-3, atol=1e-4)
            assert all(graph and graph.is_static is (True in memories) for graph in fast._graphs.graphs.values())


@pytest.mark.parametrize('after', ['product', *map(slow, sorted(AFTER.keys() - {'product'}))])
@pytest.mark.parametrize('name', EXAMPLES)
def test_an_operator(name, after, devices, rng):
    shape, shapes, function = EXAMPLES[name]
    net = Network(shapes, function, AFTER[after])
    net.initialize(ctx=devices)
    for param in net.collect_params().values():
        param.set_data(np.array(rng.normal(size=param.shape), dtype='float32'))
    # MXNet's gradients through max pooling are wrong with record(train_mode=False), plain and hybridized
    modes = ('training',) if 'max pooling' in name else ('training', 'prediction')
    check(net, shape, devices, rng, batches(after), modes, attach_grad=name != 'embedding')


@pytest.mark.parametrize('after', ['product', *map(slow, sorted(AFTER.keys() - {'product'}))])
@pytest.mark.parametrize('name', BATCH_NORMS)
def test_batch_norm(name, after, devices, rng):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(6, 1), gluon.nn.BatchNorm(**BATCH_NORMS[name]),
            Network([], lambda np, npx, X: X * 1, AFTER[after]))
    net.initialize(ctx=devices)
    net(np.zeros((1, *IMAGE), ctx=devices[0]))
    for param in net.collect_params().values():
        param.set_data(np.array(rng.uniform(1, 2, size=param.shape), dtype='float32'))
    check(net, IMAGE, devices, rng, batches('all'), ['training'])  # which changes the statistics that prediction uses


@pytest.mark.parametrize('after', ['product', *map(slow, sorted(AFTER.keys() - {'product'}))])
@pytest.mark.parametrize('name', OTHERS)
def test_an_operator_without_static_memory(name, after, devices, rng):
    shape, shapes, function = OTHERS[name]
    net = Network(shapes, lambda np, npx, *arrays: as_legacy(function, *arrays), AFTER[after])
    net.initialize(ctx=devices)
    for param in net.collect_params().values():
        param.set_data(np.array(rng.normal(size=param.shape), dtype='float32'))
    check(net, shape, devices, rng, batches(after), memories=[False])


def operators_in(shape, shapes, function):
    """Return the names of the operators in the graph of an example."""
    symbols = [mx.sym.var(f'x{i}').as_np_ndarray() for i in range(len(shapes) + 1)]
    if MXNET_MAJOR < 2:
        graph = function(mx.sym.np, mx.sym.npx, *symbols)
    else:
        net = Network(shapes, function, AFTER['nothing'])
        net.initialize()
        graph = trace_block(net, (np.ones((2, *shape)),))[0]
    return {node['op'] for node in json.loads(graph.tojson())['nodes']} - {'null'}


def test_each_tested_operator_has_an_example():
    found = {'BatchNorm'}.union(*(operators_in(*example) for example in EXAMPLES.values()))  # see `test_batch_norm`
    assert found <= TESTED
    assert TESTED - found <= RENAMED[MXNET_MAJOR >= 2]
    for shape, shapes, function in OTHERS.values():
        found |= operators_in(shape, shapes, lambda np, npx, *arrays, function=function: as_legacy(function, *arrays))
    assert found <= TESTED_IN_A_GRAPH
    assert TESTED_IN_A_GRAPH - found <= RENAMED[MXNET_MAJOR >= 2]


@pytest.mark.parametrize('layers', [
    lambda: [gluon.nn.Conv2D(3, 3), gluon.nn.PReLU(in_channels=3), gluon.nn.Conv2D(4, 3)],
    lambda: [gluon.nn.HybridSequential()],
], ids=['PReLU', 'identity'])
def test_other_operators_run_as_they_are(layers, devices, rng):
    net = gluon.nn.HybridSequential()
    net.add(*layers())
    net.initialize(init.Normal(0.5), ctx=devices)
    net(np.zeros((1, *IMAGE), ctx=devices[0]))
    fast = HybridizedBlock(net)
    for n in (3, 2):
        for device in devices[:2]:
            X = np.array(rng.normal(size=(n, *IMAGE)), dtype='float32', ctx=device)
            X.attach_grad()
            found, expected = (results(call, net, X, 'training') for call in (fast, net))
            for name in expected:
                numpy.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5)  # float32
            assert not fast.gradients_can_move


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


def identity_block(devices):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Activation('relu'))
    net.initialize(ctx=devices)
    return net
