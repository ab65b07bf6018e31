"""MXNet's operators in terms of ONNX operators of set 18. Needs onnx.

A converter gets the model under construction, the operation, its input arrays, and its settings by MXNet's names. It
returns the name of the result, or a list of names.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import numpy
from onnx import NodeProto, helper, numpy_helper

from ..networks.graph import Array, Operation

END = 2**31 - 1  # of a slice: after the last element
SAME = {**{name.lower(): name for name in ('Relu', 'Sigmoid', 'Tanh', 'Softsign', 'Exp', 'Log', 'Sqrt', 'Abs', 'Erf',
                                           'Floor', 'Ceil', 'Sin', 'Cos', 'Reciprocal', 'Identity')},
        'softrelu': 'Softplus', 'absolute': 'Abs', 'negative': 'Neg', 'addn': 'Sum', 'copy': 'Identity',
        'dropout': 'Identity', 'blockgrad': 'Identity'}
ARITHMETIC = {'add': 'Add', 'plus': 'Add', 'sub': 'Sub', 'subtract': 'Sub', 'minus': 'Sub', 'mul': 'Mul',
              'multiply': 'Mul', 'div': 'Div', 'truedivide': 'Div', 'power': 'Pow', 'maximum': 'Max', 'minimum': 'Min'}
COMPARISONS = {'equal': 'Equal', 'greater': 'Greater', 'greaterequal': 'GreaterOrEqual', 'lesser': 'Less',
               'less': 'Less', 'lesserequal': 'LessOrEqual', 'lessequal': 'LessOrEqual'}
REDUCTIONS = {'sum': 'ReduceSum', 'mean': 'ReduceMean', 'max': 'ReduceMax', 'min': 'ReduceMin', 'prod': 'ReduceProd',
              'norm': 'ReduceL2'}
GATES = {'lstm': [0, 3, 1, 2], 'gru': [1, 0, 2]}  # MXNet's gates in ONNX's order
ALIASES = {'syncbatchnorm': 'batchnorm', 'deconvolution': 'convolution', 'logsoftmax': 'softmax', 'batchdot': 'matmul',
           'dot': 'matmul', 'concatenate': 'concat', 'rnnparamconcat': 'concat', 'split': 'slicechannel',
           'splitv2': 'slicechannel', 'reverse': 'flip', 'repeats': 'repeat', 'arangelike': 'arange',
           'argmin': 'argmax', 'bilinearresize2d': 'upsampling', **dict.fromkeys(REDUCTIONS, 'reduce'),
           **dict.fromkeys(('flatten', 'expanddims', 'squeeze', 'reshapelike'), 'reshape'),
           **dict.fromkeys(('broadcastlike', 'broadcastaxis'), 'broadcastto'),
           **dict.fromkeys(('zeros', 'ones', 'zeroslike', 'oneslike', 'full'), 'fulllike')}

CONVERTERS: dict[str, Callable[..., Any]] = {  # of one expression, by the kind of operation
    **{kind: lambda g, op, *X, operator=operator, **_: g.add(operator, *X) for kind, operator in SAME.items()},
    'activation': lambda g, op, X, act_type, **_: g.add(SAME[act_type], X),
    'rsqrt': lambda g, op, X, **_: g.Reciprocal(g.Sqrt(X)),
    'log1p': lambda g, op, X, **_: g.Log(g.Add(X, 1.0)),
    'square': lambda g, op, X, **_: g.Mul(X, X),
    'hardsigmoid': lambda g, op, X, alpha=0.2, beta=0.5, **_: g.HardSigmoid(X, alpha=float(alpha), beta=float(beta)),
    'divsqrtdim': lambda g, op, X, **_: g.Div(X, X.shape[-1] ** 0.5),
    'clip': lambda g, op, X, a_min, a_max, **_: g.Clip(X, *map(numpy.array, numpy.array([a_min, a_max], X.dtype))),
    'cast': lambda g, op, X, **_: g.cast(X, op.output.dtype),
    'where': lambda g, op, condition, A, B, **_: g.Where(g.cast(condition, 'bool'), A, B),
    'einsum': lambda g, op, *X, subscripts, **_: g.Einsum(*X, equation=subscripts),
    'embedding': lambda g, op, X, W, **_: g.Gather(W, g.indices(X, W, 0)),
    'take': lambda g, op, X, places, axis=0, mode='clip', **_: g.Gather(X, g.indices(places, X, axis, mode), axis=axis),
    'pick': lambda g, op, X, places, axis=-1, mode='clip', **_: g.reshape(
        g.GatherElements(X, g.Unsqueeze(g.indices(places, X, axis, mode), [axis]), axis=axis), op.output),
    'onehot': lambda g, op, X, depth, on_value=1, off_value=0, **_: g.Where(  # OneHot would count -1 from the end
        g.Equal(g.Unsqueeze(g.cast(X, 'int64'), [-1]), numpy.arange(depth)),
        *numpy.array([on_value, off_value], op.output.dtype)),
    'reshape': lambda g, op, X, *_, **__: g.reshape(X, op.output),
    'broadcastto': lambda g, op, X, *_, **__: g.Expand(X, g.shape(op.output)),
    'fulllike': lambda g, op, *_, value=0, fill_value=0, **__: g.Expand(
        numpy.array(value or fill_value or int('ones' in op.kind), op.output.dtype), g.shape(op.output)),
    'swapaxis': lambda g, op, X, dim1=0, dim2=0, **_: g.swap(X, X.rank, dim1, dim2),
    'transpose': lambda g, op, X, axes=None, **_: g.Transpose(X, perm=axes and [axis % X.rank for axis in axes]),
    'sliceaxis': lambda g, op, X, axis, begin, end=END, **_: g.Slice(X, [begin], [end], [axis]),
    'slicelike': lambda g, op, X, *_, **__: g.Slice(X, [0] * X.rank, op.output.sizes(END)),
    'tile': lambda g, op, X, reps, **_: g.Tile(X, [*[1] * X.rank, *as_list(reps)][-X.rank:]),
    'concat': lambda g, op, *X, dim=1, axis=0, **_: g.Concat(
        *(g.cast(each, op.output.dtype) for each in X), axis=axis if op.kind == 'concatenate' else dim),
    'stack': lambda g, op, *X, axis=0, **_: g.Concat(*(g.Unsqueeze(each, [axis]) for each in X), axis=axis),
    'softmaxoutput': lambda g, op, X, label, **_: g.reshape(g.Softmax(g.Flatten(X)), op.output),
    'instancenorm': lambda g, op, *X, eps=1e-3, **_: g.InstanceNormalization(*X, epsilon=eps),
    'lrn': lambda g, op, X, nsize, alpha=1e-4, beta=0.75, knorm=2, **_: g.LRN(
        X, size=nsize, alpha=float(alpha), beta=float(beta), bias=float(knorm)),
}


def require(supported: object, reason: str) -> None:
    """Raise NotImplementedError, with the reason in words."""
    if not supported:
        raise NotImplementedError(reason)


def as_list(setting: Any) -> list:
    """Return a setting as a list, also if it is a single number."""
    return [*setting] if isinstance(setting, (list, tuple)) else [setting]


def _binary(operator: str, swapped: bool = False) -> Callable:
    def converter(g, op, A, B=None, scalar=None, **_):
        dtype = op.output.dtype
        if operator in COMPARISONS.values():
            dtype = A.dtype if B and 'float32' not in (A.dtype, B.dtype) else 'float32'
        operands = [g.cast(A, dtype), g.cast(B, dtype) if B else numpy.array(scalar, dtype)]
        result = g.add(operator, *operands[::-1 if swapped else 1])
        return g.cast(result, op.output.dtype) if operator in COMPARISONS.values() else result
    return converter


for _kind, _operator in {**ARITHMETIC, **COMPARISONS}.items():
    CONVERTERS.update(dict.fromkeys((_kind, f'broadcast{_kind}', f'elemwise{_kind}', f'{_kind}scalar'),
                                    _binary(_operator)))
    CONVERTERS[f'r{_kind}scalar'] = _binary(_operator, swapped=True)


class Operators:
    """An ONNX graph under construction. ``self.Conv(X, W, group=2)`` appends an ONNX operator to `nodes`.

    Its inputs are arrays of the network, results of other operators, or constants: numbers, lists, and NumPy arrays.
    The method `_KIND` converts operators of MXNet of that kind. `batch_axis` of the array `first` has the batch size.
    """

    def __init__(self, first: Array, batch_axis: int):
        self.nodes: list[NodeProto] = []
        self._first, self._batch_axis = first, batch_axis

    def __getattr__(self, operator: str) -> Callable[..., Any]:
        return functools.partial(self.add, operator)

    def add(self, operator: str, *inputs: Any, results: int = 0, **settings: Any) -> Any:
        """Append an operator; return the name of its result, or a list of names if `results` is given."""
        input_names = [self._name(X) for X in inputs]
        name = f'{operator}_{len(self.nodes)}'
        names = [f'{name}_{i}' for i in range(results)] or [name]
        self.nodes.append(helper.make_node(operator, input_names, names, name, **settings))
        return names if results else name

    def _name(self, X: Any) -> str:
        if isinstance(X, (Array, str)):
            return X if isinstance(X, str) else X.name
        values = numpy.asarray(X)
        if values.dtype == 'float64' and not isinstance(X, numpy.ndarray):
            values = values.astype('float32')
        return self.add('Constant', value=numpy_helper.from_array(values))

    def convert(self, op: Operation, inputs: list[Array]) -> list[str]:
        """Append an operation; return the names of its results. Raises NotImplementedError with the reason in words."""
        kind = ALIASES.get(op.kind, op.kind)
        converter = CONVERTERS.get(kind) or vars(Operators).get(f'_{kind}')
        if not converter:
            raise NotImplementedError('which docs/export.md does not list')
        results = converter(self, op, *inputs, **op.settings)
        return [self._name(Y) for Y in (results if isinstance(results, list) else [results])]

    def cast(self, X: Any, dtype: str) -> Any:
        """Convert to a dtype."""
        return X if getattr(X, 'dtype', None) == dtype else self.Cast(
            X, to=helper.np_dtype_to_tensor_dtype(numpy.dtype(dtype)))

    def reshape(self, X: Any, array: Array) -> str:
        """Reshape to the shape of an array."""
        sizes = array.sizes(-1)
        return self.Reshape(X, sizes if sizes.count(-1) < 2 else self.shape(array))

    def shape(self, array: Array) -> Any:
        """Return the shape of an array; sizes that depend on the batch are multiples of it."""
        if array.shape == array.other:
            return [*array.shape]
        batch = self.Shape(self._first, start=self._batch_axis, end=self._batch_axis + 1)
        batch_size = self._first.shape[self._batch_axis]
        return self.Concat(*([size] if size == other else self.Mul(batch, [size // batch_size])
                             for size, other in zip(array.shape, array.other)), axis=0)

    def swap(self, X: Any, rank: int, first: int, second: int) -> Any:
        """Swap two axes, of which both may be the same."""
        order = [*range(rank)]
        order[first], order[second] = order[second], order[first]
        return X if order == [*range(rank)] else self.Transpose(X, perm=order)

    def indices(self, X: Any, array: Array, axis: int, mode: str = 'clip') -> str:
        """Return indices along an axis of an array; those beyond its ends become the first or last, or wrap around."""
        X, size = self.cast(X, 'int64'), array.shape[axis]
        return self.Mod(X, size) if mode == 'wrap' else self.Clip(X, 0, size - 1)

    def _leakyrelu(self, op, X, gamma=None, act_type='leaky', slope=0.25, **_):
        if act_type == 'prelu':
            return self.PRelu(X, self.Reshape(gamma, [-1, *[1] * (X.rank - 2)]))
        if act_type in ('gelu', 'gelu_erf'):  # X / 2 * (1 + erf(X / sqrt(2)))
            return self.Mul(self.Mul(X, 0.5), self.Add(self.Erf(self.Mul(X, 0.5 ** 0.5)), 1.0))
        if act_type == 'selu':
            return self.Selu(X)
        return self.add({'leaky': 'LeakyRelu', 'elu': 'Elu'}[act_type], X, alpha=float(slope))

    def _convolution(self, op, *arrays, kernel, stride=None, pad=(), dilate=None, adj=None, num_group=1, layout='NC',
                     target_shape=None, **_):
        require(layout.startswith('NC') and not target_shape, f'layout {layout} or target_shape')
        return self.add('Conv' if op.kind == 'convolution' else 'ConvTranspose', *arrays, kernel_shape=kernel,
                        strides=stride, pads=pad * 2 or None, dilations=dilate, group=num_group, output_padding=adj)

    def _pooling(self, op, X, kernel=None, pool_type='max', global_pool=False, stride=None, pad=(), layout='NC',
                 pooling_convention='valid', count_include_pad=True, **_):
        require(layout.startswith('NC'), f'layout {layout}')
        operator = {'max': 'MaxPool', 'avg': 'AveragePool'}[pool_type]
        if global_pool:
            return self.add(f'Global{operator}', X)
        settings = {'count_include_pad': int(count_include_pad)} if pool_type == 'avg' else {}
        return self.add(operator, X, kernel_shape=kernel, strides=stride, pads=pad * 2 or None,
                        ceil_mode={'valid': 0, 'full': 1}[pooling_convention], **settings)

    def _fullyconnected(self, op, X, W, *bias, flatten=True, **_):
        if flatten or X.rank == 2:
            return self.Gemm(X if X.rank == 2 else self.Flatten(X), W, *bias, transB=1)
        Y = self.MatMul(X, self.Transpose(W))
        return self.Add(Y, *bias) if bias else Y

    def _batchnorm(self, op, X, gamma, *arrays, axis=1, eps=1e-3, fix_gamma=True, **_):
        gamma = numpy.ones(gamma.shape, 'float32') if fix_gamma else gamma
        Y = self.BatchNormalization(self.swap(X, X.rank, 1, axis), gamma, *arrays, epsilon=eps)
        return self.swap(Y, X.rank, 1, axis)

    def _layernorm(self, op, X, gamma, beta, axis=-1, eps=1e-5, **_):
        Y = self.LayerNormalization(self.swap(X, X.rank, -1, axis), gamma, beta, epsilon=eps)
        return self.swap(Y, X.rank, -1, axis)

    def _groupnorm(self, op, X, gamma, beta, num_groups=1, eps=1e-5, **_):
        ones = numpy.ones(num_groups, 'float32')
        Y = self.InstanceNormalization(self.Reshape(X, [0, num_groups, -1]), ones, ones * 0, epsilon=eps)
        Y = self.Reshape(Y, [0, *gamma.shape, -1])  # MXNet 1.9 scales groups, MXNet 2 channels
        gamma, beta = self.Reshape(gamma, [-1, 1]), self.Reshape(beta, [-1, 1])
        return self.reshape(self.Add(self.Mul(Y, gamma), beta), op.output)

    def _l2normalization(self, op, X, mode='instance', eps=1e-10, **_):
        axes = {'instance': range(1, X.rank), 'channel': [1], 'spatial': range(2, X.rank)}[mode]
        return self.Div(X, self.Sqrt(self.Add(self.ReduceSumSquare(X, [*axes]), eps)))

    def _softmax(self, op, X, length=None, axis=-1, temperature=1, **_):
        Y = X if temperature == 1 else self.Div(X, float(temperature))
        if length is None:
            return self.add('Softmax' if op.kind == 'softmax' else 'LogSoftmax', Y, axis=axis)
        require(op.kind == 'softmax', 'a length')
        mask = self._before(X, length, axis, [axis])
        return self.Where(mask, self.Softmax(self.Where(mask, Y, -1e30), axis=axis), 0.0)

    def _sequencemask(self, op, X, length=None, axis=0, value=0, **_):
        if length is None:
            return X
        missing = [i for i in range(X.rank) if i != 1 - axis]  # the rows are on axis 1 or 0
        return self.Where(self._before(X, length, axis, missing), X, float(value))

    def _before(self, X, length, axis, missing):
        """Return a mask, true before `length` along an axis; `missing` are the axes that `length` does not have."""
        require(X.shape[axis] == X.other[axis], 'the axis of a mask depends on the batch')
        positions = numpy.arange(X.shape[axis]).reshape(-1, *[1] * (X.rank - 1 - axis % X.rank))
        return self.Less(positions, self.Unsqueeze(self.cast(length, 'int64'), missing))

    def _rnn(self, op, X, params, *states, mode, state_size, num_layers, bidirectional=False, projection_size=None,
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
            array = self.Reshape(self.Slice(params, [start], [offset]), [len(gates), state_size * columns])
            return self.Reshape(self.Gather(array, gates), [1, len(gates) * state_size, columns])

        columns = [X.shape[2]] + [state_size * directions] * (num_layers - 1)  # of each layer's input
        weights = [[(take(n), take(state_size)) for _ in range(directions)] for n in columns]
        biases = [[(take(1), take(1)) for _ in range(directions)] for _ in columns]
        results = []
        for i, (matrices, vectors) in enumerate(zip(weights, biases)):
            W, R = (self.Concat(*arrays, axis=0) for arrays in zip(*matrices))
            B = self.Reshape(self.Concat(*sum(vectors, ()), axis=1), [directions, -1])
            first = [self.Slice(state, [i * directions], [(i + 1) * directions]) for state in states[:num_states]]
            Y, *last = self.add(mode[:4].rstrip('_').upper(), X, W, R, B, '', *first, results=1 + num_states,
                                hidden_size=state_size, direction=['forward', 'bidirectional'][directions - 1],
                                **settings)
            X = self.Reshape(self.swap(Y, 4, 1, 2), [0, 0, -1])  # (T, directions, n, h) -> (T, n, directions * h)
            results.append(last)
        return [X, *(self.Concat(*each, axis=0) for each in zip(*results))]

    def _arange(self, op, *_, start=0, stop=None, step=1, repeat=1, **__):
        require(op.output.shape == op.output.other and repeat == 1, 'its size depends on the batch')
        if op.kind == 'arange' and stop is None:  # arange(n) begins at 0
            start = 0
        return self.Identity((start + numpy.arange(op.output.shape[0]) * step).astype(op.output.dtype))

    def _slicechannel(self, op, X, axis=1, num_outputs=0, sections=0, indices=(), squeeze_axis=False, **_):
        size, parts = X.shape[axis], num_outputs or sections
        starts = [i * size // parts for i in range(parts)] or [*indices]
        results = self.Split(X, numpy.diff([*starts, size]), results=len(starts), axis=axis)
        return [self.Squeeze(Y, [axis]) for Y in results] if squeeze_axis else results

    def _slice(self, op, X, begin, end=(), step=(), **_):
        for axis, (first, last, by) in enumerate(zip_longest(*map(as_list, (begin, end, step)))):
            by = by or 1
            first = first if first is not None else 0 if by > 0 else END
            last = last if last is not None else END if by > 0 else -END
            X = X if (first, last, by) == (0, END, 1) else self.Slice(X, [first], [last], [axis], [by])
        return X

    def _flip(self, op, X, axis, **_):
        for each in as_list(axis):
            X = self.Slice(X, [END], [-END], [each], [-1])
        return X

    def _repeat(self, op, X, repeats, axis, **_):
        new, times = axis % X.rank + 1, as_list(repeats)[0]
        copies = self.Tile(self.Unsqueeze(X, [new]), [times if i == new else 1 for i in range(X.rank + 1)])
        return self.reshape(copies, op.output)

    def _pad(self, op, X, pad_width, mode='constant', constant_value=0, constant_values=0, **_):
        widths = numpy.reshape(pad_width, (-1, 2)).T.ravel()
        return self.Pad(X, widths, numpy.array(constant_value or constant_values, X.dtype), mode=mode)

    def _upsampling(self, op, X, *others, sample_type='nearest', align_corners=True, **_):
        require(sample_type == 'nearest', f'sample_type {sample_type}')
        require(op.kind != 'upsampling' or not others, 'several inputs')
        if op.kind == 'upsampling':
            settings = {'nearest_mode': 'floor', 'coordinate_transformation_mode': 'asymmetric'}
        else:
            corners = 'align_corners' if align_corners else 'half_pixel'
            settings = {'mode': 'linear', 'coordinate_transformation_mode': corners}
        return self.Resize(X, '', '', self.shape(op.output), **settings)

    def _reduce(self, op, X, axis=None, exclude=False, keepdims=False, ord=2, **_):
        require(ord == 2, f'ord {ord}')
        every = range(X.rank)
        axes = every if axis is None else [each % X.rank for each in as_list(axis)]
        axes = [each for each in every if (each in axes) != exclude]
        Y = self.add(REDUCTIONS[op.kind], self.cast(X, op.output.dtype), axes, keepdims=int(keepdims))
        is_number = axes == [*every] and op.output.shape == (1,)  # mx.nd has no arrays without axes
        return self.Reshape(Y, [1]) if is_number else Y

    def _argmax(self, op, X, axis=None, keepdims=False, **_):
        require(axis is not None, 'no axis')
        operator = 'ArgMax' if op.kind == 'argmax' else 'ArgMin'
        return self.cast(self.add(operator, X, axis=axis, keepdims=int(keepdims)), op.output.dtype)

    def _matmul(self, op, A, B, transpose_a=False, transpose_b=False, **_):
        require(op.kind != 'dot' or B.rank <= 2, 'more than two dimensions')
        return self.MatMul(self.swap(A, A.rank, -2, -1) if transpose_a else A,
                           self.swap(B, B.rank, -2, -1) if transpose_b else B)
