"""Facts about this process and its machine. Needs neither MXNet nor NumPy, and does not import MXNet."""
from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from ..base.machine import num_cores, processor, processor_flags, versions
from ..data.folders import FILES, DownloadError, cache_dir, find, named_folder
from ..mxnet_setup import runtime
from ..mxnet_setup.installation import PACKAGES, how_to_get_horovod, installed_builds, obstacle

# Variables that affect MXNet or the visible GPUs
ENGINE = re.compile(r'(MXNET|OMP|GOMP|KMP|OPENBLAS|MALLOC|CUDA)_\w+|GLIBC_TUNABLES|LD_PRELOAD|DMLC_ROLE')
PROBE = 2**16  # bytes written to test a disk


def look() -> dict[str, Any]:
    """Collect all facts that do not need MXNet, by topic."""
    prepared, found = runtime.prepare(), versions()
    return {
        'gluon_mgpu': found['gluon_mgpu'],
        'python': {'version': found['python'], 'executable': sys.executable,
                   'platform': f'{platform.system()} {platform.machine()}', 'release': found['platform']},
        'numpy': {'version': found['numpy'], 'supplied': list(prepared.names)},
        'packages_missing': [name for module, name in PACKAGES.items() if not _folder(module)],
        'mxnet': {'builds': {name: metadata.version(name) for name in installed_builds()}, 'folder': _folder('mxnet'),
                  'obstacle': obstacle(), 'imported_first': list(prepared.too_late)},
        'cores': {'count': num_cores(), 'processor': processor(), 'bfloat16': 'avx512_bf16' in processor_flags()},
        'engine': _engine(prepared),
        'omp_threads': runtime.omp_threads(),
        'horovod': {'installed': _folder('horovod') is not None, 'remedy': how_to_get_horovod()},
        'data': _data(),
        'disks': {'cache': _disk(cache_dir), 'runs': _disk(lambda: Path.cwd() / 'runs')},
    }


def _folder(module: str) -> str | None:
    """Locate a package without importing it."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # ValueError: put into sys.modules by hand
        return None
    return os.path.dirname(spec.origin) if spec and spec.origin else None


def _engine(prepared: runtime.Prepared) -> list[dict[str, str | None]]:
    """Return the settings in force, each set by 'gluon_mgpu', by 'you', or by None for an unset variable."""
    found: list[dict[str, str | None]] = []
    for name in dict.fromkeys([*runtime.ENVIRONMENT, *sorted(filter(ENGINE.fullmatch, os.environ))]):
        value = runtime.settings().get(name) or os.environ.get(name)
        by = 'gluon_mgpu' if name in prepared.variables else 'you' if value else None
        found.append({'name': name, 'value': value, 'by': by})
    return found + [{'name': f'mallopt {name}', 'value': str(number), 'by': 'gluon_mgpu'}
                    for name, _, number in runtime.ALLOCATOR if name in prepared.allocator]


def _data() -> dict[str, Any]:
    """Return the folder of each complete dataset, and the error for one missing in the folder that the user named."""
    named, found = os.environ.get('GLUON_MGPU_DATA'), {}
    for name in ('fashion-mnist', 'mnist'):
        try:
            folder = named_folder(name, named) if named else cache_dir() / name
            found[name] = {'folder': str(folder) if all(find(folder, file) for file in FILES) else None}
        except (ValueError, OSError) as error:
            line = getattr(error, 'strerror', None) or str(error)
            found[name] = {'folder': None, 'error': line if named else ''}
    return {'named': named or None, **found}


def _disk(locate: Callable[[], Path]) -> dict[str, Any]:
    """Return the free bytes at a folder, which need not exist yet, and the error of writing a small file there."""
    folder: Path | None = None
    try:
        folder = locate()
        # A broken link exists for mkdir(), but not for Path.exists()
        there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        if not there.is_dir():
            raise NotADirectoryError(0, 'not a folder' if there == folder else f'{there} is not a folder')
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(PROBE))
            file.flush()
            os.fsync(file.fileno())
        return {'folder': str(folder), 'free': shutil.disk_usage(there).free, 'error': ''}
    except (OSError, DownloadError) as error:
        return {'folder': folder and str(folder), 'free': None, 'error': getattr(error, 'strerror', None) or str(error)}


def without_home(report: dict[str, Any]) -> dict[str, Any]:
    """Replace the home folder by ``~`` everywhere in a report that JSON can hold."""
    text = json.dumps(report)
    try:
        homes = {str(Path.home()), str(Path.home().resolve())} - {'/', ''}
    except (RuntimeError, KeyError):  # no home folder; KeyError: Python 3.9
        homes = set()
    for home in sorted(homes, key=len, reverse=True):
        start, end = r'((?<=\\[bfnrt])|(?<![\w/.~-]))', r'(?![\w.-])'
        text = re.sub(start + re.escape(json.dumps(home)[1:-1]) + end, '~', text)
    return json.loads(text)
