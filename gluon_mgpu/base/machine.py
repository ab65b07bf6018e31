"""Facts about this machine: cores, processor and versions. Needs neither MXNet nor NumPy."""
from __future__ import annotations

import atexit
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, 'sched_getaffinity'):  # Linux: taskset and containers may allow fewer than the machine has
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    """Return the name of the processor."""
    return _cpuinfo('model name') or platform.processor() or platform.machine()


def processor_flags() -> list[str]:
    """Return the instruction sets of the processor, such as ``'avx512_bf16'``; [] except on Linux on x86_64."""
    return _cpuinfo('flags').split()


def _cpuinfo(key: str) -> str:
    """Return the first value of `key` in /proc/cpuinfo, or ''."""
    try:
        lines = Path('/proc/cpuinfo').read_text().splitlines()
    except OSError:  # not Linux
        return ''
    return next((line.partition(':')[2].strip() for line in lines if line.split(':')[0].strip() == key), '')


def folder_for_matplotlib() -> None:
    """Give Matplotlib a temporary folder if it cannot write its own: it would warn, and older versions would fail."""
    if os.environ.get('MPLCONFIGDIR'):
        return
    try:
        for variable, default in (('XDG_CONFIG_HOME', '.config'), ('XDG_CACHE_HOME', '.cache')):
            folder = Path(os.environ.get(variable) or Path.home() / default) / 'matplotlib'
            there = next(path for path in (folder, *folder.parents) if path.exists())
            if not (there.is_dir() and os.access(there, os.W_OK)):
                raise PermissionError
    except (OSError, RuntimeError, KeyError):  # no home folder; KeyError: Python 3.9
        os.environ['MPLCONFIGDIR'] = tempfile.mkdtemp(prefix='matplotlib-')
        atexit.register(shutil.rmtree, os.environ['MPLCONFIGDIR'], ignore_errors=True)


def versions() -> dict[str, str | None]:
    """Return the versions of this package, MXNet and NumPy (None if not loaded), Python and the platform."""
    loaded = ('gluon_mgpu', 'mxnet', 'numpy')
    return {**{name: getattr(sys.modules.get(name), '__version__', None) for name in loaded},
            'python': platform.python_version(), 'platform': platform.platform()}
