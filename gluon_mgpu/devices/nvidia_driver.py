"""What the NVIDIA driver says about the GPUs of this machine, asked through ctypes.

The driver's own library, libcuda.so.1 or nvcuda.dll, is all that is needed: no CUDA toolkit, no
MXNet, no NumPy, any Python from 3.8. It obeys CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, and
numbers the GPUs as MXNet does: the GPU of index i is `mx.gpu(i)`.
"""
from __future__ import annotations

import ctypes
import os
import sys
from ctypes import byref, c_char, c_int, c_size_t
from typing import NamedTuple
from uuid import UUID

from ..mxnet_setup.installation import BUILDS

LIBRARY = 'nvcuda.dll' if sys.platform == 'win32' else 'libcuda.so.1'

# CUdevice_attribute
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76

# CUresult: the codes that cuInit is known to give, and what to do about them
MEANINGS = {
    3: 'not initialized; a process forked after using CUDA cannot use it: start a new one',
    34: "the library is the CUDA toolkit's stub, not the driver: take it off LD_LIBRARY_PATH",
    100: 'no GPU that CUDA can use',
    101: 'invalid device; look at CUDA_VISIBLE_DEVICES',
    802: 'the system is not ready; is the NVIDIA fabric manager running?',
    803: "the driver's library and its kernel module are of different versions: reboot",
    804: 'the CUDA compatibility libraries do not suit this GPU or its driver: take them off LD_LIBRARY_PATH',
    999: 'unknown error; often the kernel module nvidia_uvm is not loaded: run nvidia-smi, or reboot',
}


class Gpu(NamedTuple):
    """One GPU, as its driver describes it."""

    index: int  # type: ignore[assignment]  # i of mx.gpu(i)
    name: str                     # 'Tesla V100-SXM2-16GB'
    capability: tuple[int, int]   # compute capability (major, minor): (7, 0)
    memory: int                   # bytes
    uuid: str = ''                # as nvidia-smi -L shows it, without GPU- or MIG-; '' from old drivers

    @property
    def is_mig(self) -> bool:
        """Whether it is an instance of a GPU that is split: 'NVIDIA A100-SXM4-40GB MIG 3g.20gb'."""
        return ' MIG ' in self.name

    def __str__(self) -> str:
        return f'{self.name} (compute capability {self.capability[0]}.{self.capability[1]})'

    def builds(self) -> list[str]:
        """Return the names of the builds of MXNet that have code for this GPU."""
        return [name for name, (lowest, highest) in BUILDS.items() if lowest <= self.capability <= highest]


class Driver(NamedTuple):
    """What the driver answered. `gpus` is empty if and only if `reason` says why, in one line."""

    gpus: list[Gpu]
    cuda_version: tuple[int, int] | None   # the newest CUDA the driver knows, e.g. (12, 4)
    reason: str


class _DriverError(Exception):
    pass


def ask_driver() -> Driver:
    """Ask the NVIDIA driver for its GPUs.

    Returns
    -------
    Driver
        `(gpus, cuda_version, reason)`. `cuda_version` is None unless the driver told it.

    Notes
    -----
    Raises nothing: a machine without a driver, or with a broken one, is an answer too. The first call in
    a process initializes the driver, which may take a second; no GPU memory is used.
    """
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError:
        return Driver([], None, f'no NVIDIA driver: {LIBRARY} cannot be loaded')

    version = None
    try:
        version = _cuda_version(cuda)
        _call(cuda, 'cuInit', c_int(0))
        count = c_int()
        _call(cuda, 'cuDeviceGetCount', byref(count))
        gpus = [_describe(cuda, i) for i in range(count.value)]
    except _DriverError as error:
        return Driver([], version, str(error))
    return Driver(gpus, version, '' if gpus else f'the NVIDIA driver has no GPU{hidden()}')


def _call(cuda: ctypes.CDLL, name: str, *args: object) -> None:
    # The result, CUresult, is an int, as ctypes assumes; every argument below is a ctypes object, so
    # that none needs converting. Functions are looked up one by one since a stub may lack some.
    try:
        code = getattr(cuda, name)(*args)
    except AttributeError:
        raise _DriverError(f'the NVIDIA driver is unusable: {LIBRARY} has no {name}') from None
    if code != 0:
        meaning = MEANINGS.get(code, 'see CUresult in the documentation of the CUDA driver API')
        raise _DriverError(f'the NVIDIA driver is unusable: {name} failed with {code} ({meaning}){hidden()}')


def _cuda_version(cuda: ctypes.CDLL) -> tuple[int, int]:
    version = c_int()
    _call(cuda, 'cuDriverGetVersion', byref(version))   # works before cuInit; 12040 is CUDA 12.4
    return version.value // 1000, version.value % 1000 // 10


def _describe(cuda: ctypes.CDLL, index: int) -> Gpu:
    device, major, minor = c_int(), c_int(), c_int()
    name, memory = (c_char * 256)(), c_size_t()
    _call(cuda, 'cuDeviceGet', byref(device), c_int(index))
    _call(cuda, 'cuDeviceGetName', name, c_int(len(name)), device)
    _call(cuda, 'cuDeviceGetAttribute', byref(major), c_int(CAPABILITY_MAJOR), device)
    _call(cuda, 'cuDeviceGetAttribute', byref(minor), c_int(CAPABILITY_MINOR), device)
    # Without _v2 the function is the one of CUDA 3.1, which counts in 32 bits
    _call(cuda, 'cuDeviceTotalMem_v2', byref(memory), device)
    return Gpu(index, name.value.decode(errors='replace'), (major.value, minor.value), memory.value,
               _uuid(cuda, device))


def _uuid(cuda: ctypes.CDLL, device: c_int) -> str:
    # Without _v2 a MIG instance has the number of the GPU that it is a part of
    number = (c_char * 16)()
    if not hasattr(cuda, 'cuDeviceGetUuid_v2') or cuda.cuDeviceGetUuid_v2(number, device) != 0:
        return ''
    return str(UUID(bytes=number.raw))


def hidden() -> str:
    """What to add where a GPU is missed; '' if the environment hides none."""
    visible = os.environ.get('CUDA_VISIBLE_DEVICES')
    return '' if visible is None else f'; CUDA_VISIBLE_DEVICES={visible!r} may hide some'
