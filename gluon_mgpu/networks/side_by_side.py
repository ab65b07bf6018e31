"""Small images side by side, for speed: with AMX, oneDNN's convolutions compute a row of an image at a time.

The images of ResNet-18's last stage have rows of 4 numbers, where AMX has room for 16 or more. So k images become one,
with their columns in turn. A row of images a and b, k = 2:

    a0 a1 a2 a3    b0 b1 b2 b3    ->    a0 b0 a1 b1 a2 b2 a3 b3

Columns that were neighbours are now k apart, so a convolution with dilation k and padding k along the row computes the
same. Batch norm, relu and addition do not depend on where a number is.
"""
from contextvars import ContextVar
from typing import Any

from ..mxnet_setup.compat import gluon, mx
from .precision import LowPrecisionConv2D, cast

_num_images = ContextVar('k, of a network that is being traced', default=1)


def lay_side_by_side(num_rows: int) -> None:
    """Let layers that are traced in this context lay k images side by side, the most that divide `num_rows`."""
    _num_images.set(next(k for k in (8, 4, 2, 1) if num_rows % k == 0))


def _regroup(X: Any, split: tuple, axes: tuple, merge: tuple) -> Any:
    # In the shapes of npx.reshape, -6 splits an axis, -5 merges two, -2 keeps one, -4 the others
    X = cast(mx.sym, X, 'float32').as_np_ndarray()  # MXNet cannot transpose every array of bfloat16
    return cast(mx.sym, mx.sym.npx.reshape(mx.sym.npx.reshape(X, split).transpose(axes), merge), 'bfloat16')


class SideBySideConv2D(LowPrecisionConv2D):
    """3x3 convolution of images side by side; with another stride than 1, it takes usual images and lays them so."""

    def hybrid_forward(self, F, X, weight, bias=None):
        """Compute (n / k, c, h, k w) -> (n / k, channels, h, k w), or (n, c, ...) -> (n / k, channels, h, k w)."""
        k = _num_images.get()
        if self._kwargs['stride'] == (1, 1):
            self._kwargs.update(pad=(1, k), dilate=(1, k))
            return super().hybrid_forward(F, X, weight, bias)
        Y = super().hybrid_forward(F, X, weight, bias)
        return Y if k == 1 else _regroup(Y, (-6, -1, k, -4), (0, 2, 3, 4, 1), (-2, -2, -2, -5))


class GlobalAvgPool2D(gluon.nn.GlobalAvgPool2D):
    """``gluon.nn.GlobalAvgPool2D`` of images side by side, (n / k, c, h, k w) -> (n, c, 1, 1)."""

    def hybrid_forward(self, F, X):
        """Compute it for each image."""
        k = _num_images.get()
        if k > 1:
            X = _regroup(X, (-2, -2, -2, -6, -1, k), (0, 4, 1, 2, 3), (-5, -4))
        return super().hybrid_forward(F, X)
