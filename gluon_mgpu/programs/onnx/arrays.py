"""Converters of operators that make, move, select or repeat the elements of arrays."""
from itertools import zip_longest

import numpy

from .building import END, as_list, by_name, require, require_fixed


def _slicechannel(g, op, X, axis=1, num_outputs=0, sections=0, indices=(), squeeze_axis=False):
    axis = min(1, X.rank - 1) if op.kind == 'hsplit' else axis  # MXNet 2 writes 0
    parts = numpy.array_split(range(X.shape[axis]), num_outputs or sections or indices[1:])  # the first index is 0
    sizes, number = [*map(len, parts)], len(parts)
    if len({*sizes}) > 1:
        results = g.Split(X, sizes, results=number, axis=axis)
    else:
        results = g.Split(X, results=number, axis=axis, num_outputs=number)
    return [g.Squeeze(Y, [axis]) for Y in results] if squeeze_axis else results


def _slice(g, X, begin, end=(), step=()):
    for axis, (first, last, by) in enumerate(zip_longest(*map(as_list, (begin, end, step)))):
        by = by or 1
        first = first if first is not None else 0 if by > 0 else END
        last = last if last is not None else END if by > 0 else -END
        X = X if (first, last, by) == (0, END, 1) else g.Slice(X, [first], [last], [axis], [by])
    return X


def _crop(g, op, X, *_, offset=(0, 0), center_crop=False):
    require_fixed(X, op.output, axes=[2, 3])
    if center_crop:
        offset = numpy.subtract(X.shape[2:], op.output.shape[2:]) // 2
    return g.Slice(X, [*offset], [*numpy.add(offset, op.output.shape[2:])], [2, 3])


def _flip(g, X, axis):
    for each in as_list(axis):
        X = g.Slice(X, [END], [-END], [each], [-1])
    return X


def _pick(g, op, X, places, axis=-1, mode='clip'):
    indices = g.indices(places, X, axis, mode)
    if places.rank < X.rank:
        indices = g.Unsqueeze(indices, [axis])
    return g.reshape(g.GatherElements(X, indices, axis=axis), op.output)


def _sequencereverse(g, op, X, length=None):
    if length is None:
        return _flip(g, X, 0)
    length = g.Max(g.cast(length, 'int64'), numpy.array(1))  # onnxruntime 1.15 returns anything for 0, the same as 1
    return g.ReverseSequence(X, length, time_axis=0, batch_axis=1)


def _tile(g, X, reps):
    reps = as_list(reps)
    added = len(reps) - X.rank  # new axes in front
    return g.Tile(g.Unsqueeze(X, [*range(added)]) if added > 0 else X, [1] * -added + reps)


def _repeat(g, op, X, repeats, axis=None):
    rank = 1 if axis is None else X.rank
    new = (axis or 0) % rank + 1
    repetitions = [1] * (rank + 1)
    repetitions[new], *_ = as_list(repeats)
    return g.reshape(g.Tile(g.Unsqueeze(X if axis is not None else g.Reshape(X, [-1]), [new]), repetitions), op.output)


def _pad(g, X, pad_width, mode='constant', constant_value=0, constant_values=0):
    require(mode in ('constant', 'edge', 'reflect'), f'mode {mode}')
    widths = numpy.reshape(pad_width, (-1, 2)).T.ravel()
    return g.Pad(X, widths, numpy.array(constant_value or constant_values, X.dtype), mode=mode)


def _concat(g, op, *X, dim=1, axis=None):
    arrays, axis = [g.cast(each, op.dtype) for each in X], axis if op.kind == 'concatenate' else dim
    if op.output.rank == 1:  # also np.concatenate with axis=None, which flattens them
        arrays, axis = [g.Reshape(each, [-1]) for each in arrays], 0
    return g.Concat(*arrays, axis=axis)


def _roll(g, X, shift, axis=None):
    require(axis is not None, 'no axis')
    require_fixed(X, axes=as_list(axis))
    Y = X
    for by, each in zip(as_list(shift), as_list(axis)):
        Y = g.Gather(Y, numpy.roll(numpy.arange(X.shape[each]), by), axis=each)
    return Y


CONVERTERS = {
    **by_name(_slicechannel, _slice, _crop, _flip, _pick, _sequencereverse, _tile, _repeat, _pad, _concat, _roll),
    'embedding': lambda g, X, W: g.Gather(W, g.indices(X, W, 0)),
    'take': lambda g, X, places, axis=0, mode='clip': g.Gather(X, g.indices(places, X, axis, mode), axis=axis),
    'shapearray': lambda g, X: g.Shape(X),
    'onehot': lambda g, op, X, depth, on_value=1, off_value=0: g.Where(  # OneHot would count -1 from the end
        g.Equal(g.Unsqueeze(g.cast(X, 'int64'), [-1]), numpy.arange(depth)),
        *numpy.array([on_value, off_value], op.dtype)),
    'reshape': lambda g, op, X, *_: g.reshape(X, op.output),
    'broadcastto': lambda g, op, X, *_: g.Expand(X, g.shape(op.output)),
    'fulllike': lambda g, op, *_, value=0, fill_value=0: g.Expand(
        numpy.array(value or fill_value or int('ones' in op.kind), op.dtype), g.shape(op.output)),
    'swapaxis': lambda g, X, dim1=0, dim2=0: g.swap(X, X.rank, dim1, dim2),
    'transpose': lambda g, X, axes=None: g.Transpose(X, perm=axes and [axis % X.rank for axis in axes]),
    'sliceaxis': lambda g, X, axis, begin, end=END: g.Slice(X, [begin], [end], [axis]),
    'slicelike': lambda g, op, X, *_: g.Slice(X, [0] * X.rank, g.shape(op.output)),
    'stack': lambda g, *X, axis=0: g.Concat(*(g.Unsqueeze(each, [axis]) for each in X), axis=axis),
    'depthtospace': lambda g, X, block_size: g.DepthToSpace(X, blocksize=block_size),
    'spacetodepth': lambda g, X, block_size: g.SpaceToDepth(X, blocksize=block_size),
    'moveaxis': lambda g, X, source, destination: g.Transpose(  # of an array whose sizes are 0, 1, 2 ...
        X, perm=numpy.moveaxis(numpy.empty(range(X.rank)), source, destination).shape),
    'tril': lambda g, X, k=0: g.Where(
        numpy.tri(X.shape[-2], X.shape[-1], k, bool), X, numpy.array(0, X.dtype)),
    'gathernd': lambda g, X, places: g.GatherND(
        X, g.Transpose(g.cast(places, 'int64'), perm=[*range(1, places.rank), 0])),
}
