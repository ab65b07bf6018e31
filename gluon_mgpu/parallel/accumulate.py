"""Gradient accumulation: train a batch in parts, which needs the memory of one part, and update once."""
from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ..data.shards import shard_rows
from . import replicas
from .devices import as_devices
from .split import check_rows


def in_parts(backward: Callable) -> Callable:
    """Decorate a function that computes gradients on all devices, so that it trains a batch in `Devices.parts` parts.

        @in_parts
        def backward(X, y, net, devices, loss):    # any further arguments
            ...                                    # forward and backward on each device
            return ls

    `net` is a Gluon network, or a list of parameters for each device. The decorated function returns the losses of all
    parts. Afterwards the gradients on each device are the sums over its rows of all parts: zero on a device without
    rows. Every backward pass must overwrite the gradients (``grad_req='write'``), and use every parameter.

    The rows are cut as evenly as possible, and into fewer parts if some device would get no rows. With several workers,
    there are always as many parts, some possibly without rows, because all workers take part in the exchanges of each.
    """
    @wraps(backward)
    def of_all_parts(X: Any, y: Any, net: Any, devices: list, *args: Any) -> list:
        check_rows(X, y)
        devices = as_devices(devices)
        num_parts = devices.parts
        if devices.workers.size == 1:
            num_parts = min(num_parts, len(y) // len(devices))
        rows = [shard_rows(len(y), part, num_parts) for part in range(num_parts)]
        ls: list = []
        for X_part, y_part in [(X[at], y[at]) for at in rows] if num_parts > 1 else [(X, y)]:
            # g <- (gradient of this part) + (sum over the parts before)
            sums = [g.copy() for g in replicas.gradients(net, devices)] if ls else []
            ls += backward(X_part, y_part, net, devices, *args)
            replicas.prepare_idle_devices(net, X_part, devices)
            for g, so_far in zip(replicas.gradients(net, devices) if sums else (), sums):
                g += so_far
        return ls
    return of_all_parts
