"""Allreduce algorithms that send whole arrays: few messages, much traffic."""
import threading
from functools import lru_cache

from ...mxnet_setup.compat import mx, np
from .traffic import Traffic


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
    store = mx.kv.create('device')
    store.init(0, np.zeros(shape, dtype=dtype, ctx=devices[0]))
    return store
