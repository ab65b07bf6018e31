"""Converters of layers: convolution, pooling, normalization, resizing and recurrent layers."""
from typing import Any

import numpy

from .building import Converters, as_list, by_name, require, require_fixed

GATES = {'lstm': [0, 3, 1, 2], 'gru': [1, 0, 2]}  # MXNet's gates in ONNX's order


def _convolution(g, op, *arrays, kernel, stride=None, pad=(), dilate=None, adj=None, num_group=1, layout='NC',
                 target_shape=None, **_):
    require(layout.startswith('NC') and not target_shape, f'layout {layout} or target_shape')
    return g.add('ConvTranspose' if op.kind == 'deconvolution' else 'Conv', *arrays, kernel_shape=kernel,
                 strides=stride, pads=pad * 2 or None, dilations=dilate, group=num_group, output_padding=adj)


def _pooling(g, op, X, kernel=None, pool_type='max', global_pool=False, stride=None, pad=(), layout='NC',
             pooling_convention='valid', count_include_pad=True, **_):
    require(layout.startswith('NC'), f'layout {layout}')
    require(pooling_convention in ('valid', 'full'), f'pooling_convention {pooling_convention}')
    operator, is_average = {'max': 'MaxPool', 'avg': 'AveragePool'}[pool_type], pool_type == 'avg'
    if global_pool:
        return g.add(f'Global{operator}', X)
    settings = {'count_include_pad': int(count_include_pad)} if is_average else {}
    pads = [*(pad or [0] * len(kernel))] * 2
    if pooling_convention == 'full':  # onnxruntime before 1.29 divides by other numbers with ceil_mode=1
        require_fixed(X, axes=range(2, X.rank))
        sizes = zip(X.shape[2:], op.output.shape[2:], kernel, stride or [1] * len(kernel), pads)
        ends = [max((new - 1) * by + width - size - first, first) for size, new, width, by, first in sizes]
        outer, inner = pads[:len(kernel)] + ends, [0] * len(pads)
        if is_average:
            inner = pads if count_include_pad else inner
            settings['count_include_pad'] = 0
        elif any(end >= width for end, width in zip(ends, kernel)):  # the last window is in the padding
            inner = outer
        if any(inner):
            fill = numpy.array(0 if is_average else numpy.finfo(X.dtype).min, X.dtype)
            X = g.Pad(X, [0, 0, *inner[:len(kernel)], 0, 0, *inner[len(kernel):]], fill)
        pads = [int(pad) for pad in numpy.subtract(outer, inner)]
        require(all(pad < width for pad, width in zip(pads, [*kernel] * 2)), 'an average of padding only')
    return g.add(operator, X, kernel_shape=kernel, strides=stride, pads=pads if any(pads) else None, **settings)


def _adaptiveavgpooling2d(g, op, X, output_size=1, **_):
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


def _fullyconnected(g, op, X, W, *bias, flatten=True, **_):
    if flatten or X.rank == 2:
        return g.Gemm(X if X.rank == 2 else g.Flatten(X), W, *bias, transB=1)
    Y = g.MatMul(X, g.Transpose(W))
    return g.Add(Y, *bias) if bias else Y


def _batchnorm(g, op, X, gamma, *arrays, axis=1, eps=1e-3, fix_gamma=True, **_):
    gamma = numpy.ones(gamma.shape, 'float32') if fix_gamma else gamma
    Y = g.BatchNormalization(g.swap(X, X.rank, 1, axis), gamma, *arrays, epsilon=eps)
    return g.swap(Y, X.rank, 1, axis)


def _layernorm(g, op, X, gamma, beta, axis=-1, eps=1e-5, **_):
    Y = g.LayerNormalization(g.swap(X, X.rank, -1, axis), gamma, beta, epsilon=eps)
    return g.swap(Y, X.rank, -1, axis)


def _groupnorm(g, op, X, gamma, beta, num_groups=1, eps=1e-5, **_):
    ones = numpy.ones(num_groups, 'float32')
    Y = g.InstanceNormalization(g.Reshape(X, [0, num_groups, -1]), ones, ones * 0, epsilon=eps)
    Y = g.Reshape(Y, [0, *gamma.shape, -1])  # MXNet 1.9 scales groups, MXNet 2 channels
    gamma, beta = g.Reshape(gamma, [-1, 1]), g.Reshape(beta, [-1, 1])
    return g.reshape(g.Add(g.Mul(Y, gamma), beta), op.output)


def _l2normalization(g, op, X, mode='instance', eps=1e-10, **_):
    axes = {'instance': range(1, X.rank), 'channel': [1], 'spatial': range(2, X.rank)}[mode]
    return g.Div(X, g.Sqrt(g.Add(g.ReduceSumSquare(X, [*axes]), eps)))


def _upsampling(g, op, X, *others, sample_type='nearest', align_corners=True, **_):
    require(sample_type == 'nearest', f'sample_type {sample_type}')
    require(op.kind != 'upsampling' or not others, 'several inputs')
    if op.kind == 'upsampling':
        settings = {'nearest_mode': 'floor', 'coordinate_transformation_mode': 'asymmetric'}
    else:
        corners = 'align_corners' if align_corners else 'pytorch_half_pixel'
        settings = {'mode': 'linear', 'coordinate_transformation_mode': corners}
    return g.Resize(X, '', '', g.shape(op.output), **settings)


def _rnn(g, op, X, params, *states, mode, state_size, num_layers, bidirectional=False, projection_size=None,
         lstm_state_clip_min=None, use_sequence_length=False, **_):
    require(projection_size is None and lstm_state_clip_min is None, 'projection or clipping')
    require(not use_sequence_length, 'use_sequence_length, which MXNet ignores on CPUs')
    gates, directions, num_states, offset = GATES.get(mode, [0]), 1 + bool(bidirectional), 1 + (mode == 'lstm'), 0
    settings: dict[str, Any] = {'linear_before_reset': 1} if mode == 'gru' else {}
    if mode.startswith('rnn'):
        settings['activations'] = [mode[4:].capitalize()] * directions

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
                         hidden_size=state_size, direction=['forward', 'bidirectional'][directions - 1], **settings)
        X = g.Reshape(g.swap(Y, 4, 1, 2), [0, 0, -1])  # (T, directions, n, h) -> (T, n, directions * h)
        results.append(last)
    return [X, *(g.Concat(*each, axis=0) for each in zip(*results))]


CONVERTERS: Converters = {
    **by_name(_convolution, _pooling, _adaptiveavgpooling2d, _fullyconnected, _batchnorm, _layernorm, _groupnorm,
              _l2normalization, _upsampling, _rnn),
    'instancenorm': lambda g, op, *X, eps=1e-3, **_: g.InstanceNormalization(*X, epsilon=eps),
    'lrn': lambda g, op, X, nsize, alpha=1e-4, beta=0.75, knorm=2, **_: g.LRN(
        X, size=nsize, alpha=float(alpha), beta=float(beta), bias=float(knorm)),
}
