"""Converters of operators for object detection."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..mxnet_setup.compat import mx
from .building import require, require_fixed


def _multiboxprior(g, op, X, **settings):
    """Return the boxes as a constant, because they depend on the size of the image only."""
    require_fixed(X, axes=[2, 3])
    return mx.nd.contrib.MultiBoxPrior(mx.nd.zeros((1, 1, *X.shape[2:])), **settings).asnumpy()


def _roialign(g, op, X, rois, pooled_size, spatial_scale, sample_ratio=-1, position_sensitive=False, aligned=False):
    require(not position_sensitive, 'position_sensitive')
    rows = g.Squeeze(g.cast(g.Slice(rois, [0], [1], [1]), 'int64'), [1])
    return g.RoiAlign(X, g.Slice(rois, [1], [5], [1]), rows, output_height=pooled_size[0], output_width=pooled_size[1],
                      sampling_ratio=max(sample_ratio, 0), spatial_scale=float(spatial_scale),
                      coordinate_transformation_mode='half_pixel' if aligned else 'output_half_pixel')


CONVERTERS: dict[str, Callable[..., Any]] = {'multiboxprior': _multiboxprior, 'roialign': _roialign}
