"""Facts about this machine: cores, processor and versions. Needs neither MXNet nor NumPy."""
import os
import platform
import sys
from pathlib import Path


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, 'sched_getaffinity'):  # Linux: taskset and containers may allow fewer than the machine has
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    """Return the name of the processor, on Linux on x86-64 with its family and model, which tell generations apart."""
    name = _cpuinfo('model name') or platform.processor() or platform.machine()
    return f'{name} (family {_cpuinfo("cpu family")}, model {_cpuinfo("model")})' if _cpuinfo('cpu family') else name


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


def versions() -> dict[str, str | None]:
    """Return the versions of this package, MXNet and NumPy (None if not loaded), Python and the platform."""
    loaded = ('gluon_mgpu', 'mxnet', 'numpy')
    return {**{name: getattr(sys.modules.get(name), '__version__', None) for name in loaded},
            'python': platform.python_version(), 'platform': platform.platform()}
