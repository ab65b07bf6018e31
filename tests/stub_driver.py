"""A stand-in for the NVIDIA driver, built from tools/stub_driver.c, with GPUs of the test's choice."""
from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from gluon_mgpu.devices.nvidia_driver import Gpu

SOURCE = Path(__file__).parents[1] / 'tools' / 'stub_driver.c'


def build(folder: Path) -> None:
    """Make libcuda.so.1 in `folder`; skips the test where it can't be made."""
    compiler = shutil.which('cc') or shutil.which('gcc')
    if sys.platform != 'linux' or not compiler:
        pytest.skip('needs Linux and a C compiler to make a stub of libcuda.so.1')
    subprocess.run([compiler, '-Wall', '-Wextra', '-Werror', '-shared', '-fPIC', '-o', folder / 'libcuda.so.1', SOURCE],
                   check=True)


def environment(folder: Path, gpus: Iterable[Gpu]) -> dict[str, str]:
    """What the environment must say for a process to find these GPUs."""
    described = ('|'.join((f'{"MIG" if gpu.is_mig else "GPU"}-{gpu.uuid}', gpu.name, '{}.{}'.format(*gpu.capability),
                           str(gpu.memory))) for gpu in gpus)
    return {'LD_LIBRARY_PATH': str(folder), 'STUB_GPUS': ';'.join(described)}
