"""Stub of the NVIDIA driver, built from tools/stub_driver.c, that reports the GPUs that a test gives it."""
from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from gluon_mgpu.devices.nvidia_driver import Gpu

SOURCE = Path(__file__).parents[1] / 'tools' / 'stub_driver.c'


def build(folder: Path) -> None:
    """Write libcuda.so.1 into `folder`, or skip the test if it cannot be compiled."""
    (folder / 'libcuda.so.1').write_bytes(compiled())


@functools.cache
def compiled() -> bytes:
    compiler = shutil.which('cc') or shutil.which('gcc')
    if sys.platform != 'linux' or not compiler:
        pytest.skip('needs Linux and a C compiler, to build a stub of libcuda.so.1')
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / 'libcuda.so.1'
        subprocess.run([compiler, '-Wall', '-Wextra', '-Werror', '-shared', '-fPIC', '-o', library, SOURCE], check=True)
        return library.read_bytes()


def environment(folder: Path, gpus: Iterable[Gpu]) -> dict[str, str]:
    """Return the environment variables that make a process find these GPUs."""
    described = ('|'.join((f'{"MIG" if " MIG " in gpu.name else "GPU"}-{gpu.uuid}', gpu.name,
                           '{}.{}'.format(*gpu.capability), str(gpu.memory))) for gpu in gpus)
    return {'LD_LIBRARY_PATH': str(folder), 'STUB_GPUS': ';'.join(described)}
