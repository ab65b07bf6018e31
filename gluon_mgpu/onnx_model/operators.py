"""MXNet's operators in terms of ONNX operators of set 13.

A converter takes the graph under construction, the operation, and the names of its inputs. It returns the name of the
result, or a list of names.
"""
from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import numpy

from ..networks.graph import Operation
from .builder import Builder

END = 2**31 - 1  # of a slice: after the last element
ACTIVATIONS = {'relu': 'Relu', 'sigmoid': 'Sigmoid', 'tanh': 'Tanh', 'softrelu': 'Softplus', 'softsign': 'Softsign'}
SAME = {**ACTIVATIONS, 'exp': 'Exp', 'log': 'Log', 'sqrt': 'Sqrt', 'abs': 'Abs', 'absolute': 'Abs', 'negative': 'Neg',
        'erf': 'Erf', 'floor': 'Floor', 'ceil': 'Ceil', 'sin': 'Sin', 'cos': 'Cos', 'reciprocal': 'Reciprocal',
        'addn': 'Sum', 'identity': 'Identity', 'copy': 'Identity', 'dropout': 'Identity', 'blockgrad': 'Identity'}
ARITHMETIC = {'add': 'Add', 'plus': 'Add', 'sub': 'Sub', 'subtract': 'Sub', 'minus': 'Sub', 'mul': 'Mul',
              'multiply': 'Mul', 'div': 'Div', 'truedivide': 'Div', 'power': 'Pow', 'maximum': 'Max', 'minimum': 'Min'}
COMPARISONS = {'equal': 'Equal', 'greater': 'Greater', 'greaterequal': 'GreaterOrEqual', 'lesser': 'Less',
               'less': 'Less', 'lesserequal': 'LessOrEqual', 'lessequal': 'LessOrEqual'}
REDUCTIONS = {'sum': 'ReduceSum', 'mean': 'ReduceMean', 'max': 'ReduceMax', 'min': 'ReduceMin', 'prod': 'ReduceProd',
              'norm': 'ReduceL2'}
GATES = {'lstm': [0, 3, 1, 2], 'gru': [1, 0, 2]}  # MXNet's gates in ONNX's order
ALIASES = {'syncbatchnorm': 'batchnorm', 'deconvolution': 'convolution', 'logsoftmax': 'softmax', 'batchdot': 'matmul',
           'dot': 'matmul', 'concatenate': 'concat', 'rnnparamconcat': 'concat', 'splitv2': 'slicechannel',
           'reverse': 'flip', 'repeats': 'repeat', 'arangelike': 'arange', 'argmin': 'argmax',
           'bilinearresize2d': 'upsampling', **dict.fromkeys(REDUCTIONS, 'reduce'),
           **dict.fromkeys(('flatten', 'expanddims', 'squeeze', 'reshapelike'), 'reshape'),
           **dict.fromkeys(('broadcastlike', 'broadcastaxis'), 'broadcastto'),
           **dict.fromkeys(('zeros', 'ones', 'zeroslike', 'oneslike', 'full'), 'fulllike')}

