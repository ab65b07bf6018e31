"""Algorithms for allreduce: give every device the sum of the arrays on all devices.

Each takes a list of arrays, one per device, with the same shape and dtype. It replaces each array by the sum, in place
and without blocking, and returns the `Traffic`. The sums of two algorithms differ by rounding, but all devices always
get the same bits, because the sum of each element is completed on one device and copied from there.
"""
import threading
from functools import lru_cache

import numpy

from ..base.text import described
from ..data.shards import shard_rows
from ..mxnet_setup.compat import mx, np


class Traffic:
    """Bytes that each device `sent` and `received`, two dicts; raises ValueError for `data` that cannot be summed."""

    def __init__(self, data: list):
        if not isinstance(data, (list, tuple)) or not all(isinstance(array, mx.nd.NDArray) for array in data):
            raise ValueError(f'{described(data)} instead of a list of MXNet arrays: give one array per device')
        if not data:
            raise ValueError('the list of arrays is empty: give one array per device')
        devices = [array.ctx for array in data]
        for i, array in enumerate(data):
            if array.shape != data[0].shape or array.dtype != data[0].dtype:
                raise ValueError(f'array {i} is {dtype_and_shape(array)} and array 0 is {dtype_and_shape(data[0])}: '
                                 'all must have the same shape and dtype')
            if array.ctx in devices[:i]:
                raise ValueError(f'array {i} is on {array.ctx}, and so is array {devices.index(array.ctx)}: give '
                                 'one array per device')
        self.sent, self.received = dict.fromkeys(devices, 0), dict.fromkeys(devices, 0)

    def send(self, source, device):
        """Return a copy of `source` on another device."""
        self.count(source, device)
        return source.copyto(device)  # also an array of mx.nd

    def copy(self, source, target) -> None:
        """Copy `source` into `target`, an array on another device."""
        self.count(source, target.ctx)
        source.copyto(target)

    def count(self, source, device) -> None:
        """Count `source` as sent to another device."""
        num_bytes = source.size * numpy.dtype(source.dtype).itemsize
        self.sent[source.ctx] += num_bytes
        self.received[device] += num_bytes


def dtype_and_shape(array) -> str:
    """Return the dtype and shape of an array or parameter as text."""
    return f'{numpy.dtype(array.dtype)} {array.shape}'


def star(data: list) -> Traffic:
    """Sum on the first device, the hub, and copy the sum from there. Source: D2L 13.5.4, ``allreduce``."""
    traffic, hub = Traffic(data), data[0]
    for array in data[1:]:
        hub += traffic.send(array, hub.ctx)
    for array in data[1:]:
        traffic.copy(hub, array)
    return traffic


