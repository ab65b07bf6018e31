"""What of MXNet is installed, and what is wrong with it: each fault in one line, with its remedy.

Needs neither MXNet nor NumPy.
"""
from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import platform
import re
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

# What mxnet-cu112 links against, where the nvidia-*-cu11 wheels have it; dependencies first.
NVIDIA_LIBRARIES = (
    'cuda_runtime/lib/libcudart.so.11.0',
    'cublas/lib/libcublasLt.so.11',
    'cublas/lib/libcublas.so.11',
    'cufft/lib/libcufft.so.10',
    'curand/lib/libcurand.so.10',
    'cusparse/lib/libcusparse.so.11',
    'cusolver/lib/libcusolver.so.11',
    'cuda_nvrtc/lib/libnvrtc.so.11.2',
    'nvtx/lib/libnvToolsExt.so.1',
    'nccl/lib/libnccl.so.2',
    'cudnn/lib/libcudnn.so.8',
)


# The builds of MXNet with CUDA: the lowest and the highest compute capability that their code runs on.
# Code for 8.6 runs on 8.9, code for 12.0 on 12.1; neither runs on a later major version.
BUILDS = {
    'mxnet-cu112': ((5, 0), (8, 9)),
    'the revived MXNet 2 (https://github.com/smolix/mxnet)': ((8, 0), (12, 1)),
}


# What MXNet's CPU wheel brings along beside libmxnet.so; all else it needs is the system's.
BUNDLED = ('libopenblas.so.0', 'libgfortran.so.3')

# The platforms, (system, processor), that PyPI has wheels of MXNet 1.9.1 for, by the extras of this package.
# They are for glibc: Alpine Linux, which has musl, can't run them.
PLATFORMS = {
    'cpu': (('Linux', 'x86_64'), ('Linux', 'aarch64'), ('Darwin', 'x86_64')),
    'cu112': (('Linux', 'x86_64'),),
}

WHEELS = {'cpu': 'mxnet==1.9.1', 'cu112': 'mxnet-cu112==1.9.1'}  # by the extras of this package


class MXNetImportError(ImportError, ValueError):
    """MXNet cannot be imported; the message is one line with the reason and the remedy."""


def installed_builds() -> list[str]:
    """Return the installed distributions of MXNet, e.g. ``['mxnet-cu112']``, without importing any.

    More than one means that they have overwritten each other's files.
    """
    pattern = re.compile(r'(mxnet(?:[-_](?:cu\d+)?(?:mkl|native)?)?)-\d.*\.(?:dist|egg)-info')
    for folder in sys.path:
        try:
            found = filter(None, map(pattern.fullmatch, os.listdir(folder or '.')))
        except OSError:  # a zip file, or not there
            continue
        builds = sorted({match[1].replace('_', '-') for match in found})
        if builds:  # later folders are not imported from
            return builds
    return []


def obstacle() -> str:
    """Return what is known to stop MXNet or to break it later, in one line; '' for nothing."""
    python = f'Python {sys.version_info[0]}.{sys.version_info[1]}'
    if sys.version_info >= (3, 13):
        return f'{python} cannot run MXNet, since it has no NumPy older than 2: use Python 3.9 to 3.12'
    if not sys.version_info >= (3, 9):
        return f'{python} is too old: use Python 3.9 to 3.12'
    builds = installed_builds()
    if len(builds) > 1:
        return (f'{" and ".join(builds)} are both installed and have overwritten each other: '
                f'pip uninstall -y {" ".join(builds)}, then {_install()}')
    if sys.modules.get('mxnet') is None and importlib.util.find_spec('mxnet') is None:
        return f'MXNet is not installed: {_install()}'
    try:
        version = importlib.import_module('numpy').__version__
    except Exception as error:
        return f"NumPy cannot be imported ({_line(error)}): pip install --force-reinstall 'numpy>=1.22,<2'"
    if re.match(r'([2-9]|\d\d+)\.', version):
        return f"NumPy {version} is installed, but MXNet needs one older than 2: pip install 'numpy>=1.22,<2'"
    threads = os.environ.get('OMP_NUM_THREADS')
    if threads and not is_count(threads):
        return f'OMP_NUM_THREADS={threads!r} is not a number of threads (1, 2, ...): unset it, or set it to 1'
    return ''


