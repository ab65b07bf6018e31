"""GPUs of this machine according to the NVIDIA driver, called through ctypes: no CUDA toolkit, no MXNet, no NumPy.

It obeys CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, and numbers the GPUs like MXNet: index i is ``mx.gpu(i)``.
"""
import ctypes
import os
from ctypes import byref, c_char, c_int, c_size_t
from typing import NamedTuple
from uuid import UUID

from ..mxnet_setup.installation import BUILDS

LIBRARY = 'libcuda.so.1'
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76  # CUdevice_attribute
# CUresult: the known error codes of cuInit
MEANINGS = {
    3: 'not initialized; a process forked after using CUDA cannot use it, start a new one',
    34: 'this library is the stub of the CUDA toolkit; remove it from LD_LIBRARY_PATH',
    100: 'no GPU that CUDA can use',
    101: 'invalid device; check CUDA_VISIBLE_DEVICES',
    802: 'the system is not ready; check that the NVIDIA fabric manager runs',
    803: 'library and kernel module of the driver have different versions; reboot',
    804: 'the CUDA compatibility libraries do not match the GPU or driver; remove them from LD_LIBRARY_PATH',
    999: 'unknown error, often because the kernel module nvidia_uvm is not loaded; run nvidia-smi or reboot',
}


class Gpu(NamedTuple):
    """A GPU as its driver describes it."""

    index: int  # type: ignore[assignment]  # i of mx.gpu(i)
    name: str                     # 'Tesla V100-SXM2-16GB'
    capability: tuple[int, int]   # compute capability, e.g. (7, 0)
    memory: int                   # bytes
    uuid: str = ''                # as in nvidia-smi -L, without GPU- or MIG-; '' with old drivers

    def __str__(self) -> str:
        return f'{self.name} (compute capability {dotted(self.capability)})'

    def builds(self) -> list[str]:
        """Return the names of the MXNet builds that have code for this GPU."""
        return [name for name, (lowest, highest) in BUILDS.items() if lowest <= self.capability <= highest]

    def description(self) -> str:
        """Return its name, memory and MXNet builds in one line."""
        return f'{self}, {self.memory / 2**30:.1f} GiB: runs with {" and ".join(self.builds()) or "no MXNet"}'


class Driver(NamedTuple):
    """The driver's answer. Either `gpus` or `reason` is empty."""

    gpus: list[Gpu]
    cuda_version: tuple[int, int] | None   # the newest CUDA that the driver supports, e.g. (12, 4); None if unknown
    reason: str                            # why there are no GPUs, in one line


def ask_driver() -> Driver:
    """Return what the driver reports; the first call initializes it, up to a second. No GPU memory is used."""
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError:
        return Driver([], None, f'no NVIDIA driver: {LIBRARY} cannot be loaded')
    version, number, count = None, c_int(), c_int()
    try:
        _call(cuda, 'cuDriverGetVersion', byref(number))   # works before cuInit; 12040 is CUDA 12.4
        version = number.value // 1000, number.value % 1000 // 10
        _call(cuda, 'cuInit', c_int(0))
        _call(cuda, 'cuDeviceGetCount', byref(count))
        gpus = [_describe(cuda, i) for i in range(count.value)]
    except RuntimeError as error:
        return Driver([], version, f'{error}{hidden()}')
    return Driver(gpus, version, '' if gpus else f'the NVIDIA driver has no GPU{hidden()}')


def _call(cuda: ctypes.CDLL, name: str, *args: object) -> None:
    """Call a function of the driver, which a stub library may lack; RuntimeError if it fails. `args` are of ctypes."""
    try:
        code = getattr(cuda, name)(*args)
    except AttributeError:
        raise RuntimeError(f'unusable NVIDIA driver, {LIBRARY} has no {name}') from None
    if code != 0:
        meaning = MEANINGS.get(code, 'see CUresult in the documentation of the CUDA driver API')
        raise RuntimeError(f'unusable NVIDIA driver, {name} failed with {code}, {meaning}')


def _describe(cuda: ctypes.CDLL, index: int) -> Gpu:
    device, major, minor = c_int(), c_int(), c_int()
    name, memory, uuid = (c_char * 256)(), c_size_t(), (c_char * 16)()
    _call(cuda, 'cuDeviceGet', byref(device), c_int(index))
    _call(cuda, 'cuDeviceGetName', name, c_int(len(name)), device)
    _call(cuda, 'cuDeviceGetAttribute', byref(major), c_int(CAPABILITY_MAJOR), device)
    _call(cuda, 'cuDeviceGetAttribute', byref(minor), c_int(CAPABILITY_MINOR), device)
    # _v2: older versions count memory in 32 bits, and give a MIG instance the UUID of its GPU
    _call(cuda, 'cuDeviceTotalMem_v2', byref(memory), device)
    has_uuid = hasattr(cuda, 'cuDeviceGetUuid_v2') and cuda.cuDeviceGetUuid_v2(uuid, device) == 0
    return Gpu(index, name.value.decode(errors='replace'), (major.value, minor.value), memory.value,
               str(UUID(bytes=uuid.raw)) if has_uuid else '')


def hidden() -> str:
    """Return a hint for error messages if CUDA_VISIBLE_DEVICES may hide GPUs, else ''."""
    visible = os.environ.get('CUDA_VISIBLE_DEVICES')
    return '' if visible is None else f'; CUDA_VISIBLE_DEVICES={visible!r} may hide some'


def dotted(version: tuple[int, int] | None) -> str:
    """Return a version as text: '9.0' for (9, 0), 'unknown' for None."""
    return '.'.join(map(str, version)) if version else 'unknown'
