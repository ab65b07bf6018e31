"""Four algorithms for allreduce: give every device the sum of the arrays on all devices.

Each function takes a list of arrays, one per device, with the same shape and dtype. It replaces each array by the sum,
in place and without blocking, and returns the bytes that each device sent and received. docs/allreduce.md compares
the algorithms.

They add in different orders, so their sums differ by rounding. All devices always get the same bits, because the
sum of each element is completed on one device and copied from there.
"""
from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache

import numpy

from ..data.shards import shard_rows
from ..mxnet_setup.compat import mx, np


class Traffic:
    """Bytes that each device `sent` and `received`: two dicts, with the devices in the order of `data`.

    Raises ValueError if `data` is empty, the arrays have different shapes or dtypes, or two are on one device.
    """

    def __init__(self, data: list):
        if not data:
            raise ValueError('the list of arrays is empty: give one array per device')
        devices = [array.ctx for array in data]
        for i, array in enumerate(data):
            if array.shape != data[0].shape or array.dtype != data[0].dtype:
                raise ValueError(f'array {i} is {_kind(array)} and array 0 is {_kind(data[0])}: all must have the '
                                 'same shape and dtype')
            if array.ctx in devices[:i]:
                raise ValueError(f'array {i} is on {array.ctx}, and so is array {devices.index(array.ctx)}: give '
                                 'one array per device')
        self.sent, self.received = dict.fromkeys(devices, 0), dict.fromkeys(devices, 0)

    def send(self, source, device):
        """Return a copy of `source` on another device."""
        self.count(source, device)
        return source.as_in_ctx(device)

    def copy(self, source, target) -> None:
        """Copy `source` into `target`, an array on another device."""
        self.count(source, target.ctx)
        source.copyto(target)

    def count(self, source, device) -> None:
        """Count `source` as sent to another device."""
        num_bytes = source.size * numpy.dtype(source.dtype).itemsize
        self.sent[source.ctx] += num_bytes
        self.received[device] += num_bytes


def star(data: list) -> Traffic:
    """Sum on the first device, the hub, and copy the sum from there.

    With k devices and N bytes per array, the hub sends (k - 1) N bytes and receives as many; each other device sends
    and receives N. Source: D2L 13.5.4, ``allreduce``.
    """
    traffic, hub = Traffic(data), data[0]
    for array in data[1:]:
        hub += traffic.send(array, hub.ctx)
    for array in data[1:]:
        traffic.copy(hub, array)
    return traffic


def ring(data: list) -> Traffic:
    """Send chunks around a ring, so that all devices send at the same time.

    The arrays are cut into k chunks. Chunk c starts on device c and moves to the next device 2 (k - 1) times. In the
    first k - 1 steps, each device adds its own part (reduce-scatter); then the chunk is the sum. In the other k - 1
    steps, each device keeps a copy (all-gather). Each device sends one chunk per step, 2 (k - 1) / k N bytes in total:
    less than 2 N with any number of devices.

    If k does not divide the number of elements, chunks are uneven, or fewer than k. Source: Patarasuk and Yuan,
    Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
    """
    traffic, k = Traffic(data), len(data)
    devices = [array.ctx for array in data]
    chunks = _chunks(data)
    for step in range(2 * (k - 1)):
        # First all devices send, then all write. Otherwise each device would wait for the one before, because MXNet
        # does not read an array while a part of it is written, and each chunk is a part of an array.
        arrived = [traffic.send(chunk[(c + step) % k], devices[(c + step + 1) % k])
                   for c, chunk in enumerate(chunks)]
        for c, (chunk, message) in enumerate(zip(chunks, arrived)):
            target = chunk[(c + step + 1) % k]
            if step < k - 1:
                target += message        # reduce-scatter
            else:
                message.copyto(target)   # all-gather
    return traffic


def tree(data: list) -> Traffic:
    """Sum along a binary tree to its root, the first device, and copy the sum down.

    Device i has the children 2 i + 1 and 2 i + 2. Each way has about log2 k levels, and the devices of a level work at
    the same time. For each neighbour (parent or child), a device sends N bytes and receives N: at most 3 N
    each way.
    """
    traffic = Traffic(data)
    for i in range(len(data) - 1, 0, -1):
        parent = data[(i - 1) // 2]
        parent += traffic.send(data[i], parent.ctx)
    for i in range(1, len(data)):
        traffic.copy(data[(i - 1) // 2], data[i])
    return traffic


def kvstore(data: list) -> Traffic:
    """Sum with MXNet's KVStore 'device', which ``gluon.Trainer`` uses.

    MXNet does not report its traffic, so it is counted as a star with the first device as the hub: ``CommDevice``
    (src/kvstore/comm.h) copies all arrays to one device, sums there, and copies the sum to each. In MXNet's profiler,
    the hub was the first of three and of four devices.
    """
    traffic, hub = Traffic(data), data[0]
    if len(data) > 1 and hub.size:
        _store(hub.shape, hub.dtype, tuple(traffic.sent), threading.get_ident()).pushpull(0, data, out=data)
    for array in data[1:]:
        traffic.count(array, hub.ctx)
        traffic.count(hub, array.ctx)
    return traffic


ALGORITHMS: dict[str, Callable] = {'star': star, 'ring': ring, 'tree': tree, 'kvstore': kvstore}


def allreduce_algorithm(algorithm: Callable | str) -> Callable:
    """Return one of `ALGORITHMS` by its name; return a function as it is."""
    if callable(algorithm):
        return algorithm
    if algorithm not in list(ALGORITHMS):
        raise ValueError(f'allreduce {algorithm!r}: must be {", ".join(ALGORITHMS)} or a function of a list of arrays')
    return ALGORITHMS[algorithm]


@lru_cache(maxsize=8)
def _store(shape: tuple, dtype, devices: tuple, thread: int):
    """Create a KVStore for one sum in a thread. Cached, because it allocates buffers and connects GPUs."""
    store = mx.kv.create('device')
    store.init(0, np.zeros(shape, dtype=dtype, ctx=devices[0]))
    return store


def _chunks(data: list) -> list:
    """Return the non-empty chunks of the arrays, as even as possible: chunks[c][i] is chunk c on device i."""
    k, n = len(data), data[0].size
    flat = [array.as_nd_ndarray().reshape(-1) for array in data]  # np.ndarray.reshape would copy
    return [[f[shard_rows(n, c, k)].as_np_ndarray() for f in flat] for c in range(min(k, n))]


def _kind(array) -> str:
    return f'{numpy.dtype(array.dtype)} {array.shape}'
