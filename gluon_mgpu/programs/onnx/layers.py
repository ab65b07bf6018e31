"""Converters of layers: convolution, pooling, normalization, resizing and recurrent layers."""
import numpy

from .building import as_list, by_name, require, require_fixed

GATES = {'lstm': [0, 3, 1, 2], 'gru': [1, 0, 2]}  # MXNet's gates in ONNX's order


def _convolution(g, op, *arrays, kernel, stride=None, pad=(), dilate=None, adj=None, num_group=1, layout='NC',
                 target_shape=None):
    require(layout.startswith('NC') and not target_shape, f'layout {layout} or target_shape')
    return g.add('ConvTranspose' if op.kind == 'deconvolution' else 'Conv', *arrays, kernel_shape=kernel,
                 strides=stride, pads=pad * 2 or None, dilations=dilate, group=num_group, output_padding=adj)


def _pooling(g, op, X, kernel=None, pool_type='max', global_pool=False, stride=None, pad=None, layout='NC',
             pooling_convention='valid', count_include_pad=True):
    require(layout.startswith('NC') and pooling_convention in ('valid', 'full'), f'{layout}, {pooling_convention}')
    operator = {'max': 'MaxPool', 'avg': 'AveragePool'}[pool_type]
    if global_pool:
        return g.add(f'Global{operator}', X)
    strides = stride or [1] * len(kernel)
    before = after = numpy.array(pad or [0] * len(kernel))
    if pooling_convention == 'full':  # the last window may end beyond the padding
        require_fixed(X, axes=range(2, X.rank))
        ends = numpy.subtract(op.output.shape[2:], 1) * strides + kernel
        after = numpy.maximum(ends - before - X.shape[2:], before)
    # An average divides by the numbers in a window, with those of the padding if it counts, never with those beyond it
    counted = before * (pool_type == 'avg' and count_include_pad)
    if counted.any():
        X = g.Pad(X, [0, 0, *counted, 0, 0, *counted])
    pads = numpy.array([before - counted, after - counted])
    require((pads < kernel).all(), 'a window of padding only')
    return g.add(operator, X, kernel_shape=kernel, strides=strides, pads=pads.ravel().tolist())


def _adaptiveavgpooling2d(g, X, output_size=1):
    sizes = (as_list(output_size) * 2)[:2]
    if sizes == [1, 1]:
        return g.GlobalAveragePool(X)
    require_fixed(X, axes=[2, 3])
    rows, columns = map(_averages, X.shape[2:], sizes)
    return g.MatMul(rows, g.MatMul(X, columns.T))


