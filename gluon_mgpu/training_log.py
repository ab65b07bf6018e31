"""What a training run tells: its loss, speed and accuracy, a progress bar, the record kept."""
from __future__ import annotations

import csv
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy
from tqdm import tqdm

# Losses are read so many seconds apart, or so many batches: each time, Python wakes up between busy cores
SECONDS_BETWEEN_READS, MOST_UNREAD = 0.25, 16


class DivergenceError(ValueError):
    """The loss is no longer a number: what follows would be worthless."""


class Epoch(NamedTuple):
    """One line of a run's history."""

    epoch: int  # from 1
    seconds: float  # of training, without evaluation
    loss: float  # mean over the rows, each taken before the update it led to
    test_acc: float  # share of right predictions, 0 to 1
    images_per_second: float  # in training


class TrainingLog:
    """The record of a run: shows progress while it goes on and keeps one `Epoch` an epoch.

    Parameters
    ----------
    num_epochs : int
        Epochs that the run is going to take, for the time left.
    quiet : bool
        Show nothing, only keep the record.
    path : path-like, optional
        A CSV file, written anew after every epoch.
    """

    def __init__(self, num_epochs: int, quiet: bool = False, path=None):
        self.num_epochs = num_epochs
        self.quiet = quiet
        self.path = path and Path(path)
        self.history: list[Epoch] = []
        self._bar = None

    def progress(self, train_iter: Iterable) -> Iterator:
        """Yield the batches (X, y) of one epoch and show how far the run has come.

        The bar counts batches that the devices have finished, and tells the time left for the
        whole run. It appears on a terminal only.
        """
        if self._bar is None:
            self._bar = tqdm(total=self.num_epochs * len(train_iter), unit='batch', leave=False, smoothing=0.05,
                             disable=True if self.quiet else None, dynamic_ncols=True)
        self._bar.set_description(f'epoch {len(self.history) + 1}/{self.num_epochs}', refresh=False)
        self._loss, self._rows, self._unread = 0.0, 0, []
        self._batches_a_read = 1
        self._started = self._read_at = time.perf_counter()
        yield from train_iter

    def add(self, ls: list) -> None:
        """Take the losses of the batch just started, one array (n,) a device.

        Some four times a second, and at every 16th batch at the latest, it waits for the batches before
        this one, to read their losses; otherwise it doesn't wait. So the devices always have work.

        Raises
        ------
        DivergenceError
            If one of the losses read is NaN or infinite.
        """
        self._unread.append(ls)
        if len(self._unread) > self._batches_a_read:
            self._read(self._batches_a_read)

    def _read(self, count: int) -> None:
        """Wait for the first `count` of the batches that have not been read, and count them."""
        batches, self._unread = self._unread[:count], self._unread[count:]
        # The last one first, so that it is waited for once, and Python wakes up once
        batches = [[l.asnumpy() for l in ls] for ls in batches[::-1]][::-1]
        losses = numpy.concatenate([numpy.empty(0), *(l for ls in batches for l in ls)])  # in float64
        if not numpy.isfinite(losses).all():
            self._refuse(batches)
        self._loss += losses.sum()
        self._rows += len(losses)
        now = time.perf_counter()
        if not self._bar.disable and batches:
            loss, speed = numpy.concatenate(batches[-1]).mean(), self._rows / (now - self._started)
            self._bar.set_postfix_str(f'loss {loss:.3f}, {speed:,.0f} images/s', refresh=False)
        self._bar.update(count)
        seconds_a_batch = (now - self._read_at) / max(count, 1)
        self._read_at = now
        self._batches_a_read = min(MOST_UNREAD, int(SECONDS_BETWEEN_READS / max(seconds_a_batch, 1e-6)) or 1)

    def _refuse(self, batches: list) -> None:
        """End the run at the first batch whose loss is no number."""
        self.close()
        sums = [numpy.concatenate(ls).sum() for ls in batches]
        first = next(i for i, loss in enumerate(sums) if not numpy.isfinite(loss))
        rows = self._rows + sum(len(l) for ls in batches[:first] for l in ls)
        raise DivergenceError(
            f'the loss is {sums[first]} in epoch {len(self.history) + 1}, after {rows} rows: it must be finite; '
            'use a smaller learning rate')

    def end_epoch(self, seconds: float, test_acc: float) -> Epoch:
        """Record the epoch whose batches have all been trained on: show a line, write the file.

        Parameters
        ----------
        seconds : float
            Time that training took.
        test_acc : float
            Accuracy on the test rows, 0 to 1.
        """
        self._read(len(self._unread))
        epoch = Epoch(len(self.history) + 1, seconds, self._loss / self._rows, test_acc, self._rows / seconds)
        self.history.append(epoch)
        if self.path:
            self.write(self.path)
        if not self.quiet:
            with tqdm.external_write_mode():
                print(f'epoch {epoch.epoch}/{self.num_epochs}: loss {epoch.loss:.3f}, test acc {test_acc:.3f}, '
                      f'{seconds:.1f} s, {epoch.images_per_second:,.0f} images/s', flush=True)
        if epoch.epoch == self.num_epochs:
            self.close()
        return epoch

    def write(self, path) -> None:
        """Write the history as CSV, with the field names of `Epoch` as its first line.

        The file is whole at any time: an interrupted call leaves the one before.
        """
        unfinished = f'{path}.part'
        with open(unfinished, 'w', newline='') as file:
            writer = csv.writer(file)
            writer.writerow(Epoch._fields)
            writer.writerows((e.epoch, f'{e.seconds:.3f}', f'{e.loss:.6f}', f'{e.test_acc:.4f}',
                              f'{e.images_per_second:.1f}') for e in self.history)
        os.replace(unfinished, path)

    def close(self) -> None:
        """Take the progress bar off the screen."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
