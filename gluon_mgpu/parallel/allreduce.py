"""Other algorithms for allreduce than that of `scratch`: give every device the sum of the arrays on all devices.

Each takes a list of arrays, one per device, with the same shape and dtype, and replaces each array by the sum, in place
and without blocking. The sums of two algorithms differ by rounding, but all devices always get the same bits, because
the sum of each element is completed on one device and copied from there.
"""
import threading
from functools import lru_cache

from ..data.shards import shard_rows
from ..mxnet_setup.compat import mx, np


def tree(data: list) -> None:
    """Sum along a binary tree to its root, the first device, and copy the sum down.

    Device i has the children 2 i + 1 and 2 i + 2. The devices of each of about log2 k levels work at the same time.
    """
    for i in range(len(data) - 1, 0, -1):
        parent = data[(i - 1) // 2]
        parent += data[i].copyto(parent.ctx)
    for i in range(1, len(data)):
        data[(i - 1) // 2].copyto(data[i])


def kvstore(data: list) -> None:
    """Sum with MXNet's KVStore 'device', which ``gluon.Trainer`` uses."""
    if len(data) > 1 and data[0].size:
        devices = tuple(array.ctx for array in data)
        _store(data[0].shape, data[0].dtype, devices, threading.get_ident()).pushpull(0, data, out=data)


@lru_cache(maxsize=8)
def _store(shape: tuple, dtype, devices: tuple, thread: int):
    """Create a KVStore for one sum in a thread. Cached, because it allocates buffers and connects GPUs."""
    store = mx.kv.create('device')
    store.init(0, np.zeros(shape, dtype=dtype, ctx=devices[0]))
    return store


def ring(data: list) -> None:
    """Send chunks around a ring, so that all devices send at the same time.

    Of k chunks of the arrays, chunk c starts on device c and moves to the next device 2 (k - 1) times. In the first
    half, each device adds its own part (reduce-scatter), up to the sum. In the second, each keeps a copy (all-gather).
    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
    """
    k, n, flat = len(data), data[0].size, _flat(data)
    chunks = [[array[shard_rows(n, c, k)] for array in flat] for c in range(min(k, n))]  # chunks[c][i] is on device i
    for step in range(2 * (k - 1)):
        # First all devices send, then all write. Otherwise each device would wait for the one before, because MXNet
        # does not read an array while a part of it is written, and each chunk is a part of an array.
        arrived = [chunk[(c + step) % k].copyto(data[(c + step + 1) % k].ctx) for c, chunk in enumerate(chunks)]
        for c, (chunk, message) in enumerate(zip(chunks, arrived)):
            target = chunk[(c + step + 1) % k]
            if step < k - 1:
                target += message        # reduce-scatter
            else:
                message.copyto(target)   # all-gather


@mx.util.use_np_shape  # blocks may have no elements, also after npx.reset_np()
def halving_doubling(data: list) -> None:
    """Exchange halves of the arrays between pairs of devices, then quarters of them between other pairs, and so on.

    The numbers of two partners differ in one binary digit. In each step, a device sends the half of its block (first
    the whole array) that belongs to its partner, adds what it receives to its own half, and keeps only that as its
    block (reduce-scatter). After log2 k steps, block i of k is the sum. Then the same pairs, in reverse order, exchange
    their blocks, which doubles them (all-gather). Devices beyond the largest power of two first add their array to that
    of a device below it, and get the sum from there. Source: Thakur, Rabenseifner and Gropp, Optimization of Collective
    Communication Operations in MPICH, 2005.
    """
    n, flat = data[0].size, _flat(data)
    power = 2**(len(data).bit_length() - 1)  # of two, the largest up to k
    begins = [*(shard_rows(n, c, power).start for c in range(power)), n]

    def block(device, chunk, size):
        """Return the block of `size` chunks that `chunk` belongs to, on a device."""
        first = chunk - chunk % size
        return flat[device][begins[first]:begins[first + size]]

    for extra, target in zip(data[power:], data):
        target += extra.copyto(target.ctx)
    sizes = [2**i for i in range(power.bit_length() - 1)]
    for size in reversed(sizes):  # reduce-scatter; as in `ring`, all devices send before they write
        arrived = [block(i ^ size, i, size).copyto(data[i].ctx) for i in range(power)]
        for i, message in enumerate(arrived):
            target = block(i, i, size)
            target += message
    for size in sizes:            # all-gather
        arrived = [block(i ^ size, i ^ size, size).copyto(data[i].ctx) for i in range(power)]
        for i, message in enumerate(arrived):
            message.copyto(block(i, i ^ size, size))
    for extra, source in zip(data[power:], data):
        source.copyto(extra)


def _flat(data: list) -> list:
    """Return each array as one dimension, without copying it, as np.ndarray.reshape would."""
    return [array.as_nd_ndarray().reshape(-1).as_np_ndarray() for array in data]


ALGORITHMS = {'ring': ring, 'tree': tree, 'halving-doubling': halving_doubling, 'kvstore': kvstore}
