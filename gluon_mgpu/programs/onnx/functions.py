"""Converters of functions along axes: softmax, reductions, sorting, products of matrices and attention."""
import functools
import math

import numpy

from .arithmetic import in_floats
from .building import as_list, by_name, require, require_fixed


def _softmax(g, op, X, length=None, axis=-1, temperature=1):
    Y = X if temperature == 1 else g.Div(X, float(temperature))
    if length is None:
        return g.add('Softmax' if op.kind == 'softmax' else 'LogSoftmax', Y, axis=axis)
    require(op.kind == 'softmax', 'a length')
    mask = g.before(X, length, axis, [axis])
    return g.Where(mask, g.Softmax(g.Where(mask, Y, -1e30), axis=axis), 0.0)


def _sequencemask(g, X, length=None, axis=0, value=0):
    if length is None:
        return X
    missing = [i for i in range(X.rank) if i != 1 - axis]  # the rows are on axis 1 or 0
    return g.Where(g.before(X, length, axis, missing), X, numpy.array(value, X.dtype))


def _softmaxoutput(g, op, X, *_, multi_output=False, preserve_shape=False):
    if multi_output or preserve_shape:
        return g.Softmax(X, axis=1 if multi_output else -1)
    return g.reshape(g.Softmax(g.Flatten(X)), op.output)  # over all axes but the first


def _reduce(g, op, X, axis=None, exclude=False, keepdims=False, ord=2):
    require(ord == 2, f'ord {ord}')
    every = range(X.rank)
    axes = every if axis is None else [each % X.rank for each in as_list(axis)]
    axes = [each for each in every if (each in axes) != exclude]
    if not axes:
        return g.Identity(X)
    dtype = op.dtype if op.dtype != 'bool' else 'int32'
    operator = 'ReduceL2' if op.kind == 'norm' else f'Reduce{op.kind.capitalize()}'
    Y = g.cast(g.add(operator, g.cast(X, dtype), axes, keepdims=int(keepdims)), op.dtype, dtype)
    return Y if len(axes) < X.rank else g.reshape(Y, op.output)  # mx.nd has no arrays without axes


def _var(g, op, X, axis=None, ddof=0, keepdims=False):
    axes = [*range(X.rank)] if axis is None else as_list(axis)
    count, distances = math.prod(X.shape[each] for each in axes), g.Sub(X, g.ReduceMean(X, axes))
    Y = g.Mul(g.ReduceMean(g.Mul(distances, distances), axes, keepdims=int(keepdims)), count / (count - ddof))
    return g.Sqrt(Y) if op.kind == 'std' else Y


def _einsum(g, *X, subscripts):
    """Return Einsum with small letters, because old runtimes have no others, in the same order."""
    letters = sorted({*filter(str.isalpha, subscripts)})
    return g.Einsum(*X, equation=subscripts.translate({ord(letter): 97 + i for i, letter in enumerate(letters)}))


def _argmax(g, op, X, axis=None, keepdims=False):
    require(axis is not None, 'no axis')
    operator = 'ArgMax' if op.kind == 'argmax' else 'ArgMin'
    return g.cast(g.add(operator, X, axis=axis, keepdims=int(keepdims)), op.dtype)


def _topk(g, op, X, k=1, axis=-1, ret_typ='indices', is_ascend=False):
    is_flat = op.node.get('attrs', {}).get('axis') == 'None'
    if k < 1:  # all
        axes = range(X.rank) if is_flat else [axis]
        require_fixed(X, axes=axes)
        k = math.prod(X.shape[each] for each in axes)
    if is_flat:
        X, axis = g.Reshape(X, [-1]), 0
    values, places = g.TopK(X, [k], results=2, axis=axis, largest=int(not is_ascend))
    if ret_typ == 'mask':
        zero, one = numpy.array([0, 1], op.dtype)
        zeros, ones = g.Expand(zero, g.Shape(X)), g.Expand(one, g.Shape(places))
        return g.reshape(g.ScatterElements(zeros, places, ones, axis=axis), op.output)
    places = g.cast(places, [*op.outputs.values()][-1].dtype)
    return {'value': values, 'indices': places, 'both': [values, places]}[ret_typ]


def _matmul(g, op, A, B, transpose_a=False, transpose_b=False, alpha=1):
    require(op.kind != 'dot' or B.rank <= 2, 'more than two dimensions')
    Y = g.MatMul(g.swap(A, A.rank, -2, -1) if transpose_a else A, g.swap(B, B.rank, -2, -1) if transpose_b else B)
    return Y if alpha == 1 else g.Mul(Y, float(alpha))


def _heads(g, X, heads, parts):
    """Split (length, rows, heads * parts * size) into its parts, each (rows, heads, length, size)."""
    split = g.Split(g.Reshape(X, [0, 0, heads, parts, -1]), results=parts, axis=3, num_outputs=parts)
    return [g.Transpose(g.Squeeze(Y, [3]), perm=[1, 2, 0, 3]) for Y in split]


def _attention_scores(g, op, X, memory=None, *, heads):
    parts = 1 if memory else 3
    queries, *others = _heads(g, X, heads, parts)
    keys, *_ = others or _heads(g, memory, heads, 2)
    size = X.shape[2] // heads // parts
    return g.reshape(g.MatMul(g.Div(queries, size ** 0.5), g.Transpose(keys, perm=[0, 1, 3, 2])), op.output)


def _attention_values(g, op, X, weights, heads, parts):
    shape, other = ((rows // heads, heads, *lengths) for rows, *lengths in (weights.shape, weights.other))
    weights = g.reshape(weights, weights._replace(shape=shape, other=other))
    Y = g.MatMul(weights, _heads(g, X, heads, parts)[-1])  # (rows, heads, length, size)
    return g.reshape(g.Transpose(Y, perm=[2, 0, 1, 3]), op.output)


CONVERTERS = {
    **by_name(_softmax, _softmaxoutput, _sequencemask, _reduce, _argmax, _topk, _matmul, _einsum),
    'softmaxactivation': lambda g, X, mode='instance': g.Softmax(X, axis=1 if mode == 'channel' else -1),
    'sort': functools.partial(_topk, k=0, is_ascend=True, ret_typ='value'),
    'argsort': functools.partial(_topk, k=0, is_ascend=True),
    'var': in_floats(_var),
    'cumsum': lambda g, op, X, axis=None: g.CumSum(
        g.cast(g.Reshape(X, [-1]) if axis is None else X, op.dtype), numpy.array(axis or 0)),
    'interleavedmatmulselfattqk': _attention_scores,
    'interleavedmatmulencdecqk': _attention_scores,
    'interleavedmatmulselfattvalatt': functools.partial(_attention_values, parts=3),
    'interleavedmatmulencdecvalatt': functools.partial(_attention_values, parts=2),
}