CONVERTERS: dict[str, Callable[..., Any]] = {  # of one expression, by the kind of operation
    **{kind: lambda g, op, *X, operator=operator: g.add(operator, *X) for kind, operator in SAME.items()},
    'rsqrt': lambda g, op, X: g.add('Reciprocal', g.add('Sqrt', X)),
    'log1p': lambda g, op, X: g.add('Log', g.add('Add', X, g.constant(1))),
    'square': lambda g, op, X: g.add('Mul', X, X),
    'hardsigmoid': lambda g, op, X: g.add('HardSigmoid', X, alpha=float(op.get('alpha', 0.2)),
                                           beta=float(op.get('beta', 0.5))),
    'clip': lambda g, op, X: g.add('Clip', X, *(g.constant(op[end], op.output.dtype) for end in ('a_min', 'a_max'))),
    'cast': lambda g, op, X: g.cast(X, op.output.dtype),
    'where': lambda g, op, condition, A, B: g.add('Where', g.cast(condition, 'bool'), A, B),
    'divsqrtdim': lambda g, op, X: g.add('Div', X, g.constant(op.inputs[0].shape[-1] ** 0.5)),
    'einsum': lambda g, op, *X: g.add('Einsum', *X, equation=op['subscripts']),
    'embedding': lambda g, op, X, W: g.add('Gather', W, g.indices(X, op.inputs[1], 0)),
    'take': lambda g, op, X, places: g.add('Gather', X, g.indices(places, op.inputs[0], op.get('axis', 0)),
                                           axis=op.get('axis', 0)),
    'onehot': lambda g, op, X: g.add('OneHot', g.cast(X, 'int64'), g.integers(op['depth']),
                                     g.constant([0, 1], op.output.dtype)),
    'reshape': lambda g, op, X, *_: g.reshape_like(X, op.output),
    'broadcastto': lambda g, op, X, *_: g.add('Expand', X, g.shape(op.output)),
    'fulllike': lambda g, op, *_: g.add('Expand', g.constant(
        op.get('value', op.get('fill_value', int('ones' in op.kind))), op.output.dtype), g.shape(op.output)),
    'swapaxis': lambda g, op, X: g.swap(X, op.rank, op.get('dim1', 0), op.get('dim2', 0)),
    'transpose': lambda g, op, X: g.add('Transpose', X, perm=op.axes('axes') or [*range(op.rank)][::-1]),
    'sliceaxis': lambda g, op, X: g.slice(X, op['axis'], op['begin'], op.get('end', END)),
    'flip': lambda g, op, X: g.slice(X, *op.axes('axis'), END, -END, -1),
    'tile': lambda g, op, X: g.add('Tile', X, g.integers(*([1] * op.rank + op.values('reps'))[-op.rank:])),
    'stack': lambda g, op, *X: g.add('Concat', *(g.add('Unsqueeze', each, g.integers(op.get('axis', 0)))
                                                 for each in X), axis=op.get('axis', 0)),
    'concat': lambda g, op, *X: g.add('Concat', *(g.cast(each, op.output.dtype) for each in X), axis=op.get(
        'dim', op.get('axis', 0 if op.kind == 'concatenate' else 1))),
    'instancenorm': lambda g, op, *arrays: g.add('InstanceNormalization', *arrays, epsilon=op.get('eps', 1e-3)),
}


def require(supported: object, reason: str) -> None:
    """Raise NotImplementedError, with the reason in words."""
    if not supported:
        raise NotImplementedError(reason)


def _binary(operator: str, swapped: bool = False) -> Callable:
    def converter(g, op, A, B=None):
        dtype = op.output.dtype
        if operator in COMPARISONS.values():
            dtypes = [array.dtype for array in op.inputs]
            dtype = 'float32' if 'float32' in dtypes or B is None else dtypes[0]
        operands = [g.cast(A, dtype), g.constant(op['scalar'], dtype) if B is None else g.cast(B, dtype)]
        result = g.add(operator, *operands[::-1 if swapped else 1])
        return g.cast(result, op.output.dtype) if operator in COMPARISONS.values() else result
    return converter


for _kind, _operator in {**ARITHMETIC, **COMPARISONS}.items():
    CONVERTERS.update(dict.fromkeys((_kind, f'broadcast{_kind}', f'elemwise{_kind}', f'{_kind}scalar'),
                                    _binary(_operator)))
    CONVERTERS[f'r{_kind}scalar'] = _binary(_operator, swapped=True)


