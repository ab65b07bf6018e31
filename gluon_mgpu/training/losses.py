"""The losses of an epoch, summed up as the devices compute them, without keeping the devices waiting."""
from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

import numpy

from ..base.program import BAD_INPUT, JobError
from ..distributed.workers import Workers

# Losses are read so many seconds apart, or so many batches: each time, Python wakes up between busy cores
SECONDS_BETWEEN_READS, MOST_UNREAD = 0.25, 16


class DivergenceError(JobError, ValueError):
    """The loss or a parameter is NaN or infinite. All workers raise it after the same batch."""

    def __init__(self, line: str):
        super().__init__(line, BAD_INPUT, on_all_ranks=True)


class Losses:
    """Takes the losses of each batch, and reads them some batches later.

    Parameters
    ----------
    epoch : int
        Its number, for messages.
    total, rows, num_batches : float, int, int
        What has been read before, of an epoch that goes on.
    workers : Workers, optional
        Whose losses they are; by default of this process alone. Several tell each other what they have read, and count
        it when they read the next time: so none waits for another.

    Attributes
    ----------
    total : float
        The sum over all rows that have been read, in nats: batch by batch, whenever they were read.
    rows, num_batches : int
        How many rows and batches these are.
    last : float
        The mean of the batch that was read last.
    """

    def __init__(self, epoch: int, total: float = 0.0, rows: int = 0, num_batches: int = 0,
                 workers: Workers | None = None):
        self.epoch, self.total, self.rows, self.num_batches = epoch, total, rows, num_batches
        self.last = numpy.nan
        self._workers = workers or Workers()
        self._unread: list[list] = []
        self._told: deque[tuple[int, Callable]] = deque()  # of how many batches, and what returns their losses
        self._batches_per_read = 1
        self._read_at = time.perf_counter()

    def add(self, ls: list) -> int:
        """Take the losses of the batch just started; see `Run.record_losses`.

        Parameters
        ----------
        ls : list of np.ndarray, (n,)
            One array per device.

        Returns
        -------
        int
            How many earlier batches have been waited for and read.
        """
        self._unread.append(ls)
        return self.read(self._batches_per_read) if len(self._unread) > self._batches_per_read else 0

    def read(self, count: int | None = None) -> int:
        """Wait for the first `count` of the batches that have not been read, by default all, and count them.

        Returns
        -------
        int
            How many have been counted.

        Raises
        ------
        DivergenceError
            If a loss is NaN or infinite.
        """
        batches = self._unread[:count]
        del self._unread[:count]
        if batches:
            # The last one first, so that it is waited for once, and Python wakes up once
            own = [number for ls in batches[::-1] for number in _sum([l.asnumpy() for l in ls])[::-1]][::-1]
            self._told.append((len(batches), self._workers.allgather_async([self._next_read(len(batches)), *own])))
        counted = 0
        while len(self._told) > (0 if count is None else self._workers.lag):
            length, told = self._told.popleft()
            self._count(told(), length)
            counted += length
        return counted

    def _next_read(self, count: int) -> int:
        """How many batches to read the next time, if reading these has taken as long as it has."""
        now = time.perf_counter()
        seconds_per_batch = (now - self._read_at) / count
        self._read_at = now
        return min(MOST_UNREAD, int(SECONDS_BETWEEN_READS / max(seconds_per_batch, 1e-6)) or 1)

    def _count(self, told: list, length: int) -> None:
        """Count the losses of so many batches, as each worker has told them."""
        self._batches_per_read = int(told[0][0])  # all read the same batches: the first worker decides how many
        for i in range(1, 2 * length, 2):
            loss, rows = sum(float(numbers[i]) for numbers in told), sum(int(numbers[i + 1]) for numbers in told)
            if not math.isfinite(loss):
                raise DivergenceError(f'the loss is {loss} in epoch {self.epoch}, batch {self.num_batches + 1}, after '
                                      f'{self.rows} rows: it must be finite; use a smaller learning rate')
            self.total += loss
            self.rows += rows
            self.num_batches += 1
            self.last = loss / max(rows, 1)  # a loop of one's own may add a batch without rows


def _sum(arrays: list) -> tuple[float, int]:
    """The sum of the losses of a batch, and how many they are."""
    losses = numpy.concatenate([numpy.empty(0), *arrays])  # in float64
    return float(losses.sum()), len(losses)
