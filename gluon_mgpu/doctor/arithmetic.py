"""Check that MXNet's libraries, which are older than some processors, compute correctly on this one."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy

from ..mxnet_setup import instructions
from ..mxnet_setup.compat import MXNET_MAJOR, low_precision_type, mx


class Operation(NamedTuple):
    """An operator, and the same in NumPy."""

    name: str
    operator: Callable
    reference: Callable
    arrays: tuple


def _operations() -> tuple[Operation, Operation]:
    rng = numpy.random.default_rng(0)

    def convolution(X: Any, weight: Any) -> Any:
        return mx.nd.Convolution(X, weight, no_bias=True, kernel=(3, 3), num_filter=48)

    def convolution_of_numpy(X: numpy.ndarray, weight: numpy.ndarray) -> numpy.ndarray:
        windows = numpy.lib.stride_tricks.sliding_window_view(X, (3, 3), axis=(2, 3))  # (3, 32, 10, 10, 3, 3)
        return numpy.einsum('nchwij,ocij->nohw', windows, weight)                       # (3, 48, 10, 10)

    return (Operation('matrix products', mx.nd.dot, numpy.matmul,
                      (rng.standard_normal((67, 129)), rng.standard_normal((129, 150)))),
            Operation('convolutions', convolution, convolution_of_numpy,
                      (rng.standard_normal((3, 32, 12, 12)), rng.standard_normal((48, 32, 3, 3)))))


def _error(operation: Operation, dtype: str) -> float:
    """Return the largest error against float64, relative to the sum of the absolute values of the terms."""
    arrays = [mx.nd.amp_cast(mx.nd.array(array), dtype=low_precision_type(dtype)) for array in operation.arrays]
    result = mx.nd.amp_cast(operation.operator(*arrays), dtype='float32').asnumpy()
    terms = operation.reference(*map(abs, operation.arrays))
    return float(numpy.nan_to_num(abs(result - operation.reference(*operation.arrays)) / terms, nan=numpy.inf).max())


def check() -> list[str]:
    """Compute in each precision that this machine offers and return what was computed; blocks.

    Raises ValueError, with the variable that selects older instructions, if a result differs from NumPy's in float64.
    """
    product, convolution = _operations()
    # Nehalem, because NumPy's OpenBLAS reads the variable as well, and crashes with older kernels
    # Some units in the last place of float32 (24 bits) and of bfloat16 (8 bits), to which the terms are rounded
    cases = [(product, 'float32', 2**-20, f'{instructions.OPENBLAS_VARIABLE}=Nehalem'),
             (convolution, 'float32', 2**-20, f'{instructions.ONEDNN_VARIABLE}=AVX2')]
    if MXNET_MAJOR < 2 and not instructions.bfloat16_obstacle():
        cases += [(convolution, 'bfloat16', 2**-6, f'{instructions.ONEDNN_VARIABLE}=' + (
            'AVX2' if instructions.amx_obstacle() else 'AVX512_CORE_BF16'))]
    for operation, dtype, bound, variable in cases:
        if _error(operation, dtype) > bound:
            raise ValueError(f'{operation.name} in {dtype} are wrong on this processor: export {variable}')
    return [f'{operation.name} in {dtype}' for operation, dtype, *_ in cases]
