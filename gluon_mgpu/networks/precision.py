"""Lower precision inside a network: bfloat16 on CPUs that compute in it, float16 on GPUs.

What passes between the layers and what the convolutions multiply is of the lower precision, half as many
bytes and about twice as many products per second. What is kept is float32: the parameters, to which small
updates are added, batch norm's scale, shift and statistics, the loss and the update.
"""
from __future__ import annotations

from ..base.machine import processor_flags
from ..mxnet_setup.compat import MXNET_MAJOR, gluon, low_precision_type

DTYPES = ('float32', 'bfloat16', 'float16')


def check_dtype(dtype: str, devices: list) -> None:
    """Raise ValueError, with one line, if the devices cannot compute in a precision.

    Parameters
    ----------
    dtype : str
        One of `DTYPES`.
    devices : list of mx.Context
        bfloat16 needs CPU contexts and a CPU with avx512_bf16, float16 needs GPUs; float32 runs anywhere.
    """
    if dtype not in DTYPES:
        raise ValueError(f'dtype {dtype!r}: one of {", ".join(DTYPES)} expected')
    if dtype == 'float32':
        return
    if MXNET_MAJOR >= 2:
        raise ValueError(f'dtype {dtype}: needs MXNet 1.9, this is MXNet {MXNET_MAJOR}; use float32')
    kind = {'bfloat16': 'cpu', 'float16': 'gpu'}[dtype]
    for device in devices:
        if device.device_type != kind:
            raise ValueError(f'dtype {dtype} on {device}: it is for {kind.upper()}s; use float32, or '
                             f'{"float16" if dtype == "bfloat16" else "bfloat16"} there')
    if dtype == 'bfloat16' and 'avx512_bf16' not in processor_flags():
        raise ValueError('dtype bfloat16: this CPU has no avx512_bf16 and would be slower with it; use float32')


def _cast(F, X, dtype):
    return F.amp_cast(X.as_nd_ndarray(), dtype=low_precision_type(dtype)).as_np_ndarray()


class Cast(gluon.HybridBlock):
    """A layer that turns arrays of any floating-point type into `dtype`, and gradients back."""

    def __init__(self, dtype: str):
        super().__init__()
        self._dtype = dtype

    def hybrid_forward(self, F, X):
        """(any shape) -> (the same shape); does not wait."""
        return _cast(F, X, self._dtype)


class LowPrecisionConv2D(gluon.nn.Conv2D):
    """A convolution whose input and output are of a lower precision and whose parameters are float32.

    Only inside a hybridized network, since NumPy, and so an array in Python's hands, knows no bfloat16.

    Parameters
    ----------
    *args, **kwargs
        As of ``gluon.nn.Conv2D``.
    dtype : str
        The lower precision, one of `DTYPES`.
    """

    def __init__(self, *args, dtype: str, **kwargs):
        super().__init__(*args, **kwargs)
        self._dtype = dtype

    def hybrid_forward(self, F, X, weight, bias):
        """(n, c, h, w) -> (n, channels, ...) of the layer's precision; does not wait."""
        return super().hybrid_forward(F, X, _cast(F, weight, self._dtype), _cast(F, bias, self._dtype))


def conv2d(*args, dtype: str = 'float32', **kwargs) -> gluon.nn.Conv2D:
    """Make a ``gluon.nn.Conv2D`` that computes in `dtype`, one of `DTYPES`."""
    if dtype == 'float32':
        return gluon.nn.Conv2D(*args, **kwargs)
    return LowPrecisionConv2D(*args, dtype=dtype, **kwargs)
