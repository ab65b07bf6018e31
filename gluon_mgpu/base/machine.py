"""What this machine is: its cores, its processor, and the versions of what runs on it.

Needs neither MXNet nor NumPy.
"""
from __future__ import annotations

import atexit
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path


def num_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, 'sched_getaffinity'):  # on Linux; taskset and containers may leave fewer than there are
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    """Return the processor's name as Linux tells it, else what Python knows."""
    return _cpuinfo('model name') or platform.processor() or platform.machine()


def processor_flags() -> list[str]:
    """Return what the processor can do, as Linux names it, such as ``'avx512_bf16'``; elsewhere nothing."""
    return _cpuinfo('flags').split()


def _cpuinfo(key: str) -> str:
    """The first value of `key` in /proc/cpuinfo, '' if there is none."""
    try:
        lines = Path('/proc/cpuinfo').read_text().splitlines()
    except OSError:  # not Linux
        return ''
    return next((line.partition(':')[2].strip() for line in lines if line.split(':')[0].strip() == key), '')


def folder_for_matplotlib() -> None:
    """Where there is no home folder, name another: older versions of matplotlib can't be imported without."""
    try:
        Path.home()
    except (RuntimeError, KeyError):  # KeyError: Python 3.9
        if not os.environ.get('MPLCONFIGDIR'):
            os.environ['MPLCONFIGDIR'] = tempfile.mkdtemp(prefix='matplotlib-')
            atexit.register(shutil.rmtree, os.environ['MPLCONFIGDIR'], ignore_errors=True)


def versions() -> dict[str, str | None]:
    """Return what a record of numbers needs to be understood later: the versions of what computed them.

    Returns
    -------
    dict
        'gluon_mgpu', 'mxnet' and 'numpy' (None for what is not loaded), 'python' and 'platform'.
    """
    loaded = ('gluon_mgpu', 'mxnet', 'numpy')
    return {**{name: getattr(sys.modules.get(name), '__version__', None) for name in loaded},
            'python': platform.python_version(), 'platform': platform.platform()}
