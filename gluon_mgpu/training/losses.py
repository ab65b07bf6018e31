"""The losses of an epoch, summed up as the devices compute them, without keeping the devices waiting."""
from __future__ import annotations

import time

import numpy

# Losses are read so many seconds apart, or so many batches: each time, Python wakes up between busy cores
SECONDS_BETWEEN_READS, MOST_UNREAD = 0.25, 16


class DivergenceError(ValueError):
    """The loss or a parameter is no longer a number: what follows would be worthless."""

    agreed = True  # by all workers of a job: they see it after the same batch


class Losses:
    """Takes the losses of each batch, and reads them some batches later.

    Parameters
    ----------
    epoch : int
        Its number, for messages.
    total, rows, num_batches : float, int, int
        What has been read before, of an epoch that goes on.
    lag : int, optional
        Read each batch when so many others have been started, and not by the clock: all workers the same ones.

    Attributes
    ----------
    total : float
        The sum over all rows that have been read, in nats: batch by batch, whenever they were read.
    rows, num_batches : int
        How many rows and batches these are.
    last : float
        The mean of the batch that was read last.
    """

    def __init__(self, epoch: int, total: float = 0.0, rows: int = 0, num_batches: int = 0, lag: int | None = None):
        self.epoch, self.total, self.rows, self.num_batches = epoch, total, rows, num_batches
        self.last = numpy.nan
        self._lag = lag
        self._unread: list[tuple[list, int | None]] = []
        self._batches_per_read = 1
        self._read_at = time.perf_counter()

    def add(self, ls: list, rows: int | None = None) -> int:
        """Take the losses of the batch just started, one array (n,) per device; see `Run.add`.

        Parameters
        ----------
        ls : list of np.ndarray
            The losses, or sums of losses.
        rows : int, optional
            How many there are, if they are sums.

        Returns
        -------
        int
            How many earlier batches have been waited for and read.
        """
        self._unread.append((ls, rows))
        if self._lag is not None:
            return self.read(len(self._unread) - self._lag) if len(self._unread) > self._lag else 0
        return self.read(self._batches_per_read) if len(self._unread) > self._batches_per_read else 0

    def read(self, count: int | None = None) -> int:
        """Wait for the first `count` of the batches that have not been read, by default all, and count them.

        Returns
        -------
        int
            How many there were.

        Raises
        ------
        DivergenceError
            If a loss is NaN or infinite.
        """
        batches = self._unread[:count]
        del self._unread[:count]
        # The last one first, so that it is waited for once, and Python wakes up once
        read = [([l.asnumpy() for l in ls], rows) for ls, rows in batches[::-1]][::-1]
        for arrays, rows in read:
            losses = numpy.concatenate([numpy.empty(0), *arrays])  # in float64
            rows = len(losses) if rows is None else rows
            if not numpy.isfinite(losses).all():
                raise DivergenceError(f'the loss is {losses.sum()} in epoch {self.epoch}, batch '
                                      f'{self.num_batches + 1}, after {self.rows} rows: it must be finite; use a '
                                      'smaller learning rate')
            self.total += float(losses.sum())
            self.rows += rows
            self.num_batches += 1
            self.last = losses.sum() / max(rows, 1)
        now = time.perf_counter()
        seconds_per_batch = (now - self._read_at) / max(len(batches), 1)
        self._read_at = now
        self._batches_per_read = min(MOST_UNREAD, int(SECONDS_BETWEEN_READS / max(seconds_per_batch, 1e-6)) or 1)
        return len(batches)
