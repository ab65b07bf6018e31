"""Lower precision inside a network: bfloat16 on CPUs that support it, float16 on GPUs.

Convolutions and the arrays between layers have it. Parameters, batch norm, the loss and the update stay float32.
"""
from typing import Any

from ..mxnet_setup.compat import MXNET_MAJOR, gluon, low_precision_type, of_semantics
from ..mxnet_setup.instructions import bfloat16_obstacle

DTYPES = ('float32', 'bfloat16', 'float16')


def check_dtype(dtype: str, devices: list, name: str = 'dtype') -> None:
    """Raise ValueError, with the name of the argument, if the devices cannot compute in `dtype`."""
    if dtype not in DTYPES:
        raise ValueError(f'{name} {dtype!r}: must be one of {", ".join(DTYPES)}')
    if dtype == 'float32':
        return
    if MXNET_MAJOR >= 2:
        raise ValueError(f'{name} {dtype}: needs MXNet 1.9, this is MXNet {MXNET_MAJOR}; use float32')
    kind, other = {'bfloat16': ('cpu', 'float16'), 'float16': ('gpu', 'bfloat16')}[dtype]
    for device in devices:
        if device.device_type != kind:
            raise ValueError(f'{name} {dtype} on {device}: works on {kind.upper()}s only; use float32 or {other}')
    if dtype == 'bfloat16' and bfloat16_obstacle():
        raise ValueError(f'{name} bfloat16: {bfloat16_obstacle()}')


def cast(F: Any, X: Any, dtype: str) -> Any:
    """Return an array or symbol of `dtype`."""
    return of_semantics(F.amp_cast(X.as_nd_ndarray(), dtype=low_precision_type(dtype)))


class Cast(gluon.HybridBlock):
    """Layer that casts arrays of any floating-point type to `dtype`, and gradients back."""

    def __init__(self, dtype: str):
        super().__init__()
        self._dtype = dtype

    def hybrid_forward(self, F, X):
        """Cast; the shape stays."""
        return cast(F, X, self._dtype)


class LowPrecisionConv2D(gluon.nn.Conv2D):
    """``gluon.nn.Conv2D`` that computes in `dtype` with float32 parameters; only in a hybridized network."""

    def __init__(self, *args, dtype: str, **kwargs):
        super().__init__(*args, **kwargs)
        self._dtype = dtype

    def hybrid_forward(self, F, X, weight, bias=None):
        """Compute (n, c, h, w) -> (n, channels, ...)."""
        bias = bias if bias is None else cast(F, bias, self._dtype)
        return super().hybrid_forward(F, X, cast(F, weight, self._dtype), bias)


def conv2d(*args, dtype: str = 'float32', **kwargs) -> gluon.nn.Conv2D:
    """Return a ``gluon.nn.Conv2D`` that computes in `dtype`, one of `DTYPES`."""
    return gluon.nn.Conv2D(*args, **kwargs) if dtype == 'float32' else LowPrecisionConv2D(*args, dtype=dtype, **kwargs)
