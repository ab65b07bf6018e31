"""Preparation of the process for MXNet: environment, allocator, missing names, CUDA libraries, NumPy semantics."""
import contextlib
import ctypes
import functools
import importlib
import os
import sys
import warnings
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from ..base.machine import num_cores
from . import installation, instructions, numpy_names
from .installation import MXNetImportError, installed_builds, loads
from .instructions import loaded

# Defaults for environment variables that the user has not set
ENVIRONMENT = {
    # One thread per CPU context, so that k contexts use k cores. With 2 or more threads, matrix products
    # on two CPU contexts at the same time hang in MXNet 1.9.1.
    'OMP_NUM_THREADS': '1',
    # CPU contexts share a ring of scratch areas, which MXNet hands out in turn. A hybridized network keeps those that
    # it gets, and operations with the same area wait for each other. If each device takes s areas, devices i and j get
    # the same ones if s (i - j) is a multiple of the number of areas: with MXNet's 4 often; with a prime number, only
    # if i - j is. benchmarks/notes.md says what they cost.
    'MXNET_CPU_TEMP_COPY': '53',
}

M_MMAP_MAX = -4  # of glibc's mallopt: how many large arrays have a mapping of their own, outside the heap

IMPORT_FAILED = ('the import of MXNet has failed in this process',
                 'restart Python, in a notebook the kernel, and import gluon_mgpu first')


class Prepared(NamedTuple):
    """Settings that `prepare` changed in this process. Anything missing was set by the user or does not apply here."""

    variables: dict[str, str]  # of `ENVIRONMENT` and `instructions.variables`
    names: tuple[str, ...]     # in `numpy_names.replacements`


@functools.lru_cache
def prepare() -> Prepared:
    """Prepare this process for MXNet, once. Never fails, but warns if MXNet was imported before."""
    sys.meta_path.insert(0, MXNetFinder)
    if _mxnet_imported():
        warnings.warn(': '.join(IMPORT_FAILED) if import_had_failed() else
                      'MXNet was imported before gluon_mgpu, so CPU contexts may hardly run in parallel: restart '
                      'Python and import gluon_mgpu first', stacklevel=3)
        omp_threads()  # cached from here on
        return Prepared({}, _supply_names())
    # MXNet treats '' as unset
    variables = {name: value for name, value in ENVIRONMENT.items() if not os.environ.get(name)}
    os.environ.update(variables)
    _preload_nvidia()
    omp_threads()  # cached from here on
    names = _supply_names()
    variables.update(instructions.variables())  # after NumPy, whose own OpenBLAS reads the same variable
    os.environ.update(variables)
    instructions.load_openblas()
    _keep_arrays_in_heap()
    return Prepared(variables, names)


def environment() -> dict[str, str | None]:
    """Return the variables in `ENVIRONMENT` with the values that MXNet has read."""
    return {name: os.environ.get(name) or prepare().variables.get(name) for name in ENVIRONMENT}


@functools.lru_cache
def omp_threads() -> int:
    """Return the number of threads of one CPU context when `prepare` ran; with 2 or more, several contexts may hang."""
    openmp = loaded('libgomp.so.1')  # GNU's OpenMP
    if openmp:  # it reads the environment only once
        return openmp.omp_get_max_threads()
    text = os.environ.get('OMP_NUM_THREADS', '')
    return int(text) if text.isdecimal() else num_cores()


@functools.lru_cache
def import_mxnet() -> ModuleType:
    """Import MXNet, with the semantics that it has, and return the module; raise MXNetImportError."""
    mxnet = importlib.import_module('mxnet')
    complete(mxnet)  # it may have been imported before this package
    openblas = loaded('libopenblas.so.0')
    if openblas and openblas.openblas_get_num_threads() > omp_threads():
        # It has read OMP_NUM_THREADS before we set it, because a NumPy of the system has loaded it
        openblas.openblas_set_num_threads(omp_threads())
    if instructions.ONEDNN_VARIABLE in prepare().variables:
        mxnet.nd.softmax(mxnet.nd.ones((1, 2))).wait_to_read()  # oneDNN reads its variable in its first operator
    # Child processes need not inherit what the libraries have read. MXNet reads its own variables when it needs them
    for name, value in prepare().variables.items():
        if not name.startswith('MXNET_') and os.environ.get(name) == value and loaded('libgomp.so.1'):
            del os.environ[name]
    return mxnet