def tree(data: list) -> Traffic:
    """Sum along a binary tree to its root, the first device, and copy the sum down.

    Device i has the children 2 i + 1 and 2 i + 2. The devices of each of about log2 k levels work at the same time.
    """
    traffic = Traffic(data)
    for i in range(len(data) - 1, 0, -1):
        parent = data[(i - 1) // 2]
        parent += traffic.send(data[i], parent.ctx)
    for i in range(1, len(data)):
        traffic.copy(data[(i - 1) // 2], data[i])
    return traffic


def kvstore(data: list) -> Traffic:
    """Sum with MXNet's KVStore 'device', which ``gluon.Trainer`` uses."""
    # MXNet does not report its traffic, so it is counted as a star: CommDevice (src/kvstore/comm.h) copies all arrays
    # to one device, in MXNet's profiler the first, sums there, and copies the sum to each
    traffic, hub = Traffic(data), data[0]
    if len(data) > 1 and hub.size:
        _store(hub.shape, hub.dtype, tuple(traffic.sent), threading.get_ident()).pushpull(0, data, out=data)
    for array in data[1:]:
        traffic.count(array, hub.ctx)
        traffic.count(hub, array.ctx)
    return traffic


@lru_cache(maxsize=8)
def _store(shape: tuple, dtype, devices: tuple, thread: int):
    """Create a KVStore for one sum in a thread. Cached, because it allocates buffers and connects GPUs."""
    store = mx.kv.create('device')
    store.init(0, np.zeros(shape, dtype=dtype, ctx=devices[0]))
    return store


def ring(data: list) -> Traffic:
    """Send chunks around a ring, so that all devices send at the same time.

    Of k chunks of the arrays, chunk c starts on device c and moves to the next device 2 (k - 1) times. In the first
    half, each device adds its own part (reduce-scatter), up to the sum. In the second, each keeps a copy (all-gather).
    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
    """
    traffic, k, n = Traffic(data), len(data), data[0].size
    devices = [array.ctx for array in data]
    flat = _flat(data)
    chunks = [[array[shard_rows(n, c, k)] for array in flat] for c in range(min(k, n))]  # chunks[c][i] is on device i
    for step in range(2 * (k - 1)):
        # First all devices send, then all write. Otherwise each device would wait for the one before, because MXNet
        # does not read an array while a part of it is written, and each chunk is a part of an array.
        arrived = [traffic.send(chunk[(c + step) % k], devices[(c + step + 1) % k]) for c, chunk in enumerate(chunks)]
        for c, (chunk, message) in enumerate(zip(chunks, arrived)):
            target = chunk[(c + step + 1) % k]
            if step < k - 1:
                target += message        # reduce-scatter
            else:
                message.copyto(target)   # all-gather
    return traffic


@mx.util.use_np_shape  # blocks may have no elements, also after npx.reset_np()
def halving_doubling(data: list) -> Traffic:
    """Exchange halves of the arrays between pairs of devices, then quarters of them between other pairs, and so on.

    The numbers of two partners differ in one binary digit. In each step, a device sends the half of its block (first
    the whole array) that belongs to its partner, adds what it receives to its own half, and keeps only that as its
    block (reduce-scatter). After log2 k steps, block i of k is the sum. Then the same pairs, in reverse order, exchange
    their blocks, which doubles them (all-gather). Devices beyond the largest power of two first add their array to that
    of a device below it, and get the sum from there. Source: Thakur, Rabenseifner and Gropp, Optimization of Collective
    Communication Operations in MPICH, 2005.
    """
    traffic, n = Traffic(data), data[0].size
    power = 2**(len(data).bit_length() - 1)  # of two, the largest up to k
    flat = _flat(data)
    begins = [*(shard_rows(n, c, power).start for c in range(power)), n]

    def block(device, chunk, size):
        """Return the block of `size` chunks that `chunk` belongs to, on a device."""
        first = chunk - chunk % size
        return flat[device][begins[first]:begins[first + size]]

    for extra, target in zip(data[power:], data):
        target += traffic.send(extra, target.ctx)
    sizes = [2**i for i in range(power.bit_length() - 1)]
    for size in reversed(sizes):  # reduce-scatter; as in `ring`, all devices send before they write
        arrived = [traffic.send(block(i ^ size, i, size), data[i].ctx) for i in range(power)]
        for i, message in enumerate(arrived):
            target = block(i, i, size)
            target += message
    for size in sizes:            # all-gather
        arrived = [traffic.send(block(i ^ size, i ^ size, size), data[i].ctx) for i in range(power)]
        for i, message in enumerate(arrived):
            message.copyto(block(i, i ^ size, size))
    for extra, source in zip(data[power:], data):
        traffic.copy(source, extra)
    return traffic


def _flat(data: list) -> list:
    """Return each array as one dimension, without copying it, as np.ndarray.reshape would."""
    return [array.as_nd_ndarray().reshape(-1).as_np_ndarray() for array in data]


ALGORITHMS = {'star': star, 'ring': ring, 'tree': tree, 'halving-doubling': halving_doubling, 'kvstore': kvstore}
