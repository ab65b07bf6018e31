"""Bytes that an allreduce copies between devices."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from gluon_mgpu.mxnet_setup.compat import np


def traffic(allreduce: Callable, data: list) -> tuple[Counter, Counter]:
    """Call an allreduce on a list of np.ndarray; return the bytes that each device sends and those that it receives."""
    sent: Counter = Counter()
    received: Counter = Counter()
    copyto = np.ndarray.copyto

    def counting_copyto(array, other):
        target = getattr(other, 'ctx', other)  # an array or a device
        if target != array.ctx:
            num_bytes = array.size * array.dtype.itemsize
            sent[array.ctx] += num_bytes
            received[target] += num_bytes
        return copyto(array, other)

    np.ndarray.copyto = counting_copyto
    try:
        allreduce(data)
    finally:
        np.ndarray.copyto = copyto
    return sent, received
