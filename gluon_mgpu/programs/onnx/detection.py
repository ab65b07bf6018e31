"""Converters of operators for object detection."""
from math import inf

import numpy

from .building import by_name, require, require_fixed


def _roialign(g, X, rois, pooled_size, spatial_scale, sample_ratio=-1, position_sensitive=False, aligned=False):
    require(not position_sensitive, 'position_sensitive')
    rows = g.cast(g.Gather(rois, numpy.array(0), axis=1), 'int64')
    return g.RoiAlign(X, g.Slice(rois, [1], [5], [1]), rows, output_height=pooled_size[0], output_width=pooled_size[1],
                      sampling_ratio=max(sample_ratio, 0), spatial_scale=float(spatial_scale),
                      coordinate_transformation_mode='half_pixel' if aligned else 'output_half_pixel')


def _boxdecode(g, X, anchors, std0=1, std1=1, std2=1, std3=1, clip=-1, format='center'):
    """Return corners from distances and logarithms of sizes, in units of the anchors."""
    require(format == 'center', f'format {format}')
    X = g.Mul(X, numpy.array([std0, std1, std2, std3], 'float32'))
    distance, size, middle, unit = (g.Slice(array, [start], [start + 2], [2])
                                    for array in (X, anchors) for start in (0, 2))
    middle = g.Add(g.Mul(distance, unit), middle)
    size = g.Min(size, float(clip) if clip > 0 else inf)
    half = g.Mul(g.Mul(g.Exp(size), unit), 0.5)
    return g.Concat(g.Sub(middle, half), g.Add(middle, half), axis=2)


def _boxnms(g, op, X, overlap_thresh=0.5, valid_thresh=0, topk=-1, coord_start=2, score_index=1, id_index=-1,
            background_id=-1, force_suppress=False, in_format='corner', out_format='corner'):
    """Return the rows that are kept, by score; the others are -1."""
    require(in_format == out_format and topk, 'topk=0 or another out_format than in_format')
    require_fixed(X, axes=[-2])
    count, width = X.shape[-2:]
    size = min(count, topk) if topk > 0 else count
    data = g.Reshape(X, [-1, count, width])

    def column(array, index):
        return g.Gather(array, numpy.array(index), axis=2)

    def ordered(array, keys):
        keys, places = g.TopK(keys, [size], results=2, axis=1)
        return keys, g.GatherND(array, g.Unsqueeze(places, [2]), batch_dims=1)

    valid = g.Greater(column(data, score_index), float(valid_thresh))
    if id_index >= 0:
        valid = g.And(valid, g.Not(g.Equal(column(data, id_index), float(background_id))))
    scores, rows = ordered(data, g.Where(valid, column(data, score_index), -inf))
    scores = g.Unsqueeze(scores, [1])
    if id_index >= 0 and not force_suppress:  # (batch, classes, boxes)
        ids = g.Unsqueeze(g.cast(column(rows, id_index), 'int64'), [1])
        low, high = (g.add(operator, ids, keepdims=0) for operator in ('ReduceMin', 'ReduceMax'))
        classes = g.Unsqueeze(g.Range(low, g.Add(high, numpy.array(1)), numpy.array(1)), [1])
        scores = g.Where(g.Equal(ids, classes), scores, -inf)
    first, second = (g.Slice(rows, [start], [start + 2], [2]) for start in (coord_start, coord_start + 2))
    if in_format == 'corner':
        second = g.Max(first, second)  # ONNX would swap corners in the wrong order, which MXNet takes as an empty box
    kept = g.NonMaxSuppression(g.Concat(first, second, axis=2), scores, [size], [float(overlap_thresh)],
                               [float(valid_thresh)], center_point_box=int(in_format == 'center'))
    places = g.Gather(kept, [0, 2], axis=1)  # of rows in the batch and of boxes
    zeros = g.Expand(0.0, g.Shape(rows, end=2))
    mask = g.ScatterND(zeros, places, g.Expand(1.0, g.Shape(places, end=1)))
    mask, rows = ordered(rows, mask)
    rows = g.Where(g.cast(g.Unsqueeze(mask, [2]), 'bool'), rows, -1.0)
    return g.reshape(g.Pad(rows, [0, 0, 0, 0, count - size, 0], -1.0), op.output)


CONVERTERS = by_name(_boxdecode, _boxnms, _roialign)
