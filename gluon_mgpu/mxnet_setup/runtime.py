"""All that makes MXNet import and run well.

`prepare` runs once, when `gluon_mgpu` is imported, and has to come before MXNet: it supplies what
MXNet misses in today's Python and NumPy, finds the NVIDIA libraries that pip installed, and sets the
engine and the allocator so that CPU contexts run in parallel. `load_mxnet` then imports MXNet, or
says in one line why that cannot work, and what to do.
"""
from __future__ import annotations

import ctypes
import functools
import importlib
import os
import sys
import threading
import warnings
from types import ModuleType
from typing import NamedTuple, NoReturn

from ..base.machine import num_cores
from . import installation
from .installation import MXNetImportError, installed_builds, loads

# Defaults for the environment; what the user has set wins.
ENVIRONMENT = {
    # One thread per CPU context: k contexts then keep k cores busy. With 2 or more, matrix products
    # on two CPU contexts at the same time hang for ever in MXNet 1.9.1.
    'OMP_NUM_THREADS': '1',
    # All CPU contexts take their scratch areas in turn from one ring, and operations that got the same one wait
    # for each other. A hybridized network keeps those that it got when it was laid out, equally many on each device:
    # in MXNet's ring of 4, two devices may share one for good, and take turns; of a prime number of areas, each of
    # fewer devices than that gets others. Operators called one by one take the next area each time, and each area
    # grows to the largest use made of it: 53 are less than twice the memory of 4, 512 were four times.
    'MXNET_CPU_TEMP_COPY': '53',
}

# glibc's mallopt: name, number, value. By default it maps large arrays anew at every allocation, some
# 100,000 page faults per step of ResNet-18. So: one heap, which grows by 256 MB and is never given back. With a second
# one Python's thread waits less for devices that give memory back, and MXNet crashes where memory has run out.
ALLOCATOR = (
    ('mmap_max', -4, 0),
    ('trim_threshold', -1, 2**31 - 1),
    ('arena_max', -8, 1),
    ('top_pad', -2, 2**28),
)


class Prepared(NamedTuple):
    """What `prepare` has done in this process: of the rest, the user has set it, or it is not of this system."""

    variables: tuple[str, ...]   # names in `ENVIRONMENT` that it has set
    allocator: tuple[str, ...]   # names in `ALLOCATOR` that it has set
    too_late: tuple[str, ...]    # what it would have set, had MXNet not been imported before


@functools.lru_cache
def prepare() -> Prepared:
    """Set up this process for MXNet, once, before MXNet is imported. Never fails.

    Where MXNet has been imported already, a warning names what could no longer be set.
    """
    early = sys.modules.get('mxnet') is None
    unset = [name for name in ENVIRONMENT if not os.environ.get(name)]
    too_late = (*(f'{name}={ENVIRONMENT[name]}' for name in unset), 'the memory allocator')
    allocator: list[str] = []
    if early:
        for name in unset:
            os.environ[name] = ENVIRONMENT[name]  # MXNet takes '' for unset, so do we
        allocator = _set_allocator()
        _preload_nvidia()
    omp_threads()  # on record from here on
    _supply_names()
    if not early:
        warnings.warn('MXNet was imported before gluon_mgpu, which is too early to set '
                      f'{", ".join(too_late)}: CPU contexts may hardly run in '
                      'parallel; import gluon_mgpu first', stacklevel=3)
    return Prepared(tuple(unset), tuple(allocator), ()) if early else Prepared((), (), too_late)


def settings() -> dict[str, str | None]:
    """Return the variables of `ENVIRONMENT` as MXNet has read them."""
    ours = {name: ENVIRONMENT[name] for name in prepare().variables}
    return {name: os.environ.get(name) or ours.get(name) for name in ENVIRONMENT}


