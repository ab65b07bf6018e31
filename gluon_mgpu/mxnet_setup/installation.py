"""The installed MXNet and what is wrong with it: one line per fault, with the remedy. Imports no MXNet."""
import contextlib
import ctypes
import importlib
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from ..base.program import ProblemError, is_out_of_memory, reason

# Libraries that mxnet-cu112 links to, by their path in the nvidia-*-cu11 wheels; dependencies first
NVIDIA_LIBRARIES = (
    'cuda_runtime/lib/libcudart.so.11.0', 'cublas/lib/libcublasLt.so.11', 'cublas/lib/libcublas.so.11',
    'cufft/lib/libcufft.so.10', 'curand/lib/libcurand.so.10', 'cusparse/lib/libcusparse.so.11',
    'cusolver/lib/libcusolver.so.11', 'cuda_nvrtc/lib/libnvrtc.so.11.2', 'nvtx/lib/libnvToolsExt.so.1',
    'nccl/lib/libnccl.so.2', 'cudnn/lib/libcudnn.so.8')

REVIVED = 'the revived MXNet 2 (https://github.com/smolix/mxnet)'
# MXNet builds with CUDA: the lowest and the highest compute capability that their code runs on.
# Code for 8.6 runs on 8.9 and code for 12.0 on 12.1, but not on a later major version.
BUILDS = {'mxnet-cu112': ((5, 0), (8, 9)), REVIVED: ((8, 0), (12, 1))}

# Libraries of Arm in MXNet's wheel for ARM64, which PyPI does not have, and those of the system that replace them
ARM_LIBRARIES = ('libarmpl_lp64_mp.so', 'libamath.so', 'libastring.so')
SYSTEM_LIBRARIES = ('libopenblas.so.0', 'liblapacke.so.3')

WHEELS = {'cpu': 'mxnet==1.9.1', 'cu112': 'mxnet-cu112==1.9.1'}
GET_HOROVOD = 'run make horovod in a clone of this package'
MORE_MEMORY = 'the memory is not enough; close other programs, or raise the limit that ulimit -v shows'


class MXNetImportError(ProblemError, ImportError):
    """Error of importing MXNet: the reason and the remedy."""


def installed_builds() -> list[str]:
    """Return the installed distributions of MXNet, e.g. ``['mxnet-cu112']``; several overwrite each other's files."""
    return [*installed_versions()]


def installed_versions() -> dict[str, str]:
    """Return the installed distributions of MXNet and their versions, e.g. ``{'mxnet-cu112': '1.9.1'}``."""
    for folder in map(Path, sys.path):
        found = [path.name.removesuffix('.dist-info').partition('-') for path in folder.glob('mxnet*.dist-info')]
        builds = {name.replace('_', '-'): version for name, _, version in sorted(found)}
        builds = {name: builds[name] for name in builds if re.fullmatch(r'mxnet(-(cu\d+)?(mkl|native)?)?', name)}
        if builds:  # Python imports from the first folder that has it
            return builds
    return {}


def find_spec(module: str) -> Any:
    """Return the spec of a module, of all finders but ``runtime.MXNetFinder``, which calls this; None if missing."""
    finders = [finder for finder in sys.meta_path if getattr(finder, '__name__', '') != 'MXNetFinder']
    return next(filter(None, (finder.find_spec(module, None) for finder in finders)), None)


def package_folder(module: str) -> str | None:
    """Locate a package without importing it; None if it is missing."""
    spec = find_spec(module)
    # A folder without code, such as the rest of an old installation, has a spec without origin
    return os.path.dirname(spec.origin) if spec and spec.origin else None


def obstacle() -> tuple[str, ...]:
    """Return a known reason why MXNet cannot be imported or would fail later, and the remedy; or ()."""
    builds = installed_builds()
    if len(builds) > 1:
        return f'{" and ".join(builds)} are both installed and have overwritten each other', replacement('cpu')
    if not sys.modules.get('mxnet') and not package_folder('mxnet'):
        return 'MXNet is not installed', (
            f'{_pip("cpu")}; for NVIDIA GPUs up to compute capability 8.9 {_pip("cu112")}; for newer ones, and on '
            'other machines than Linux on x86_64 and aarch64, see docs/devices.md')
    try:
        importlib.import_module('numpy')
    except Exception as error:
        return _not_imported('NumPy', error, "pip install --force-reinstall 'numpy>=1.22'")
    role = os.environ.get('DMLC_ROLE', 'worker')
    if role != 'worker' and not sys.modules.get('mxnet'):  # the import would wait for a job, or fail without one
        return f'DMLC_ROLE={role!r} makes MXNet a server of a job', 'unset DMLC_ROLE'
    return ()


