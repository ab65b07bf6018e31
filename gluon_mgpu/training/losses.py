"""Accumulate losses without blocking the devices."""
from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

import numpy

from ..base.program import BAD_INPUT, JobError
from ..distributed.workers import Workers

# Losses are read this often, or after this many batches: each read wakes up Python while the cores are busy
SECONDS_BETWEEN_READS, MAX_UNREAD = 0.25, 16


class DivergenceError(JobError, ValueError):
    """The loss or a parameter is NaN or infinite. All workers raise it after the same batch."""

    def __init__(self, line: str):
        super().__init__(line, BAD_INPUT, on_all_ranks=True)


class Losses:
    """The losses of one epoch, read from the devices some batches after they were queued.

    Several workers exchange the losses that they have read, and add them up at the next read, so that none waits for
    another.

    Attributes
    ----------
    total : float
        Sum over all rows read so far, in nats, added up batch by batch.
    rows, num_batches : int
        Rows and batches read so far.
    last : float
        Mean loss of the last batch read.
    """

    def __init__(self, epoch: int, workers: Workers, total: float = 0.0, rows: int = 0, num_batches: int = 0):
        self.total, self.rows, self.num_batches, self.last = total, rows, num_batches, math.nan
        self._epoch, self._workers = epoch, workers
        self._unread: list[list] = []
        self._exchanges: deque[tuple[int, Callable]] = deque()  # (number of batches, function that returns the losses)
        self._batches_per_read = 1
        self._read_at = time.perf_counter()

    def add(self, ls: list) -> int:
        """Queue the losses of a batch, one array (n,) per device, and return how many batches were counted.

        Blocks only when it is time to read the batches before this one. Raises ValueError for arrays of other shapes.
        """
        ls = list(ls)
        shapes = {str(l.shape): None for l in ls if l.ndim != 1}
        if shapes:
            raise ValueError('record_losses needs a list of arrays (n,), the loss of each row, not arrays of shape '
                             f'{", ".join(shapes)}: do not take the mean or the sum')
        self._unread.append(ls)
        return self.read(self._batches_per_read) if len(self._unread) > self._batches_per_read else 0

    def read(self, num_batches: int | None = None) -> int:
        """Wait for the first `num_batches` unread batches, by default all, and return how many were counted."""
        batches = self._unread[:num_batches]
        del self._unread[:num_batches]
        if batches:
            for l in batches[-1]:
                l.wait_to_read()  # the newest batch first: then the others are ready as well, and Python waits once
            sums = [number for ls in batches for number in _sum_and_rows(ls)]  # loss, rows, loss, rows, ...
            gathered = self._workers.allgather_async([self._next_read_size(len(batches)), *sums])
            self._exchanges.append((len(batches), gathered))
        counted = 0
        while len(self._exchanges) > (0 if num_batches is None else self._workers.exchanges_in_flight):
            size, gathered = self._exchanges.popleft()
            self._count(gathered(), size)
            counted += size
        return counted

    def _next_read_size(self, num_batches: int) -> int:
        """Choose the next read size from how long the last read took."""
        now = time.perf_counter()
        seconds_per_batch = (now - self._read_at) / num_batches
        self._read_at = now
        return min(MAX_UNREAD, int(SECONDS_BETWEEN_READS / max(seconds_per_batch, 1e-6)) or 1)

    def _count(self, gathered: list, num_batches: int) -> None:
        """Add up the numbers that each worker has sent for the same batches."""
        self._batches_per_read = int(gathered[0][0])  # rank 0 decides, so that all workers read the same batches
        sums = numpy.array(gathered)[:, 1:1 + 2 * num_batches].reshape(-1, num_batches, 2).sum(axis=0)
        for loss, rows in sums.tolist():
            self.num_batches += 1
            if not math.isfinite(loss):
                raise DivergenceError(f'the loss is {loss} in epoch {self._epoch}, batch {self.num_batches}: use a '
                                      'smaller learning rate')
            self.total += loss
            self.rows += int(rows)
            self.last = loss / max(rows, 1)  # a batch may have no rows


def _sum_and_rows(ls: list) -> tuple[float, int]:
    losses = numpy.concatenate([numpy.empty(0), *(l.asnumpy() for l in ls)])  # float64
    return float(losses.sum()), len(losses)
