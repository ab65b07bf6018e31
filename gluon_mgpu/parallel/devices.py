"""Devices that train together, with everything that does not change the result of a step."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..base.checks import integer
from ..devices.lists import parse_devices
from .allreduce import allreduce_algorithm, star
from .split import check_shares


class Devices(list):
    """A list of devices that also says how they share the work, for the functions of both chapters.

        devices = Devices([mx.cpu(0), mx.cpu(1)], shares=[3, 1], parts=2)
        train_batch(X, y, device_params, devices, lr)

    Parameters
    ----------
    devices : iterable of mx.Context, or str
        Text is as for `parse_devices`, such as ``'gpu:0-3'``.
    batch_size : int, optional
        Divisor of the summed gradient; by default the number of rows of the batch, as in the book. With the rows of a
        full batch, each image has the same weight in an epoch; otherwise those of a short last batch count more.
    shares : sequence of numbers or str, optional
        Relative speeds of the devices, such as ``[3, 1]`` or ``'3,1'``; see `split_and_load`.
    parts : int
        Train each batch in this many parts, which needs less memory; see `in_parts`.
    allreduce : callable or str
        Sums a list of arrays, one per device, in place; or a name in `parallel.allreduce.ALGORITHMS`.
    workers : Workers, optional
        The processes that train together, whose gradients are summed as well; by default this one alone.
    """

    def __init__(self, devices: Iterable | str, batch_size: int | None = None,
                 shares: Sequence[float] | str | None = None, parts: int = 1,
                 allreduce: Callable | str = star, workers: Any = None):
        super().__init__(parse_devices(devices) if isinstance(devices, str) else devices)
        self.batch_size = None if batch_size is None else integer('batch_size', batch_size, minimum=1)
        self.shares = None if shares is None else check_shares(shares, self)
        self.parts = integer('parts', parts, minimum=1)
        self.workers = workers
        self.algorithm = allreduce_algorithm(allreduce)
        self.allreduce = workers.extend_allreduce(self.algorithm) if workers else self.algorithm

    def divisor(self, X: Any) -> int:
        """Return `batch_size`, or the number of rows of `X`; raise ValueError if it is 0."""
        return self.batch_size or integer('batch_size', len(X), minimum=1)


def as_devices(devices: Sequence, allreduce: Callable = star) -> Devices:
    """Return `Devices` as they are; give a plain list of devices equal shares, one part and this allreduce."""
    return devices if isinstance(devices, Devices) else Devices(devices, allreduce=allreduce)