@functools.lru_cache
def omp_threads() -> int:
    """Return how many threads one CPU context computes with, as found when `prepare` ran.

    2 or more means that several CPU contexts may hang on MXNet 1.9.1 (see `ENVIRONMENT`).
    """
    openmp = _openmp()
    if openmp:  # it has read the environment, and never does so again
        return openmp.omp_get_max_threads()
    cores = num_cores()
    text = os.environ.get('OMP_NUM_THREADS')
    if not text:  # MXNet was imported before, and took its own default
        return max(cores // 2, 1)
    return int(text) if installation.is_count(text) else cores


def load_mxnet() -> ModuleType:
    """Import MXNet, give it NumPy's semantics (`npx.set_np`), in every thread, and return the module.

    Raises
    ------
    MXNetImportError
        With the reason and the remedy on one line. A program of this package (``python -m
        gluon_mgpu.scratch``) ends instead, with that line on stderr and exit status 2.
    """
    problem = installation.obstacle()
    cause: Exception | None = None
    if not problem:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter('ignore')  # MXNet's own: distutils, old NumPy names, escapes
                mxnet = importlib.import_module('mxnet')
                _set_np(mxnet)
            _restore_environment()
            return mxnet
        except Exception as error:
            problem, cause = installation.explain(error), error
    _refuse(problem, cause)


def _restore_environment() -> None:
    """Keep our OMP_NUM_THREADS from other programs that this process starts: they would compute on one core.

    MXNet, its OpenBLAS and GNU's OpenMP read it while they are loaded, and never again; others read it later.
    """
    name = 'OMP_NUM_THREADS'
    if name in prepare().variables and os.environ.get(name) == ENVIRONMENT[name] and _openmp():
        del os.environ[name]


def _openmp() -> ctypes.CDLL | None:
    """Return GNU's OpenMP if it is loaded; None on systems other than Linux."""
    try:
        return ctypes.CDLL('libgomp.so.1', os.RTLD_NOLOAD | os.RTLD_NOW)
    except (OSError, AttributeError):
        return None


def _set_np(mxnet: ModuleType) -> None:
    """Call `npx.set_np` for all threads of the process: MXNet's own holds for the one that calls it."""
    mxnet.npx.set_np()
    mxnet.util.set_np_shape(2)  # MXNet's number for: in all threads
    scope = mxnet.util._NumpyArrayScope
    everywhere = type('_Everywhere', (threading.local,), {'value': scope(True)})  # what each thread begins with
    scope._current = everywhere()


def _refuse(problem: str, cause: Exception | None) -> NoReturn:
    """Raise MXNetImportError or, in a program of this package, print the line and exit."""
    program = getattr(sys.modules.get('__main__'), '__spec__', None)
    if program is not None and program.name.startswith('gluon_mgpu.'):
        print(f'{problem} (python -m gluon_mgpu.doctor shows all that is here)', file=sys.stderr)
        raise SystemExit(2)
    raise MXNetImportError(problem) from cause


def _supply_names() -> None:
    """Supply what MXNet uses and newer Pythons and NumPys lack: distutils and `numpy.bool`."""
    try:
        if sys.version_info >= (3, 12):
            # setuptools does so at start-up, but not where its .pth file is not read (PYTHONPATH)
            importlib.import_module('_distutils_hack').add_shim()
    except Exception:  # load_mxnet will say what is missing
        pass
    try:
        numpy = importlib.import_module('numpy')
        if 'bool' not in vars(numpy):  # hasattr would warn on 1.22 and 1.23
            vars(numpy)['bool'] = bool  # also read while running, by MXNet's indexing
    except Exception:
        pass


def _set_allocator() -> list[str]:
    """Set glibc's allocator as in `ALLOCATOR`, except what the user has set; returns the names of what was set."""
    libc = ctypes.CDLL(None) if sys.platform == 'linux' else None
    if libc is None or not hasattr(libc, 'gnu_get_libc_version'):  # macOS, musl
        return []
    if _address(libc.malloc) != _address(ctypes.CDLL('libc.so.6').malloc):  # another, as jemalloc by LD_PRELOAD
        return []
    done = []
    variables = {name.rstrip('_') for name in os.environ}
    tunables = os.environ.get('GLIBC_TUNABLES', '')
    for name, number, value in ALLOCATOR:
        if f'MALLOC_{name.upper()}' not in variables and f'glibc.malloc.{name}=' not in tunables:
            libc.mallopt(number, value)
            done.append(name)
    return done


def _address(function) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


def _preload_nvidia() -> None:
    """Load the CUDA libraries of pip's NVIDIA wheels, so that MXNet's CUDA build finds them."""
    if not any('-cu' in build for build in installed_builds()) or not loads('libcuda.so.1'):
        return
    for library in installation.NVIDIA_LIBRARIES:
        path = installation.in_wheel(library)
        if path:  # if not, the system may have it
            loads(path)