def _not_imported(package: str, error: Exception, remedy: str) -> tuple[str, str]:
    return f'{package} cannot be imported ({with_type(error)})', loading_remedy(error) or remedy


def loading_remedy(error: BaseException) -> str:
    """Return what to do about an error of the loader of libraries that reinstalling would not cure, or ''."""
    text = str(error)
    library = re.search(r'(/[^:\n]+): failed to map segment', text)
    with contextlib.suppress(OSError):
        if library and os.statvfs(library[1]).f_flag & os.ST_NOEXEC:
            return 'its file system is mounted with noexec; install it in another folder'
    if 'static TLS block' in text:
        return 'restart Python and import gluon_mgpu before other packages'
    if 'GLIBCXX_' in text:
        return 'the C++ library that is loaded is too old; unset LD_LIBRARY_PATH, or with conda update libstdcxx-ng'
    return MORE_MEMORY if is_out_of_memory(error) else ''


def explain(error: Exception) -> tuple[str, ...]:
    """Return the reason why ``import mxnet`` raised `error`, and the remedy."""
    library = re.search(r'(lib[\w+-]+\.so[.\d]*): cannot open shared object', str(error))
    if library and not loading_remedy(error) and (missing := _missing(library[1])):
        return missing
    name = getattr(error, 'name', None) or ''
    if isinstance(error, ModuleNotFoundError) and not name.startswith('mxnet'):
        package = 'setuptools' if name == 'distutils' else name  # distutils left Python in 3.12
        return f'The module {name}, which MXNet imports, is missing', f'pip install {package}'
    return _not_imported('MXNet', error, f'pip uninstall it, then {_pip("cpu")}')


def _missing(library: str) -> tuple[str, ...]:
    if library in ARM_LIBRARIES:
        return (f'MXNet for ARM64 needs {library}, which PyPI does not have',
                'run python tools/repair_arm64.py in a clone of this package')
    if library in SYSTEM_LIBRARIES and platform.machine() == 'aarch64':
        return missing_on_arm64()
    cuda = [os.path.basename(path) for path in NVIDIA_LIBRARIES]
    if library in (*cuda, 'libcuda.so.1'):
        if not loads('libcuda.so.1'):
            return ('MXNet is built for CUDA, but there is no NVIDIA driver here',
                    f'install the driver, or the CPU build: {replacement("cpu")}')
        return f'MXNet needs CUDA libraries ({", ".join(name for name in cuda if not loads(name))})', _pip('cu112')
    return (f'The library {library}, which MXNet needs, is missing', 'install it with the package manager of this '
            f'system (Debian, Ubuntu: apt install {library.replace(".so.", "")})')


def missing_on_arm64() -> tuple[str, ...]:
    """Return the libraries of the system that MXNet misses on ARM64 Linux, and the remedy; or ()."""
    missing = ' and '.join(name for name in SYSTEM_LIBRARIES if not loads(name))
    return (f'MXNet on ARM64 needs {missing} of the system', 'on Debian and Ubuntu apt install libopenblas0-pthread '
            'liblapacke; on Fedora dnf install openblas-serial lapack') if missing else ()


def replacement(extra: str) -> str:
    """Return the commands that install a build of MXNet, ``'cpu'`` or ``'cu112'``, instead of the installed one."""
    builds = ' '.join(installed_builds())  # none if MXNet was not installed by pip
    return (f'pip uninstall -y {builds}, then ' if builds else '') + _pip(extra)


def _pip(extra: str) -> str:
    """Return the command that installs an MXNet build, in a checkout with this package, as in docs/devices.md."""
    # Never by this package's name: no index has it, so a stranger could publish a package under it
    root = Path(__file__).parents[2]
    if (root / 'pyproject.toml').exists():
        package = "'.[cu112]'" if extra == 'cu112' else '.'
        return f'pip install {package} && pip install --no-deps {WHEELS[extra]} in the folder {root}'
    wheels = [WHEELS[extra]]
    if extra == 'cu112':
        with contextlib.suppress(metadata.PackageNotFoundError):  # not installed
            wheels += [r.split(';')[0].strip() for r in metadata.requires('gluon-mgpu') or [] if 'nvidia-' in r]
    return f'pip install --no-deps {" ".join(wheels)}'


def with_type(error: Exception) -> str:
    """Return the type and the reason of an error in one line."""
    return f'{type(error).__name__}: {reason(error)}'


def loads(library: str) -> bool:
    """Load a shared library, so that libraries loaded later find it; return whether it worked."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
        return True
    return False
