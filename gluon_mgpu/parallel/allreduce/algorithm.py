"""Parts of every allreduce algorithm: its traffic, counted, and its cost in a model. Imports without MXNet."""
from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy


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


class Cost(NamedTuple):
    """Cost of an allreduce in the alpha-beta model; sizes are multiples of an array.

    A message of n bytes takes alpha + beta n seconds: alpha is its latency, beta the time per byte. A device sends one
    message and receives one at a time; additions cost nothing; all pairs of devices are alike.
    """

    messages: int   # one after another, on the slowest path
    size: float     # of these messages together
    busiest: float  # sent and received by the busiest device

    def seconds(self, num_bytes: float, alpha: float, beta: float) -> float:
        """Return the time for arrays of `num_bytes`."""
        return self.messages * alpha + self.size * num_bytes * beta


@dataclass(frozen=True)
class Algorithm:
    """Function `run` on a list of arrays, as described in the package, and its `cost` on k devices."""

    cost: Callable[[int], Cost]
    run: Callable[[list], Traffic]

    def __call__(self, data: list) -> Traffic:
        return self.run(data)

    def __reduce__(self) -> tuple:
        """Let pickle store the name. It would not find `run`, whose name in its module is that of this object."""
        return pkgutil.resolve_name, (f'{self.run.__module__}:{self.run.__name__}',)


def algorithm(cost: Callable[[int], Cost]) -> Callable[[Callable], Algorithm]:
    """Decorate a function that becomes an `Algorithm` with this cost."""
    return partial(Algorithm, cost)


def _kind(array) -> str:
    return f'{numpy.dtype(array.dtype)} {array.shape}'