class Operators(Builder):
    """An ONNX graph to which operators of MXNet can be appended; the method `_KIND` converts those of that kind."""

    def convert(self, op: Operation, inputs: list[str]) -> list[str]:
        """Append an operation; return the names of its results. Raises NotImplementedError with the reason in words."""
        kind = ALIASES.get(op.kind, op.kind)
        if kind not in CONVERTERS and f'_{kind}' not in vars(Operators):
            raise NotImplementedError('which docs/export.md does not list')
        converter = CONVERTERS.get(kind) or vars(Operators)[f'_{kind}']
        results = converter(self, op, *inputs)
        return results if isinstance(results, list) else [results]

    def _activation(self, op, X):
        require(op['act_type'] in ACTIVATIONS, f"act_type {op['act_type']}")
        return self.add(ACTIVATIONS[op['act_type']], X)

    def _leakyrelu(self, op, X, gamma=None):
        kind = op.get('act_type', 'leaky')
        if kind == 'prelu':
            return self.add('PRelu', X, self.reshape(gamma, -1, *[1] * (op.rank - 2)))
        if kind in ('gelu', 'gelu_erf'):  # X / 2 * (1 + erf(X / sqrt(2)))
            erf = self.add('Erf', self.add('Mul', X, self.constant(0.5 ** 0.5)))
            return self.add('Mul', self.add('Mul', X, self.constant(0.5)), self.add('Add', erf, self.constant(1)))
        require(kind in ('leaky', 'elu', 'selu'), f'act_type {kind}')
        settings: dict[str, Any] = {} if kind == 'selu' else {'alpha': float(op.get('slope', 0.25))}
        return self.add({'leaky': 'LeakyRelu', 'elu': 'Elu', 'selu': 'Selu'}[kind], X, **settings)

    def _window(self, operator, op, *arrays, **settings):
        require(op['layout'] in (None, 'NCW', 'NCHW', 'NCDHW'), f"layout {op['layout']}")
        return self.add(operator, *arrays, **settings, kernel_shape=op['kernel'], strides=op['stride'],
                        pads=op['pad'] and op['pad'] * 2)

    def _convolution(self, op, *arrays):
        require(not op['target_shape'], 'target_shape')
        return self._window('Conv' if op.kind == 'convolution' else 'ConvTranspose', op, *arrays,
                            dilations=op['dilate'], group=op.get('num_group', 1), output_padding=op['adj'])

    def _pooling(self, op, X):
        kind, convention = op.get('pool_type', 'max'), op.get('pooling_convention', 'valid')
        require(kind in ('max', 'avg') and convention in ('valid', 'full'), f'{kind} pooling, {convention}')
        operator = 'MaxPool' if kind == 'max' else 'AveragePool'
        if op['global_pool']:
            return self.add(f'Global{operator}', X)
        settings = {'count_include_pad': int(op.get('count_include_pad', True))} if kind == 'avg' else {}
        return self._window(operator, op, X, ceil_mode=int(convention == 'full'), **settings)

    def _fullyconnected(self, op, X, W, *bias):
        if op.get('flatten', True) or op.rank == 2:
            return self.add('Gemm', X if op.rank == 2 else self.add('Flatten', X), W, *bias, transB=1)
        product = self.add('MatMul', X, self.swap(W, 2, 0, 1))
        return self.add('Add', product, *bias) if bias else product

    def _batchnorm(self, op, X, gamma, *arrays):
        axis = op.get('axis', 1) % op.rank
        if op.get('fix_gamma', True):
            gamma = self.constant(numpy.ones(op.inputs[1].shape))
        Y = self.add('BatchNormalization', self.swap(X, op.rank, 1, axis), gamma, *arrays, epsilon=op.get('eps', 1e-3))
        return self.swap(Y, op.rank, 1, axis)

    def _layernorm(self, op, X, gamma, beta):
        axis = op.get('axis', -1) % op.rank
        X = self.add('Sub', X, self.add('ReduceMean', X, axes=[axis]))
        variance = self.add('ReduceMean', self.add('Mul', X, X), axes=[axis])
        X = self.add('Div', X, self.add('Sqrt', self.add('Add', variance, self.constant(op.get('eps', 1e-5)))))
        return self.scale(X, gamma, beta, op.rank - 1 - axis)

    def _groupnorm(self, op, X, gamma, beta):
        groups = op.get('num_groups', 1)
        Y = self.add('InstanceNormalization', self.reshape(X, 0, groups, -1), self.constant(numpy.ones(groups)),
                     self.constant(numpy.zeros(groups)), epsilon=op.get('eps', 1e-5))
        if op.inputs[1].shape == (groups,):  # MXNet 1.9 scales groups, MXNet 2 channels
            return self.reshape_like(self.scale(Y, gamma, beta, 1), op.output)
        return self.scale(self.reshape_like(Y, op.output), gamma, beta, op.rank - 2)

    def _l2normalization(self, op, X):
        axes = {'instance': range(1, op.rank), 'channel': [1], 'spatial': range(2, op.rank)}[op.get('mode', 'instance')]
        squares = self.add('ReduceSum', self.add('Mul', X, X), self.integers(*axes))
        return self.add('Div', X, self.add('Sqrt', self.add('Add', squares, self.constant(op.get('eps', 1e-10)))))

    def _softmax(self, op, X, length=None):
        axis = op.get('axis', -1) % op.rank
        X = self.add('Div', X, self.constant(op['temperature'])) if op['temperature'] else X
        if length is None:
            return self.add('Softmax' if op.kind == 'softmax' else 'LogSoftmax', X, axis=axis)
        require(op.kind == 'softmax', 'a length')
        mask = self._before(op, length, axis, [axis])
        Y = self.add('Softmax', self.add('Where', mask, X, self.constant(-1e30)), axis=axis)
        return self.add('Where', mask, Y, self.constant(0))

    def _sequencemask(self, op, X, length=None):
        axis = op.get('axis', 0)  # 0 or 1; the rows are on the other
        if length is None:
            return X
        mask = self._before(op, length, axis, [i for i in range(op.rank) if i != 1 - axis])
        return self.add('Where', mask, X, self.constant(op.get('value', 0)))

    def _before(self, op, length, axis, missing):
        """Return a mask, true before `length` along an axis; `missing` are the axes that `length` does not have."""
        size = op.inputs[0].shape[axis]
        require(size == op.inputs[0].other[axis], 'the axis of a mask depends on the batch')
        positions = self.constant(numpy.arange(size).reshape(-1, *[1] * (op.rank - 1 - axis)), 'int64')
        return self.add('Less', positions, self.add('Unsqueeze', self.cast(length, 'int64'), self.integers(*missing)))

    def _rnn(self, op, X, params, *states):
        require(not op['projection_size'] and op['lstm_state_clip_min'] is None, 'projection or clipping')
        require(not op['use_sequence_length'], 'use_sequence_length, which MXNet ignores on CPUs')
        mode, hidden, directions = op['mode'], op['state_size'], 1 + bool(op['bidirectional'])
        gates, offset = GATES.get(mode, [0]), 0
        settings: dict[str, Any] = {'linear_before_reset': 1} if mode == 'gru' else {}
        if mode.startswith('rnn'):
            settings['activations'] = [mode[4:].capitalize()] * directions

        def take(columns: int) -> str:
            """Return the next weight or bias, (1, gates * hidden, columns)."""
            nonlocal offset
            start, offset = offset, offset + len(gates) * hidden * columns
            array = self.reshape(self.slice(params, 0, start, offset), len(gates), hidden * columns)
            return self.reshape(self.add('Gather', array, self.integers(*gates)), 1, len(gates) * hidden, columns)

        columns = [op.inputs[0].shape[2]] + [hidden * directions] * (op['num_layers'] - 1)  # of each layer's input
        weights = [[(take(n), take(hidden)) for _ in range(directions)] for n in columns]
        biases = [[(take(1), take(1)) for _ in range(directions)] for _ in columns]
        num_states = 2 if mode == 'lstm' else 1
        results = []
        for i, (matrices, vectors) in enumerate(zip(weights, biases)):
            W, R = (self.add('Concat', *arrays, axis=0) for arrays in zip(*matrices))
            B = self.reshape(self.add('Concat', *sum(vectors, ()), axis=1), directions, -1)
            first = [self.slice(state, 0, i * directions, (i + 1) * directions) for state in states[:num_states]]
            Y, *last = self.add(mode[:4].rstrip('_').upper(), X, W, R, B, '', *first, outputs=1 + num_states,
                                hidden_size=hidden, direction=['forward', 'bidirectional'][directions - 1], **settings)
            X = self.reshape(self.swap(Y, 4, 1, 2), 0, 0, -1)  # (T, directions, n, h) -> (T, n, directions * h)
            results.append(last)
        return [X, *(self.add('Concat', *each, axis=0) for each in zip(*results))]

    def _arange(self, op, *_):
        require(op.output.shape == op.output.other and op.get('repeat', 1) == 1, 'its size depends on the batch')
        return self.constant(op.get('start', 0) + numpy.arange(op.output.shape[0]) * op.get('step', 1), op.output.dtype)

    def _slicechannel(self, op, X):
        axis = op.get('axis', 1)
        size, parts = op.inputs[0].shape[axis], op.get('num_outputs', op.get('sections', 0))
        starts = [i * size // parts for i in range(parts)] or op.values('indices')
        results = self.add('Split', X, self.integers(*numpy.diff([*starts, size])), outputs=len(starts), axis=axis)
        return [self.add('Squeeze', Y, self.integers(axis)) for Y in results] if op['squeeze_axis'] else results

    def _slice(self, op, X):
        for axis, (begin, end, step) in enumerate(zip_longest(*map(op.values, ('begin', 'end', 'step')))):
            step = step or 1
            begin = begin if begin is not None else 0 if step > 0 else END
            end = end if end is not None else END if step > 0 else -END
            X = X if (begin, end, step) == (0, END, 1) else self.slice(X, axis, begin, end, step)
        return X

    def _slicelike(self, op, X, _):
        for axis, (size, end) in enumerate(zip(op.inputs[0].shape, op.output.shape)):
            X = X if size == end else self.slice(X, axis, 0, end)
        return X

    def _repeat(self, op, X):
        (axis,), (times,) = op.axes('axis'), op.values('repeats')
        reps = [times if i == axis + 1 else 1 for i in range(op.rank + 1)]
        X = self.add('Unsqueeze', X, self.integers(axis + 1))
        return self.reshape_like(self.add('Tile', X, self.integers(*reps)), op.output)

    def _pad(self, op, X):
        widths = numpy.reshape(op['pad_width'], (-1, 2)).T.ravel()
        value = op.get('constant_value', op.get('constant_values', 0))
        return self.add('Pad', X, self.integers(*widths), self.constant(value), mode=op.get('mode', 'constant'))

    def _upsampling(self, op, X):
        if op.kind == 'upsampling':
            require(op['sample_type'] == 'nearest', f"sample_type {op['sample_type']}")
            settings: dict[str, Any] = {'nearest_mode': 'floor', 'coordinate_transformation_mode': 'asymmetric'}
        else:
            corners = 'align_corners' if op.get('align_corners', True) else 'half_pixel'
            settings = {'mode': 'linear', 'coordinate_transformation_mode': corners}
        return self.add('Resize', X, '', '', self.shape(op.output), **settings)

    def _reduce(self, op, X):
        axes = op.axes('axis') or [*range(op.rank)]
        if op['exclude']:
            axes = [axis for axis in range(op.rank) if axis not in axes]
        X, operator, keepdims = self.cast(X, op.output.dtype), REDUCTIONS[op.kind], int(op.get('keepdims', 0))
        if operator == 'ReduceSum':
            Y = self.add(operator, X, self.integers(*axes), keepdims=keepdims)
        else:
            require(op.get('ord', 2) == 2, f"ord {op['ord']}")
            Y = self.add(operator, X, axes=axes, keepdims=keepdims)
        return Y if op.output.shape != (1,) else self.reshape(Y, 1)  # mx.nd has no arrays without axes

    def _argmax(self, op, X):
        require(op['axis'] is not None, 'no axis')
        operator = 'ArgMax' if op.kind == 'argmax' else 'ArgMin'
        return self.cast(self.add(operator, X, axis=op['axis'], keepdims=int(op.get('keepdims', 0))), op.output.dtype)

    def _matmul(self, op, A, B):
        ranks = [len(array.shape) for array in op.inputs]
        require(op.kind != 'dot' or ranks[1] <= 2, 'more than two dimensions')
        A = self.swap(A, ranks[0], -2, -1) if op['transpose_a'] else A
        return self.add('MatMul', A, self.swap(B, ranks[1], -2, -1) if op['transpose_b'] else B)

    def _pick(self, op, X, indices):
        axis = op.get('axis', -1) % op.rank
        places = self.add('Unsqueeze', self.indices(indices, op.inputs[0], axis), self.integers(axis))
        return self.reshape_like(self.add('GatherElements', X, places, axis=axis), op.output)