def explain(error: Exception) -> str:
    """Say in one line why importing MXNet failed, and the remedy.

    Parameters
    ----------
    error : Exception
        What ``import mxnet`` has raised.
    """
    name = getattr(error, 'name', None) or ''
    if isinstance(error, ModuleNotFoundError) and not name.startswith('mxnet'):
        package = 'setuptools' if name == 'distutils' else name  # distutils left Python in 3.12
        return f'The module {name}, which MXNet imports, is missing: pip install {package}'
    library = re.search(r'(lib[\w+-]+\.so[.\d]*): cannot open shared object', str(error))
    if not library and os.environ.get('DMLC_ROLE') in ('scheduler', 'server'):  # of a job that is not there
        return f'MXNet cannot be imported as DMLC_ROLE says ({_line(error)}): unset DMLC_ROLE'
    if not library:
        return f'MXNet cannot be imported ({_line(error)}): pip uninstall it, then {_pip("cpu")}'
    if library[1] in BUNDLED:
        return (f'The library {library[1]}, which comes with MXNet, is missing: pip uninstall -y '
                f'{" ".join(installed_builds())}, then {_pip("cpu")}')
    cuda = [os.path.basename(path) for path in NVIDIA_LIBRARIES]
    if library[1] in (*cuda, 'libcuda.so.1'):
        if not loads('libcuda.so.1'):
            return ('MXNet is built for CUDA, but there is no NVIDIA driver here (libcuda.so.1): install it, '
                    f'or the CPU build: pip uninstall -y {" ".join(installed_builds())}, then {_pip("cpu")}')
        missing = ', '.join(name for name in cuda if not loads(name))
        return f'CUDA libraries that MXNet needs are missing ({missing}): {_pip("cu112")}'
    return (f'The library {library[1]}, which MXNet needs, is missing: install it with the package manager '
            f'of this system (Debian, Ubuntu: apt install {library[1].replace(".so.", "")})')


def _install() -> str:
    """What to do where there is no MXNet."""
    system, processor = platform.system(), platform.machine()
    musl = 'musl' in (sysconfig.get_config_var('HOST_GNU_TYPE') or '')
    if musl or (system, processor) not in PLATFORMS['cpu']:
        here = f'{system} on {processor}{" with musl" if musl else ""}'
        other = {'Windows': 'use Linux, such as WSL 2', 'Darwin': f'install the CPU wheel of {list(BUILDS)[1]}'}
        return f'PyPI has no MXNet for {here}; {other.get(system, "use Linux with glibc on x86_64 or aarch64")}'
    gpus = (system, processor) in PLATFORMS['cu112']
    return _pip('cpu') + (f'; for NVIDIA GPUs {_pip("cu112")}' if gpus else '')


def _pip(extra: str) -> str:
    """The command that installs a build of MXNet: by this package's extra in its checkout, else by itself.

    Never by this package's name: no index has it, and what a stranger put there would be installed.
    """
    if (Path(__file__).parents[2] / 'pyproject.toml').exists():
        return f"{_pip_of_its_own()} install '.[{extra}]' in the folder {Path(__file__).parents[2]}"
    try:
        requirements = metadata.requires('gluon-mgpu') or []
    except metadata.PackageNotFoundError:  # a copy that was not installed
        requirements = []
    wheels = [r.split(';')[0].strip() for r in requirements if re.search(rf"extra == ['\"]{extra}['\"]", r)]
    return f'{_pip_of_its_own()} install {" ".join(wheels) or WHEELS[extra]}'


def _pip_of_its_own() -> str:
    """pip, or that of a virtual environment to be made, where Debian and others keep pip off the system's Python."""
    if sys.prefix == sys.base_prefix and (Path(sysconfig.get_path('stdlib')) / 'EXTERNALLY-MANAGED').exists():
        return 'python3 -m venv .venv && .venv/bin/pip'
    return 'pip'


def how_to_get_horovod() -> str:
    """The command that builds Horovod into this environment: what it takes is in the source, and not in the wheel."""
    source = Path(__file__).parents[2]
    if (source / 'tools' / 'install_horovod.sh').exists():
        return f'tools/install_horovod.sh {sys.prefix} in the folder {source} builds it'
    return f"tools/install_horovod.sh {sys.prefix} in a checkout of this package's source builds it"


def _line(error: Exception) -> str:
    text = ' '.join(str(error).split())
    return f'{type(error).__name__}: {text if len(text) < 200 else text[:200] + "..."}'


def is_count(text: str) -> bool:
    """Return whether `text` is a number of threads that both OpenMP and MXNet understand."""
    return re.fullmatch(r'\s*\+?0*[1-9]\d*\s*', text) is not None


def in_wheel(library: str) -> str | None:
    """Return where pip's NVIDIA wheels have a library, or None.

    Parameters
    ----------
    library : str
        One of `NVIDIA_LIBRARIES`.
    """
    return next(filter(os.path.exists, (os.path.join(folder, 'nvidia', library) for folder in sys.path)), None)


def loads(library: str) -> bool:
    """Load a shared library, for those loaded later to find; return whether that worked."""
    try:
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True
