"""Lists of devices: create, parse and check them."""
from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..base.arguments import integer
from ..base.machine import num_cores
from ..base.program import ProblemError
from ..mxnet_setup.runtime import import_mxnet, omp_threads
from .gpus import check_gpus, num_mxnet_gpus, usable_gpus, why_no_gpus

if TYPE_CHECKING:
    from mxnet.context import Context

MAX_DEVICES = 1000
# 'cpu:0', 'gpu:0-3'; three digits, because 'cpu:0-999999999' would fill the memory
NUMBERS = re.compile(r'(?:cpu|gpu):([0-9]{1,3})(?:-([0-9]{1,3}))?')


def try_gpu(i: int = 0) -> Context:
    """Return gpu(i) if it exists and this MXNet has code for it, else cpu(i).

    Source: D2L 6.7, ``try_gpu``, which returns the same cpu() for every missing GPU. Raises ValueError if `i` is not
    an integer of at least 0, or if cpu(0) and cpu(i) would hang (`check_omp_threads`).
    """
    mx = import_mxnet()
    i = integer('device number', i, minimum=0)
    if i in usable_gpus():
        return mx.gpu(i)
    check_omp_threads([mx.cpu(0), mx.cpu(i)])  # a caller that asks for cpu(1) also uses cpu(0)
    return mx.cpu(i)


def try_all_gpus() -> list[Context]:
    """Return all GPUs that this MXNet has code for, else [cpu(0), cpu(1)]; ValueError if these would hang.

    Source: D2L 6.7, ``try_all_gpus``, which returns an empty list without a GPU.
    """
    mx = import_mxnet()
    return [mx.gpu(i) for i in usable_gpus()] or check_omp_threads([mx.cpu(0), mx.cpu(1)])


def devices_from(num_gpus: int | None, devices: Sequence[Context] | None = None) -> list[Context]:
    """Return `devices`, checked; by default the first `num_gpus` GPUs or, if MXNet sees none, as many CPU contexts."""
    if devices is not None:
        devices = check_devices(devices)
        if num_gpus not in (None, len(devices)):
            raise ValueError(f'num_gpus {num_gpus}: must be {len(devices)}, the number of devices')
        return devices
    mx = import_mxnet()
    num_gpus = integer('num_gpus', num_gpus, minimum=1, maximum=MAX_DEVICES)
    kind = mx.gpu if num_mxnet_gpus() else mx.cpu
    return check_devices([kind(i) for i in range(num_gpus)])


def parse_devices(text: str) -> list[Context]:
    """Return the devices in a list such as ``'gpu:0,cpu:0-3'`` (both ends included) or ``'gpu:all'``, checked.

    ``cpu:all`` is one context per core. Raises ValueError for other text and for devices that cannot be used.
    """
    mx = import_mxnet()
    devices: list[Context] = []
    for item in map(str.strip, text.split(',')):
        if item == 'cpu:all':
            numbers = range(num_cores())
        elif item == 'gpu:all':
            numbers = range(num_mxnet_gpus())
            if not numbers:
                raise ValueError(f"'gpu:all' names no device ({why_no_gpus()}): use 'cpu:all'")
        elif match := NUMBERS.fullmatch(item):
            first, last = match.groups()
            numbers = range(int(first), int(last or first) + 1)
        else:
            numbers = range(0)
        if not numbers:
            raise ValueError(f"{item!r} names no device: write a list such as 'gpu:0,gpu:1', 'cpu:0-3' or "
                             "'gpu:all', with numbers up to 999")
        devices += map(mx.cpu if item.startswith('cpu') else mx.gpu, numbers)
    return check_devices(devices)


def devices_text(devices: Iterable) -> str:
    """Return devices, or their names, as text for `parse_devices`, each once: 'cpu:0,gpu:1' for [cpu(0), gpu(1)]."""
    return ','.join(dict.fromkeys(map(str, devices))).replace('(', ':').replace(')', '')


def devices_words(devices: Iterable) -> str:
    """Return devices, or their names, for a message: 'cpu(0), cpu(1)'; of more than 8, the first and the last."""
    names = [*map(str, devices)]
    return ', '.join(names if len(names) <= 8 else [names[0], '...', names[-1]])


def check_devices(devices: Sequence[Context]) -> list[Context]:
    """Return the devices as a list if training can use all of them together; else raise ValueError."""
    # MXNet itself accepts missing GPUs, duplicates and negative numbers, and fails or hangs later
    devices = list(devices)
    if not devices:
        raise ValueError("the list of devices is empty: name at least one, such as 'cpu:0'")
    for device in devices:
        if getattr(device, 'device_type', None) not in ('cpu', 'gpu'):
            raise ValueError(f'{device!r} is not a device: use mx.cpu(i) or mx.gpu(i), or parse_devices for text')
        if device.device_id < 0:
            raise ValueError(f'{device} has a negative number: devices are numbered from 0')
    for n, device in enumerate(devices):
        if device in devices[:n]:  # its gradients would be summed wrongly or not at all
            raise ValueError(f'[{devices_words(devices)}] lists {device} twice: list each device once')
    check_gpus([d.device_id for d in devices if d.device_type == 'gpu'])
    return check_omp_threads(devices)


def check_omp_threads(devices: Sequence[Context]) -> list[Context]:
    """Return devices as a list; raise ValueError if CPU contexts would hang in OpenBLAS; fast enough for each batch."""
    if omp_threads() > 1:
        num_cpus = len({d.device_id for d in devices if d.device_type == 'cpu'})
        if import_mxnet().__version__.startswith('1.') and num_cpus > 1:
            raise ProblemError(
                f'{omp_threads()} threads of OpenMP with {num_cpus} CPU contexts hang in OpenBLAS',
                'export OMP_NUM_THREADS=1, or import gluon_mgpu before what loads OpenMP, such as PyTorch')
    return list(devices)
