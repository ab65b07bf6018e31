"""Four ways to give every device the sum of the arrays of all devices.

Each function takes a list of arrays, one per device, puts the sum into all of them, in place, and returns the
bytes that every device sent and received. The arrays may have any shape and dtype, the same for all. With k
devices and arrays of N bytes:

    algorithm  messages, one after the other    bytes each way, at the busiest device
    star       2 (k - 1) of N bytes             (k - 1) N, at the hub
    ring       2 (k - 1) of N / k bytes         2 (k - 1) / k N, on every device
    tree       at most 4 log2 k of N bytes      3 N
    kvstore    MXNet's own; as the star         (k - 1) N, at the hub

The sum is the same but for rounding, as each adds in an order of its own. The replicas are always equal to
the bit: each element is summed up on one device and copied from there.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy

from ..mxnet_setup.compat import mx, np


class Traffic:
    """The bytes that each device sent and received.

    Parameters
    ----------
    data : list of np.ndarray
        What is going to be summed: one array per device, of one shape and dtype.

    Attributes
    ----------
    sent, received : dict of mx.Context to int
        A number for each device, in the order of `data`.

    Raises
    ------
    ValueError
        For an empty list, arrays of different shapes or dtypes, and two arrays on one device.
    """

    def __init__(self, data: list):
        if not data:
            raise ValueError('the list of arrays is empty: give one array per device')
        devices: list = []
        for i, array in enumerate(data):
            if array.shape != data[0].shape or array.dtype != data[0].dtype:
                raise ValueError(f'array {i} is {_kind(array)} and array 0 is {_kind(data[0])}: all must have the '
                                 'same shape and dtype')
            if array.ctx in devices:
                raise ValueError(f'array {i} is on {array.ctx}, and so is array {devices.index(array.ctx)}: give '
                                 'one array per device')
            devices.append(array.ctx)
        self.sent = dict.fromkeys(devices, 0)
        self.received = dict.fromkeys(devices, 0)

    def send(self, source, device):
        """Return a copy of `source` on another device; does not wait."""
        self.count(source, device)
        return source.as_in_ctx(device)

    def copy(self, source, target) -> None:
        """Copy `source` into `target`, an array on another device; does not wait."""
        self.count(source, target.ctx)
        source.copyto(target)

    def count(self, source, device) -> None:
        """Count `source` as sent from its device to another."""
        num_bytes = source.size * numpy.dtype(source.dtype).itemsize
        self.sent[source.ctx] += num_bytes
        self.received[device] += num_bytes


def star(data: list) -> Traffic:
    """Sum on the first device, the hub, and copy the sum from there; does not wait.

    All messages pass through the hub, one after the other. With k devices and N bytes, the hub receives and
    sends (k - 1) N; each other device sends N and receives N. Source: D2L 13.5.4, ``allreduce``.

    Parameters
    ----------
    data : list of np.ndarray
        One array per device, of one shape and dtype, changed in place: afterwards each is the sum.

    Returns
    -------
    Traffic
        The bytes that each device sent and received.
    """
    traffic, hub = Traffic(data), data[0]
    for array in data[1:]:
        hub += traffic.send(array, hub.ctx)
    for array in data[1:]:
        traffic.copy(hub, array)
    return traffic


def ring(data: list) -> Traffic:
    """Send chunks around a ring, on which all devices send at the same time; does not wait.

    The arrays are cut into k chunks. Chunk c starts on device c and travels to the next device 2 (k - 1)
    times. On its first way round, every device that it comes to adds its own part (reduce-scatter): after
    k - 1 steps it is the sum. On its second way round, every device keeps it (all-gather). In each step each
    device sends one chunk and receives another. So with N bytes and chunks of N / k, each device sends and
    receives 2 (k - 1) / k N: less than 2 N, however many devices there are.

    Chunks are uneven if k does not divide the number of elements, and fewer than k if there are fewer
    elements. Device i sends all chunks but i + 1, then all but i + 2: 2 N - N[i + 1] - N[i + 2] bytes,
    counted modulo k. Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of
    workstations, 2009.

    Parameters and result as in `star`.
    """
    traffic, k = Traffic(data), len(data)
    devices = [array.ctx for array in data]
    chunks = _chunks(data)
    for step in range(2 * (k - 1)):
        # A chunk is a part of its device's array, and MXNet lets no one read an array while a part of it is
        # written. So all devices send, and only then what arrived is written: else each waits for the one before.
        arrived = [traffic.send(chunk[(c + step) % k], devices[(c + step + 1) % k])
                   for c, chunk in enumerate(chunks)]
        for c, (chunk, message) in enumerate(zip(chunks, arrived)):
            target = chunk[(c + step + 1) % k]
            if step < k - 1:
                target += message       # reduce-scatter
            else:
                message.copyto(target)  # all-gather
    return traffic


def tree(data: list) -> Traffic:
    """Sum up a binary tree to its root, the first device, and copy the sum down; does not wait.

    Device i has the children 2 i + 1 and 2 i + 2. On the way up, every device adds its children's arrays to
    its own and sends the sum to its parent; on the way down, it copies what comes from its parent to its
    children. Each way has about log2 k levels, and devices of one level work at the same time. With N bytes,
    a device sends and receives N times the number of its neighbours, which are its parent and its children: N
    at a leaf, 2 N at the root, 3 N elsewhere.

    Parameters and result as in `star`.
    """
    traffic = Traffic(data)
    for i in range(len(data) - 1, 0, -1):
        parent = data[(i - 1) // 2]
        parent += traffic.send(data[i], parent.ctx)
    for i in range(1, len(data)):
        traffic.copy(data[(i - 1) // 2], data[i])
    return traffic


def kvstore(data: list) -> Traffic:
    """Let MXNet sum: the KVStore 'device', which ``gluon.Trainer`` uses; does not wait.

    MXNet does not tell what it moves. Its source does (src/kvstore/comm.h, ``CommDevice``): all arrays are copied
    to one device, summed there in one go, and the sum is copied to each. That is a star, and counted as one,
    with the first device as the hub. (Which one MXNet takes is left to the order of a hash table; its profiler
    showed the first of three and of four.)

    Parameters and result as in `star`.
    """
    traffic, hub = Traffic(data), data[0]
    if len(data) > 1 and hub.size:
        _store(hub.shape, hub.dtype, tuple(traffic.sent)).pushpull(0, data, out=data)
    for array in data[1:]:
        traffic.count(array, hub.ctx)
        traffic.count(hub, array.ctx)
    return traffic


ALGORITHMS: dict[str, Callable] = {'star': star, 'ring': ring, 'tree': tree, 'kvstore': kvstore}


def by_name(algorithm: Callable | str) -> Callable:
    """Return one of `ALGORITHMS` by its name; a callable is returned as it is.

    Parameters
    ----------
    algorithm : callable or str
        A function of a list of arrays, or a name.

    Raises
    ------
    ValueError
        For another name.
    """
    if callable(algorithm):
        return algorithm
    if algorithm not in list(ALGORITHMS):
        raise ValueError(f'allreduce {algorithm!r}: one of {", ".join(ALGORITHMS)}, or a function of a list of '
                         'arrays, expected')
    return ALGORITHMS[algorithm]


@lru_cache(maxsize=8)
def _store(shape: tuple, dtype, devices: tuple):
    """MXNet's store of one sum. Kept, since each has buffers of its own and opens the ways between GPUs anew."""
    store = mx.kv.create('device')
    store.init(0, np.zeros(shape, dtype=dtype, ctx=devices[0]))
    return store


def _chunks(data: list) -> list:
    """Parts of the arrays, as even as possible and none of them empty: chunks[c][i] is chunk c on device i."""
    k, n = len(data), data[0].size
    flat = [array.as_nd_ndarray().reshape(-1) for array in data]  # an np.ndarray would copy to reshape
    ends = [c * (n // k) + min(c, n % k) for c in range(k + 1)]
    return [[f[a:b].as_np_ndarray() for f in flat] for a, b in zip(ends, ends[1:]) if a < b]


def _kind(array) -> str:
    return f'{numpy.dtype(array.dtype)} {array.shape}'
