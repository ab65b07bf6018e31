"""What a step would take on more devices than are here, and what would set its pace: a model of three numbers.

    step = max(computing / k, dispatch) + allreduce

Devices compute at the same time, each its part of the batch, while one Python thread starts their work; then the
gradients are summed, by `formulas.star_time`, as the chapter and MXNet's key-value store do.
"""
from __future__ import annotations

from typing import NamedTuple

import numpy

from ..cost_model.formulas import star_time

BATCHES = (1, 4, 16)  # times the batch that is measured
LATENCY = 20e-6       # seconds: a copy between two GPUs, however short


class Expected(NamedTuple):
    """The parts of a step, in seconds."""

    devices: int
    rows: int         # in the batch, over all devices
    computing: float  # on each device
    dispatch: float
    allreduce: float

    @property
    def step(self) -> float:
        """Seconds in all."""
        return max(self.computing, self.dispatch) + self.allreduce

    @property
    def images_per_second(self) -> float:
        """Of all devices."""
        return self.rows / self.step

    @property
    def pace(self) -> str:
        """What takes longest: 'devices', 'Python' or 'link'."""
        parts = {'devices': self.computing, 'Python': self.dispatch, 'link': self.allreduce}
        return max(parts, key=lambda name: parts[name])


def expect(rows: int, k: int, device_rate: float, dispatch: dict[int, float], num_bytes: float,
           alpha: float, beta: float) -> Expected:
    """Return what a step takes by the model.

    Parameters
    ----------
    rows : int
        In the batch, over all devices.
    k : int
        Devices.
    device_rate : float
        Images per second that one of them computes.
    dispatch : dict of int to float
        The seconds that Python's thread needs to start a step, by numbers of devices; in between, a straight line.
    num_bytes : float
        Of the gradients on each device.
    alpha, beta : float
        Of the link: seconds per message, and per byte.
    """
    seconds = float(numpy.interp(k, sorted(dispatch), [dispatch[n] for n in sorted(dispatch)]))
    return Expected(k, rows, rows / k / device_rate, seconds, star_time(k, num_bytes, alpha, beta))
