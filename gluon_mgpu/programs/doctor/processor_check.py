"""Check that MXNet's libraries, which are older than some processors, compute correctly on this one."""
from collections.abc import Callable
from functools import partial

import numpy

from ...base.program import ProblemError
from ...mxnet_setup import instructions
from ...mxnet_setup.compat import MXNET_MAJOR, low_precision_type, mx


def _convolution_of_numpy(X: numpy.ndarray, weight: numpy.ndarray) -> numpy.ndarray:
    # The types of NumPy 1 know no axis=(2, 3)
    windows = numpy.lib.stride_tricks.sliding_window_view(X, (1, 1, 3, 3))  # (3, 32, 10, 10, 1, 1, 3, 3)
    return numpy.einsum('nchwabij,ocij->nohw', windows, weight)             # (3, 48, 10, 10)


def _error(dtype: str, operator: Callable, reference: Callable, arrays: tuple) -> float:
    """Return an operator's largest error against NumPy's float64, relative to the sum of the absolute terms."""
    result = operator(*(mx.nd.amp_cast(mx.nd.array(array), dtype=low_precision_type(dtype)) for array in arrays))
    errors = abs(mx.nd.amp_cast(result, dtype='float32').asnumpy() - reference(*arrays))
    return float(numpy.nan_to_num(errors / reference(*map(abs, arrays)), nan=numpy.inf).max())


def check() -> list[str]:
    """Return what was computed, in each precision of this machine; raise ProblemError if it differs from NumPy's."""
    normal = numpy.random.default_rng(0).standard_normal
    product: tuple = mx.nd.dot, numpy.matmul, (normal((67, 129)), normal((129, 150)))
    convolution: tuple = (partial(mx.nd.Convolution, no_bias=True, kernel=(3, 3), num_filter=48),
                          _convolution_of_numpy, (normal((3, 32, 12, 12)), normal((48, 32, 3, 3))))
    # Nehalem, because NumPy's OpenBLAS reads the variable as well, and crashes with older kernels
    # Some units in the last place of float32 (24 bits) and of bfloat16 (8 bits), to which the terms are rounded
    cases = [('matrix products', product, 'float32', 2**-20, f'{instructions.OPENBLAS_VARIABLE}=Nehalem'),
             ('convolutions', convolution, 'float32', 2**-20, f'{instructions.ONEDNN_VARIABLE}=AVX2')]
    if MXNET_MAJOR < 2 and not instructions.bfloat16_obstacle():
        older = 'AVX2' if instructions.amx_obstacle() else 'AVX512_CORE_BF16'
        cases += [('convolutions', convolution, 'bfloat16', 2**-6, f'{instructions.ONEDNN_VARIABLE}={older}')]
    for name, operation, dtype, bound, variable in cases:
        if _error(dtype, *operation) > bound:
            raise ProblemError(f'{name} in {dtype} are wrong on this processor', f'export {variable}')
    return [f'{name} in {dtype}' for name, _, dtype, *_ in cases]
