"""What this process can say of itself and its machine. Needs neither MXNet nor NumPy, and imports no MXNet."""
from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import re
import shutil
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from ..base.machine import num_cores, processor, processor_flags, versions
from ..data.folders import FILES, DownloadError, cache_dir, find, named_folder
from ..mxnet_setup import runtime
from ..mxnet_setup.installation import NVIDIA_LIBRARIES, how_to_get_horovod, in_wheel, installed_builds, loads, obstacle

# What training imports besides NumPy and MXNet: module -> what pip calls it
PACKAGES = {'matplotlib': 'matplotlib', 'tqdm': 'tqdm', 'pooch': 'pooch', 'requests': 'requests',
            'safetensors': 'safetensors', 'PIL': 'pillow'}
# Variables that change how MXNet runs or which GPUs there are
ENGINE = re.compile(r'(MXNET|OMP|GOMP|KMP|OPENBLAS|MALLOC|CUDA)_\w+|GLIBC_TUNABLES|LD_PRELOAD|DMLC_ROLE')
PROBE = 2**16  # bytes written to see whether a disk takes them


def look() -> dict[str, Any]:
    """All that can be said without MXNet, by topic."""
    prepared = runtime.prepare()
    return {
        'gluon_mgpu': versions()['gluon_mgpu'],
        'python': {'version': platform.python_version(), 'executable': sys.executable,
                   'platform': f'{platform.system()} {platform.machine()}', 'release': platform.platform()},
        'numpy': _numpy(),
        'packages_missing': [name for module, name in PACKAGES.items() if not _there(module)],
        'mxnet': {'builds': {name: _version(name) for name in installed_builds()}, 'folder': _folder('mxnet'),
                  'obstacle': obstacle(), 'imported_first': list(prepared.too_late)},
        'cuda_libraries': _cuda_libraries(),
        'cores': {'count': num_cores(), 'processor': processor(), 'bfloat16': 'avx512_bf16' in processor_flags()},
        'engine': _engine(prepared),
        'omp_threads': runtime.omp_threads(),
        'horovod': {'installed': _there('horovod'), 'remedy': how_to_get_horovod()},
        'data': _data(),
        'disks': {'cache': _cache(), 'runs': _runs()},
    }


def _numpy() -> dict[str, Any]:
    try:
        return {'version': importlib.import_module('numpy').__version__}
    except Exception as error:
        return {'version': None, 'error': ' '.join(f'{type(error).__name__}: {error}'.split())}


def _there(module: str) -> bool:
    return _folder(module) is not None


def _folder(module: str) -> str | None:
    """Where a package would be imported from, which it isn't."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # ValueError: it was put into sys.modules by hand
        return None
    return os.path.dirname(spec.origin) if spec and spec.origin else None


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _cuda_libraries() -> dict[str, str | None] | None:
    """Where each library is that the CUDA build needs, None if nowhere; no dict for the CPU build, which needs none."""
    if not any('-cu' in build for build in installed_builds()):
        return None
    # Without a driver those of the wheels are there and do not load
    return {os.path.basename(path): in_wheel(path) or ('the system' if loads(os.path.basename(path)) else None)
            for path in NVIDIA_LIBRARIES}


def _engine(prepared: runtime.Prepared) -> list[dict[str, str | None]]:
    """The settings in force, each with who has set it: 'gluon_mgpu', 'you', or None for a default of others."""
    found: list[dict[str, str | None]] = []
    for name in dict.fromkeys([*runtime.ENVIRONMENT, *sorted(filter(ENGINE.fullmatch, os.environ))]):
        value = runtime.settings().get(name) or os.environ.get(name)
        by = 'gluon_mgpu' if name in prepared.variables else 'you' if value else None
        found.append({'name': name, 'value': value, 'by': by})
    for name, _, number in runtime.ALLOCATOR:
        if name in prepared.allocator:
            found.append({'name': f'mallopt {name}', 'value': str(number), 'by': 'gluon_mgpu'})
    return found


def _data() -> dict[str, Any]:
    """The folder of each dataset that is there, or None; 'error' if a folder was named that lacks it."""
    named, found = os.environ.get('GLUON_MGPU_DATA'), {}
    for name in ('fashion-mnist', 'mnist'):
        try:
            folder = named_folder(name, named) if named else cache_dir() / name
            whole = all(find(folder, file) for file in FILES)
            found[name] = {'folder': str(folder) if whole else None}
        except (ValueError, OSError) as error:
            line = getattr(error, 'strerror', None) or str(error)
            found[name] = {'folder': None, 'error': line if named else ''}
    return {'named': named or None, **found}


def _cache() -> dict[str, Any]:
    try:
        return _room(cache_dir())
    except DownloadError as error:
        return {'folder': None, 'free': None, 'error': str(error)}


def _runs() -> dict[str, Any]:
    try:
        return _room(Path.cwd() / 'runs')
    except FileNotFoundError:
        return {'folder': None, 'free': None, 'error': 'the current folder has been deleted'}


def _room(folder: Path) -> dict[str, Any]:
    """Return how much is free where `folder` is or would be made, and the error of writing a small file there."""
    try:
        # A link to nothing exists for mkdir(), and not for Path.exists()
        there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        if not there.is_dir():
            error = 'not a folder' if there == folder else f'{there} is not a folder'
            return {'folder': str(folder), 'free': None, 'error': error}
        free = shutil.disk_usage(there).free
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(PROBE))
            file.flush()
            os.fsync(file.fileno())
    except OSError as failure:
        return {'folder': str(folder), 'free': None, 'error': failure.strerror or str(failure)}
    return {'folder': str(folder), 'free': free, 'error': ''}


def without_home(value: Any) -> Any:
    """`value` with ``~`` in place of the home folder, wherever it stands in it."""
    try:
        homes = {str(Path.home()), str(Path.home().resolve())} - {'/', ''}
    except (RuntimeError, KeyError):  # there is none; KeyError: Python 3.9
        return value
    pattern = re.compile('|'.join(rf'(?<![\w/.~-]){re.escape(home)}(?![\w.-])' for home in sorted(homes, key=len)))

    def replace(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub('~', value) if homes else value
        if isinstance(value, dict):
            return {key: replace(item) for key, item in value.items()}
        return [replace(item) for item in value] if isinstance(value, (list, tuple)) else value

    return replace(value)
