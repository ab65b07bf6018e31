"""Devices that train together, and how they share a batch: shares, parts, divisor, allreduce, workers."""
from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..base.arguments import integer
from ..devices.lists import check_list, check_once, parse_devices
from .allreduce import ALGORITHMS, star
from .split import check_rows, check_shares
from .workers import ThisProcess, Workers


class Devices(list):
    """A list of devices that also says how they share the work, for the functions of both chapters.

        devices = Devices([mx.cpu(0), mx.cpu(1)], shares=[3, 1], parts=2)
        train_batch(X, y, device_params, devices, lr)

    Parameters
    ----------
    devices : iterable of mx.Context, or str
        Text is as for `parse_devices`, such as ``'gpu:0-3'``.
    batch_size : int, optional
        Divisor of the summed gradient; by default the number of rows of the batch, as in 13.5. Pass the number of rows
        of a full batch, so that each image has the same weight. Without it, images of a short last batch count more.
    shares : sequence of numbers or str, optional
        Relative speeds of the devices, such as ``[3, 1]`` or ``'3,1'``; see `split_and_load`.
    parts : int
        Train each batch in this many parts, which needs less memory; see `in_parts`.
    allreduce : callable or str, optional
        Sums a list of arrays, one per device, in place; or a name in `parallel.allreduce.ALGORITHMS`. By default, that
        of the function that uses these devices: in `scratch`, the chapter's own.
    workers : Workers, optional
        The processes that train together, whose gradients are summed as well; by default this one alone.
    """

    def __init__(self, devices: Iterable | str, batch_size: int | None = None,
                 shares: Sequence[float] | str | None = None, parts: int = 1,
                 allreduce: Callable | str | None = None, workers: Workers | None = None):
        super().__init__(parse_devices(devices) if isinstance(devices, str) else check_list(devices))
        check_once(self)
        self.batch_size = None if batch_size is None else integer('batch_size', batch_size, minimum=1)
        self.shares = None if shares is None else check_shares(shares, self)
        self.parts = integer('parts', parts, minimum=1)
        self.workers = workers or ThisProcess()
        self.algorithm = None if allreduce is None else allreduce_algorithm(allreduce)  # of this process
        # Sums a list of arrays, one per device, over these and all workers, in place; does not block
        self.allreduce = self.workers.extend_allreduce(self.algorithm or star)

    def adapted(self, allreduce: Callable, **changes: Any) -> Devices:
        """Return a copy with other attributes; `allreduce` is used if none was passed to these devices."""
        devices = copy.copy(self)
        algorithm = self.algorithm or allreduce
        vars(devices).update(changes, algorithm=algorithm)
        devices.allreduce = devices.workers.extend_allreduce(algorithm)
        return devices

    def divisor(self, X: Any) -> int:
        """Return `batch_size`; if None, the rows of `X`, but ValueError for 0 rows or several workers."""
        if self.batch_size is not None:
            return self.batch_size
        if self.workers.size > 1:
            raise ValueError('devices of several workers need a batch_size: the number of rows of all workers together')
        rows = check_rows(X)
        if rows == 0:
            raise ValueError('a batch of 0 rows: pass at least one row, or devices with a batch_size')
        return rows


def as_devices(devices: Sequence, allreduce: Callable = star) -> Devices:
    """Return a list as `Devices`; `allreduce` is used if none was passed to them."""
    if not isinstance(devices, Devices):
        return Devices(check_list(devices), allreduce=allreduce)  # text is no list here
    return devices if devices.algorithm else devices.adapted(allreduce)


def allreduce_algorithm(algorithm: Callable | str) -> Callable:
    """Return one of `ALGORITHMS` by its name; return a function as it is."""
    if callable(algorithm):
        return algorithm
    if algorithm not in list(ALGORITHMS):
        raise ValueError(f'allreduce {algorithm!r}: must be {", ".join(ALGORITHMS)} or a function of a list of arrays')
    return ALGORITHMS[algorithm]
