"""Allreduce algorithms that send whole arrays: few messages, much traffic."""
from __future__ import annotations

import threading
from functools import lru_cache

from .algorithm import Cost, Traffic, algorithm


# The first device receives k - 1 messages, then sends k - 1
@algorithm(cost=lambda k: Cost(messages=2 * (k - 1), size=2 * (k - 1), busiest=2 * (k - 1)))
def star(data: list) -> Traffic:
    """Sum on the first device, the hub, and copy the sum from there. Source: D2L 13.5.4, ``allreduce``."""
    traffic, hub = Traffic(data), data[0]
    for array in data[1:]:
        hub += traffic.send(array, hub.ctx)
    for array in data[1:]:
        traffic.copy(hub, array)
    return traffic


def _tree_cost(k: int) -> Cost:
    """Return the cost of the slowest path from the root to a device, up and down.

    A parent serves its left child first, so the right child waits for two messages. Counted from 1, device n has the
    children 2 n and 2 n + 1: each binary digit of n after the first is a level, and each 1 among them a turn to the
    right. So device n is reached after (number of digits - 1) + (number of ones - 1) messages.
    """
    messages = 2 * max(n.bit_length() + bin(n).count('1') - 2 for n in range(1, k + 1))
    neighbours = min(3, (k + 1) // 2) if k > 1 else 0  # of the busiest: one of 2 devices, two of 3 or 4, three of more
    return Cost(messages, messages, 2 * neighbours)


@algorithm(cost=_tree_cost)
def tree(data: list) -> Traffic:
    """Sum along a binary tree to its root, the first device, and copy the sum down.

    Device i has the children 2 i + 1 and 2 i + 2. Each way has about log2 k levels, and the devices of a level work at
    the same time.
    """
    traffic = Traffic(data)
    for i in range(len(data) - 1, 0, -1):
        parent = data[(i - 1) // 2]
        parent += traffic.send(data[i], parent.ctx)
    for i in range(1, len(data)):
        traffic.copy(data[(i - 1) // 2], data[i])
    return traffic


@algorithm(cost=star.cost)
def kvstore(data: list) -> Traffic:
    """Sum with MXNet's KVStore 'device', which ``gluon.Trainer`` uses.

    MXNet does not report its traffic, so it is counted as a star: ``CommDevice`` (src/kvstore/comm.h) copies all arrays
    to one device, sums there, and copies the sum to each. In MXNet's profiler, that was the first device.
    """
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
    from ...mxnet_setup.compat import mx, np
    store = mx.kv.create('device')
    store.init(0, np.zeros(shape, dtype=dtype, ctx=devices[0]))
    return store
