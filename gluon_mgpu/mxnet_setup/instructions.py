"""Instructions of x86-64 processors that the libraries inside MXNet leave unused: AMX in oneDNN, AVX2 in OpenBLAS."""
import _ctypes
import contextlib
import ctypes
import functools
import os
import platform
from importlib import metadata

from ..base.machine import processor_flags
from .installation import package_folder

# The variable that limits oneDNN's instructions, our value, and the values that switch avx512_bf16 off. oneDNN ignores
# values that it does not know, and leaves AMX unused unless the variable is `ALL` or names AMX
ONEDNN_VARIABLE = 'DNNL_MAX_CPU_ISA'
AMX = 'AVX512_CORE_AMX'
WITHOUT_BFLOAT16 = {'SSE41', 'AVX', 'AVX2', 'AVX2_VNNI', 'AVX512_MIC', 'AVX512_MIC_4OPS', 'AVX512_CORE',
                    'AVX512_CORE_VNNI'}
AMX_FLAGS = {'avx512_bf16', 'amx_tile', 'amx_bf16', 'amx_int8'}

OPENBLAS_VARIABLE = 'OPENBLAS_CORETYPE'
# Names of OpenBLAS's kernels with AVX2 or better; MXNet's OpenBLAS has none better than Haswell's
AVX2_KERNELS = ('Haswell', 'Zen', 'Excavator', 'SkylakeX', 'Cooperlake', 'Sapphirerapids')

# arch_prctl on x86-64: its number, ARCH_REQ_XCOMP_PERM, and the number of AMX's tile data
SYS_ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18


@functools.lru_cache
def amx_obstacle() -> str:
    """Ask Linux, once, for AMX's tile registers; return '' if oneDNN may use them, or the reason why not."""
    # Without permission, which holds for all threads and forked processes, the first convolution with AMX crashes
    if not AMX_FLAGS.issubset(processor_flags()):
        return 'the processor has none'
    highest = os.environ.get(ONEDNN_VARIABLE, '')
    if highest not in ('', 'ALL', AMX):
        return f'{ONEDNN_VARIABLE}={highest} is set: unset it'
    if error := _request_tiles():
        return (f'Linux {platform.release()} refuses the tile registers ({os.strerror(error)}): use Linux 5.16 or '
                'newer and permit arch_prctl in containers')
    return ''


def _request_tiles() -> int:
    """Ask Linux for the tile registers; return 0 or the number of the error."""
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = map(ctypes.c_long, (SYS_ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA))
    return ctypes.get_errno() if libc.syscall(*arguments) else 0


def bfloat16_obstacle() -> str:
    """Return the reason why CPU contexts should not compute in bfloat16, with the remedy, or ''."""
    if 'avx512_bf16' not in processor_flags():
        return 'this CPU has no avx512_bf16 and would be slower with it; use float32'
    highest = os.environ.get(ONEDNN_VARIABLE, '')
    if highest in WITHOUT_BFLOAT16:
        return f'{ONEDNN_VARIABLE}={highest} switches avx512_bf16 off; unset it, or use float32'
    return ''


def variables() -> dict[str, str]:
    """Return the variables to set before MXNet is imported, and to remove when it has read them."""
    ours = {}
    if not amx_obstacle() and not os.environ.get(ONEDNN_VARIABLE):
        ours[ONEDNN_VARIABLE] = AMX
    if not os.environ.get(OPENBLAS_VARIABLE) and has_avx2() and _is_mxnet_2_of_pypi():
        ours[OPENBLAS_VARIABLE] = 'Haswell'
    return ours


def has_avx2() -> bool:
    """Return whether the processor has what OpenBLAS's kernels for Haswell need."""
    return {'avx2', 'fma'}.issubset(processor_flags())


def _is_mxnet_2_of_pypi() -> bool:
    """Return whether OpenBLAS is a part of libmxnet.so, where it cannot be asked for its kernels."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version('mxnet') == '2.0.0b1'
    return False


def load_openblas() -> None:
    """Load the OpenBLAS of MXNet 1.9 with kernels for AVX2 where it would choose older ones."""
    # It chooses by the processor's model number, and takes one that it does not know for a processor of 2004. If an
    # OpenBLAS of the system is loaded already, MXNet uses that one
    path = _bundled_openblas()
    if path and not os.environ.get(OPENBLAS_VARIABLE) and has_avx2() and not loaded('libopenblas.so.0'):
        with contextlib.suppress(OSError):  # importing MXNet will report what is wrong with it
            openblas = ctypes.CDLL(path)
            if kernels(openblas) not in AVX2_KERNELS:
                _ctypes.dlclose(openblas._handle)  # it chooses only when it is loaded
                os.environ[OPENBLAS_VARIABLE] = 'Haswell'  # only now: NumPy's OpenBLAS reads it as well
                try:
                    ctypes.CDLL(path)
                finally:
                    del os.environ[OPENBLAS_VARIABLE]


def _bundled_openblas() -> str:
    folder = package_folder('mxnet')
    path = os.path.join(folder, 'libopenblas.so.0') if folder else ''
    return path if os.path.exists(path) else ''


def kernels(openblas: ctypes.CDLL | None = None) -> str:
    """Return the name of the processor whose kernels a loaded OpenBLAS uses, such as ``'Haswell'``; '' if unknown."""
    openblas = openblas or loaded('libopenblas.so.0')
    if openblas is None or not hasattr(openblas, 'openblas_get_corename'):
        return ''
    openblas.openblas_get_corename.restype = ctypes.c_char_p
    return openblas.openblas_get_corename().decode()


def loaded(library: str) -> ctypes.CDLL | None:
    """Return a shared library if it is loaded; None on systems other than Linux."""
    with contextlib.suppress(OSError, AttributeError):
        return ctypes.CDLL(library, os.RTLD_NOLOAD | os.RTLD_NOW)
    return None
