"""The devices of this machine, lists of them, and a batch split over them.

    python -m gluon_mgpu.devices      the GPUs, whether MXNet can use them, and the CPU contexts

That command needs nothing installed: MXNet is loaded inside the functions that need it.
"""
from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .gpus import check_gpus, dotted, num_mxnet_gpus, usable_gpus, why_no_gpus
from .installation import installed_builds
from .nvidia_driver import BUILDS, ask_driver
from .runtime import omp_threads

if TYPE_CHECKING:
    from mxnet.context import Context

# 'cpu:0', 'gpu:0-3', 'cpu:all'. Three digits are enough, and 'cpu:0-999999999' would fill the memory.
DEVICE = re.compile(r'(cpu|gpu):(?:all|([0-9]{1,3})(?:-([0-9]{1,3}))?)')


def try_gpu(i: int = 0) -> Context:
    """Return gpu(i) if it exists and this MXNet has code for it, else cpu(i).

    Raises ValueError for a negative `i`. Source: d2l, "GPUs", `try_gpu`, where every missing GPU becomes the
    same cpu(): two missing ones are two devices here.
    """
    from .compat import mx
    if i < 0:
        raise ValueError(f'device number {i} is negative: devices are numbered from 0')
    return mx.gpu(i) if i in usable_gpus() else mx.cpu(i)


def try_all_gpus() -> list[Context]:
    """Return all GPUs that this MXNet has code for, else [cpu(0), cpu(1)].

    Source: d2l, "GPUs", `try_all_gpus`, which gives an empty list when there is no GPU.
    """
    from .compat import mx
    return [mx.gpu(i) for i in usable_gpus()] or [mx.cpu(0), mx.cpu(1)]


def devices_from(num_gpus: int) -> list[Context]:
    """Return the devices that `--num-gpus` means: the first GPUs, or as many CPU contexts.

    With a GPU that MXNet sees, all `num_gpus` must be GPUs, or it is a ValueError (see `check_devices`). With
    none they are CPU contexts, and the caller should say so: `why_no_gpus()` is the line to print.
    """
    from .compat import mx
    if num_gpus < 1:
        raise ValueError(f'the number of devices is {num_gpus}: it must be at least 1')
    kind = mx.gpu if num_mxnet_gpus() else mx.cpu
    return check_devices([kind(i) for i in range(num_gpus)])


def parse_devices(text: str) -> list[Context]:
    """Return the devices that a text lists, checked by `check_devices`.

    Parameters
    ----------
    text : str
        Items separated by commas, each a device (`gpu:0`), a range (`cpu:0-3`, both ends included) or a kind
        (`gpu:all`; `cpu:all` is one context a core).

    Raises
    ------
    ValueError
        For an item that is none of these, a range that runs backwards, `gpu:all` without a GPU, and all that
        `check_devices` refuses.
    """
    from .compat import mx
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
    from .compat import MXNET_MAJOR
    devices = list(devices)
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

    num_cpus, threads = sum(d.device_type == 'cpu' for d in devices), omp_threads()
    if MXNET_MAJOR < 2 and num_cpus > 1 and threads > 1:
        raise ValueError(f"OMP_NUM_THREADS={threads} with {num_cpus} CPU contexts hangs in MXNet's OpenBLAS: "
                         'unset it or set it to 1')
    return devices


def split_batch(X: Any, y: Any, devices: Sequence[Context]) -> tuple[list[Any], list[Any]]:
    """Split the rows of `X` and `y` over the devices, as evenly as possible.

    Parameters
    ----------
    X, y : arrays of MXNet or NumPy, (n, ...) and (n, ...), n >= 1
    devices : k devices

    Returns
    -------
    X_shards, y_shards : lists of min(k, n) arrays
        Shard i is on devices[i]. 7 rows on 3 devices are 3, 2 and 2; 1 row on 3 devices is one shard, since
        MXNet's layers fail on empty ones: `zip(X_shards, devices)` leaves the other devices out. The dtypes
        stay. A shard on the device of `X` shares its memory, so don't write into it.

    Raises
    ------
    ValueError
        If `X` and `y` differ in rows, or there are no rows or no devices.

    Notes
    -----
    Does not wait. Source: d2l, "Training on Multiple GPUs", `split_batch`, which calls
    `gluon.utils.split_and_load` and so takes only batches that divide by k. There the slices are operations,
    queued on the device of `X`; here they are views, and only the copies to other devices are queued.
    """
    if len(X) != len(y):
        raise ValueError(f'X has {len(X)} rows and y has {len(y)}: they must have equally many')
    n, k = len(X), min(len(X), len(devices))
    if k == 0:
        raise ValueError(f'cannot split {n} rows over {len(devices)} devices: both must be at least 1')
    # n = k * (n // k) + n % k: the first n % k shards have one row more
    ends = [i * (n // k) + min(i, n % k) for i in range(k + 1)]
    X, y = _from_numpy(X), _from_numpy(y)
    return ([X[a:b].as_in_ctx(device) for a, b, device in zip(ends, ends[1:], devices)],
            [y[a:b].as_in_ctx(device) for a, b, device in zip(ends, ends[1:], devices)])


def num_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, 'sched_getaffinity'):   # on Linux; taskset and containers may leave fewer than there are
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _from_numpy(array: Any) -> Any:
    from .compat import empty_with_view, mx
    if isinstance(array, mx.nd.NDArray):
        return array
    copy, view = empty_with_view(array.shape, array.dtype)
    view[:] = array
    return copy


def main() -> None:
    """Print the GPUs, the builds of MXNet that have code for them, and the CPU contexts. Loads no MXNet."""
    gpus, cuda_version, reason = ask_driver()
    if cuda_version:
        print(f'NVIDIA driver for CUDA up to {dotted(cuda_version)}')
    for gpu in gpus:
        verdicts = (f'{"runs" if name in gpu.builds() else "does not run"} with {name}' for name in BUILDS)
        print(f'gpu:{gpu.index}  {gpu}, {gpu.memory / 2**30:.1f} GiB: {"; ".join(verdicts)}')
    if not gpus:
        print(f'no GPU ({reason})')
    print(f'cpu:0-{num_cores() - 1}  (cpu:all) one CPU context a core')
    print(f'MXNet installed: {" and ".join(installed_builds()) or "none"}')


if __name__ == '__main__':
    main()