def _averages(size, parts):
    """Return a matrix that averages over parts of an axis, which overlap where their number is no divisor."""
    places, first = numpy.arange(size), numpy.arange(parts)[:, None]
    inside = (places >= first * size // parts) & (places < -(-(first + 1) * size // parts))
    return (inside / inside.sum(axis=1, keepdims=True)).astype('float32')


def _fullyconnected(g, X, W, *bias, flatten=True):
    if flatten or X.rank == 2:
        return g.Gemm(X if X.rank == 2 else g.Flatten(X), W, *bias, transB=1)
    Y = g.MatMul(X, g.Transpose(W))
    return g.Add(Y, *bias) if bias else Y


def _batchnorm(g, X, gamma, *arrays, axis=1, eps=1e-3, fix_gamma=True):
    gamma = numpy.ones(gamma.shape, 'float32') if fix_gamma else gamma
    Y = g.BatchNormalization(g.swap(X, X.rank, 1, axis), gamma, *arrays, epsilon=eps)
    return g.swap(Y, X.rank, 1, axis)


def _layernorm(g, X, gamma, beta, axis=-1, eps=1e-5):
    Y = g.swap(X, X.rank, -1, axis)
    Y = g.Sub(Y, g.ReduceMean(Y, [-1]))  # because onnxruntime before 1.24 computes E[x^2] - E[x]^2
    return g.swap(g.LayerNormalization(Y, gamma, beta, epsilon=eps), X.rank, -1, axis)


def _groupnorm(g, op, X, gamma, beta, num_groups=1, eps=1e-5):
    ones = numpy.ones(num_groups, 'float32')
    Y = g.InstanceNormalization(g.Reshape(X, [0, num_groups, -1]), ones, ones * 0, epsilon=eps)
    Y = g.Reshape(Y, [0, *gamma.shape, -1])  # MXNet 1.9 scales groups, MXNet 2 channels
    gamma, beta = g.Reshape(gamma, [-1, 1]), g.Reshape(beta, [-1, 1])
    return g.reshape(g.Add(g.Mul(Y, gamma), beta), op.output)


def _l2normalization(g, X, mode='instance', eps=1e-10):
    axes = {'instance': range(1, X.rank), 'channel': [1], 'spatial': range(2, X.rank)}[mode]
    return g.Div(X, g.Sqrt(g.Add(g.ReduceSumSquare(X, [*axes]), eps)))


def _upsampling(g, op, X, *others, sample_type='nearest'):
    require(sample_type == 'nearest', f'sample_type {sample_type}')
    require(not others, 'several inputs')
    return g.Resize(X, '', '', g.shape(op.output), nearest_mode='floor', coordinate_transformation_mode='asymmetric')


def _bilinearresize2d(g, op, X, *_, align_corners=True):
    """Interpolate along one axis after the other, at MXNet's coordinates, which Resize rounds in other ways."""
    require_fixed(X, op.output, axes=[2, 3])
    Y, corner = X, int(align_corners)
    for axis in (3, 2):
        old, new = X.shape[axis], op.output.shape[axis]
        scale = numpy.float32(old - corner) / numpy.float32(new - corner) if new > 1 else 0
        places = numpy.arange(new) * scale if align_corners else (numpy.arange(new) + 0.5) * scale - 0.5
        places = numpy.maximum(places, 0).astype('float32')
        first = places.astype('int64')
        weights = (places - first).astype('float32').reshape(-1, *[1] * (3 - axis))
        left, right = (g.Gather(Y, indices, axis=axis) for indices in (first, numpy.minimum(first + 1, old - 1)))
        Y = g.Add(g.Mul(left, 1 - weights), g.Mul(right, weights))
    return Y


def _rnn(g, X, params, *states, mode, state_size, num_layers, bidirectional=False, projection_size=None,
         lstm_state_clip_min=None, use_sequence_length=False):
    require(projection_size is None and lstm_state_clip_min is None, 'projection or clipping')
    require(not use_sequence_length, 'use_sequence_length, which MXNet ignores on CPUs')
    gates, directions, num_states, offset = GATES.get(mode, [0]), 1 + bool(bidirectional), 1 + (mode == 'lstm'), 0
    activations = [mode[4:].capitalize()] * directions if mode.startswith('rnn') else None

    def take(columns: int) -> str:
        """Return the next weight or bias, (1, gates * state_size, columns)."""
        nonlocal offset
        start, offset = offset, offset + len(gates) * state_size * columns
        array = g.Reshape(g.Slice(params, [start], [offset]), [len(gates), state_size * columns])
        return g.Reshape(g.Gather(array, gates), [1, len(gates) * state_size, columns])

    columns = [X.shape[2]] + [state_size * directions] * (num_layers - 1)  # of each layer's input
    weights = [[(take(n), take(state_size)) for _ in range(directions)] for n in columns]
    biases = [[(take(1), take(1)) for _ in range(directions)] for _ in columns]
    results = []
    for i, (matrices, vectors) in enumerate(zip(weights, biases)):
        W, R = (g.Concat(*arrays, axis=0) for arrays in zip(*matrices))
        B = g.Reshape(g.Concat(*sum(vectors, ()), axis=1), [directions, -1])
        first = [g.Slice(state, [i * directions], [(i + 1) * directions]) for state in states[:num_states]]
        Y, *last = g.add(mode[:4].rstrip('_').upper(), X, W, R, B, '', *first, results=1 + num_states,
                         hidden_size=state_size, direction=['forward', 'bidirectional'][directions - 1],
                         activations=activations, linear_before_reset=1 if mode == 'gru' else None)
        X = g.Reshape(g.swap(Y, 4, 1, 2), [0, 0, -1])  # (T, directions, n, h) -> (T, n, directions * h)
        results.append(last)
    return [X, *(g.Concat(*each, axis=0) for each in zip(*results))]


CONVERTERS = {
    **by_name(_convolution, _pooling, _adaptiveavgpooling2d, _fullyconnected, _batchnorm, _layernorm, _groupnorm,
              _l2normalization, _upsampling, _bilinearresize2d, _rnn),
    'instancenorm': lambda g, *X, eps=1e-3: g.InstanceNormalization(*X, epsilon=eps),
    'lrn': lambda g, X, nsize, alpha=1e-4, beta=0.75, knorm=2: g.LRN(
        X, size=nsize, alpha=float(alpha), beta=float(beta), bias=float(knorm)),
}
