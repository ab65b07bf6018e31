"""Lists of devices: made, read from text, checked."""
from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..base.checks import integer
from ..base.machine import num_cores
from ..mxnet_setup.runtime import omp_threads
from .gpus import check_gpus, num_mxnet_gpus, usable_gpus, why_no_gpus

if TYPE_CHECKING:
    from mxnet.context import Context

# 'cpu:0', 'gpu:0-3', 'cpu:all'. Three digits are enough, and 'cpu:0-999999999' would fill the memory.
MOST_DEVICES = 1000
DEVICE = re.compile(r'(cpu|gpu):(?:all|([0-9]{1,3})(?:-([0-9]{1,3}))?)')


def try_gpu(i: int = 0) -> Context:
    """Return gpu(i) if it exists and this MXNet has code for it, else cpu(i).

    Source: D2L 6.7, ``try_gpu``, where every missing GPU becomes the same cpu(): two missing ones are two
    devices here.

    Raises
    ------
    ValueError
        If `i` is no integer of at least 0, or cpu(i) would be one of several CPU contexts that hang
        (`check_omp_threads`).
    """
    from ..mxnet_setup.compat import mx
    i = integer('device number', i, 0)
    if i in usable_gpus():
        return mx.gpu(i)
    check_omp_threads([mx.cpu(0), mx.cpu(i)])  # what asks for cpu(1) has cpu(0), or will
    return mx.cpu(i)


def try_all_gpus() -> list[Context]:
    """Return all GPUs that this MXNet has code for, else [cpu(0), cpu(1)].

    Source: D2L 6.7, ``try_all_gpus``, which gives an empty list when there is no GPU.

    Raises
    ------
    ValueError
        If the two CPU contexts would hang (`check_omp_threads`).
    """
    from ..mxnet_setup.compat import mx
    return [mx.gpu(i) for i in usable_gpus()] or check_omp_threads([mx.cpu(0), mx.cpu(1)])


def devices_from(num_gpus: int) -> list[Context]:
    """Return the devices that `--num-gpus` means: the first GPUs, or as many CPU contexts.

    With a GPU that MXNet sees, all `num_gpus` must be GPUs. With none they are CPU contexts, and the caller should
    say so: ``why_no_gpus()`` is the line to print.

    Raises
    ------
    ValueError
        If `num_gpus` is no integer from 1 to `MOST_DEVICES`, and all that `check_devices` refuses.
    """
    from ..mxnet_setup.compat import mx
    num_gpus = integer('the number of devices', num_gpus, 1, MOST_DEVICES)
    kind = mx.gpu if num_mxnet_gpus() else mx.cpu
    return check_devices([kind(i) for i in range(num_gpus)])


def parse_devices(text: str) -> list[Context]:
    """Return the devices that a text lists, checked by `check_devices`.

    Parameters
    ----------
    text : str
        Items separated by commas, each a device (`gpu:0`), a range (`cpu:0-3`, both ends included) or a kind
        (`gpu:all`; `cpu:all` is one context per core).

    Raises
    ------
    ValueError
        For an item that is none of these, a range that runs backwards, `gpu:all` without a GPU, and all that
        `check_devices` refuses.
    """
    from ..mxnet_setup.compat import mx
    devices = []
    for item in map(str.strip, text.split(',')):
        match = DEVICE.fullmatch(item)
        if not match:
            raise ValueError(f"{item!r} names no device: write a list such as 'gpu:0,gpu:1', 'cpu:0-3' or "
                             "'gpu:all', with numbers up to 999")
        kind, first, last = match.groups()
        if first:
            numbers = range(int(first), int(last or first) + 1)
        else:
            numbers = range(num_cores() if kind == 'cpu' else num_mxnet_gpus())
        if not numbers:
            raise ValueError(f"'{item}' runs backwards: write '{kind}:{last}-{first}'" if first else
                             f"'{item}' names no device ({why_no_gpus()}): use 'cpu:all'")
        devices += [getattr(mx, kind)(i) for i in numbers]
    return check_devices(devices)


def check_devices(devices: Sequence[Context]) -> list[Context]:
    """Return the devices as a list if one can train on all of them.

    Raises
    ------
    ValueError
        For no devices at all, something that is no device, a device listed twice or with a negative number,
        a GPU that does not exist or that the installed MXNet has no code for, and for several CPU contexts
        with OMP_NUM_THREADS above 1 on MXNet 1.x, where they hang.

    Notes
    -----
    MXNet itself accepts all of these and fails, or hangs, later. More CPU contexts than cores are fine.
    """
    try:
        devices = list(devices)
    except TypeError:
        raise ValueError(f'{devices!r} is no list of devices: write [mx.cpu(0), mx.cpu(1)]') from None
    if not devices:
        raise ValueError("the list of devices is empty: name at least one, such as 'cpu:0'")
    for n, device in enumerate(devices):
        if getattr(device, 'device_type', None) not in ('cpu', 'gpu'):
            raise ValueError(f'{device!r} is no device to train on: give mx.cpu(i) or mx.gpu(i); '
                             'parse_devices reads text')
        if device.device_id < 0:
            raise ValueError(f'{device} has a negative number: devices are numbered from 0')
        if device in devices[:n]:
            raise ValueError(f'{device} is listed twice: list each device once')
    check_gpus([d.device_id for d in devices if d.device_type == 'gpu'])
    return check_omp_threads(devices)


def check_omp_threads(devices: Sequence[Context]) -> list[Context]:
    """Return the devices as a list if they can compute at the same time.

    Called by all that spreads work over several devices, also once per batch: it is quick.

    Raises
    ------
    ValueError
        For several CPU contexts with OMP_NUM_THREADS above 1 on MXNet 1.x, where matrix products hang.
    """
    if omp_threads() > 1:
        from ..mxnet_setup.compat import MXNET_MAJOR
        num_cpus = len({d.device_id for d in devices if d.device_type == 'cpu'})
        if MXNET_MAJOR < 2 and num_cpus > 1:
            raise ValueError(f"OMP_NUM_THREADS={omp_threads()} with {num_cpus} CPU contexts hangs in MXNet's "
                             'OpenBLAS: unset it or set it to 1')
    return list(devices)
