"""Model of a step on more devices than this machine has.

    step = max(computing / k, dispatch) + allreduce

Devices compute their shards at the same time, while one Python thread starts their work. Then the gradients are summed
in a star (`formulas.star_time`), as in the chapter and in MXNet's key-value store.
"""
from __future__ import annotations

from typing import NamedTuple

import numpy

from ..cost_model.formulas import star_time

BATCHES = (1, 4, 16)  # multiples of the measured batch size
LATENCY = 20e-6       # seconds of the shortest copy between two GPUs


class Expected(NamedTuple):
    """The parts of a step, in seconds."""

    devices: int
    rows: int         # in the batch, over all devices
    computing: float
    dispatch: float
    allreduce: float

    @property
    def step(self) -> float:
        """Total seconds."""
        return max(self.computing, self.dispatch) + self.allreduce

    @property
    def images_per_second(self) -> float:
        """Images per second on all devices together."""
        return self.rows / self.step

    @property
    def pace(self) -> str:
        """The part that takes longest: 'devices', 'Python' or 'link'."""
        parts = {'devices': self.computing, 'Python': self.dispatch, 'link': self.allreduce}
        return max(parts, key=lambda name: parts[name])


def expect(rows: int, k: int, device_rate: float, alpha: float, beta: float, dispatch: dict[int, float],
           num_bytes: float) -> Expected:
    """Return the expected parts of a step on k devices that compute `device_rate` images/s each.

    `dispatch` has the seconds that Python needs to start a step, by number of devices, and is interpolated up to
    the largest number. `num_bytes` is the size of the gradients on each device; `alpha` and `beta` are seconds per
    message and per byte on the link.
    """
    seconds = float(numpy.interp(k, sorted(dispatch), [dispatch[n] for n in sorted(dispatch)]))
    return Expected(k, rows, rows / k / device_rate, seconds, star_time(k, num_bytes, alpha, beta))