class FailingLoader(Loader):
    """A loader that raises an error when the module is imported, not when it is only looked for."""

    def __init__(self, error: Exception):
        self._error = error

    def exec_module(self, module: ModuleType) -> None:
        """Raise the error."""
        raise self._error


class MXNetFinder:
    """An entry of ``sys.meta_path`` that calls `complete` as soon as the program, or this package, imports MXNet.

    If MXNet is missing or broken, its import raises MXNetImportError, with the reason and the remedy.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of MXNet, with a loader that also completes it; None for other modules."""
        if name != 'mxnet':
            return None
        # After a failed import, a second one may succeed, with half of the modules
        if problem := IMPORT_FAILED if import_had_failed() else installation.obstacle():
            return ModuleSpec(name, FailingLoader(MXNetImportError(*problem)))
        spec = installation.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_complete(module: ModuleType) -> None:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter('ignore')  # MXNet's own: distutils, old NumPy names, escapes
                    execute(module)
                    complete(module)
            except Exception as error:
                raise MXNetImportError(*installation.explain(error)) from error

        spec.loader.exec_module = execute_and_complete
        return spec


@functools.lru_cache
def complete(mxnet: ModuleType) -> None:
    """Supply what MXNet lacks and switch to NumPy semantics, once: a later ``npx.reset_np()`` of the program stays."""
    numpy_names.write_plain_numbers(importlib.import_module('numpy'))
    _fork_data_loaders(mxnet)
    mxnet.npx.set_np()  # in this thread; each thread of MXNet 1.9 has its own semantics


def _fork_data_loaders(mxnet: ModuleType) -> None:
    """Let the workers of Gluon's DataLoader be forked, on Linux, as before Python 3.14."""
    # Otherwise they could not read MXNet's arrays: each would fail and be replaced by another, without end
    if sys.platform == 'linux':
        import multiprocessing  # not above: its own imports may fail, for which the doctor should have one line
        fork = multiprocessing.get_context('fork')
        forking = {'Pool': fork.Pool, 'Process': fork.Process, 'get_context': fork.get_context}
        mxnet.gluon.data.dataloader.multiprocessing = SimpleNamespace(**{**vars(multiprocessing), **forking})


def import_had_failed() -> bool:
    """Return whether MXNet was imported in vain in this process, as with NumPy 2."""
    return _mxnet_imported() and not sys.modules.get('mxnet')


def _mxnet_imported() -> bool:
    """Return whether this process has imported modules of MXNet; they remain after a failed import."""
    return any(name.partition('.')[0] == 'mxnet' for name, module in [*sys.modules.items()] if module)


def _supply_names() -> tuple[str, ...]:
    """Define what MXNet uses and newer versions of Python and NumPy lack; return NumPy's names."""
    with contextlib.suppress(Exception):  # import_mxnet will report what is missing
        if sys.version_info >= (3, 12):
            importlib.import_module('_distutils_hack').add_shim()  # setuptools does not if found through PYTHONPATH
    with contextlib.suppress(Exception):
        return tuple(numpy_names.supply(importlib.import_module('numpy')))
    return ()


def _keep_arrays_in_heap() -> None:
    """Let glibc take large arrays from its heap as well: otherwise MXNet 2 may crash when memory runs out."""
    if hasattr(libc := ctypes.CDLL(None), 'mallopt'):  # not musl or macOS
        libc.mallopt(M_MMAP_MAX, 0)


def _preload_nvidia() -> None:
    if any('-cu' in build for build in installed_builds()) and loads('libcuda.so.1'):
        for library in installation.NVIDIA_LIBRARIES:
            any(loads(os.path.join(folder, 'nvidia', library)) for folder in sys.path)
