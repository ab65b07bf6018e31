"""The epoch that a run is in: its batches, its losses and its clock."""
from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import length_hint
from typing import Any

import numpy

from ..base.arguments import at_least_0, check_entries
from ..base.program import BAD_INPUT, InputError, JobError
from ..base.progress import Progress
from ..base.text import counted
from ..mxnet_setup.compat import npx
from ..parallel.workers import Workers
from .history import EpochResult, checked_history

# Losses are read this often, or after this many batches: each read wakes up Python while the cores are busy
SECONDS_BETWEEN_READS, MAX_UNREAD = 0.25, 16
NOT_BEGUN = {'num_batches': 0, 'epoch_length': 0, 'loss': 0.0, 'rows': 0, 'seconds': 0.0}
STATE = {'history': list, 'num_steps': int, **{name: type(value) for name, value in NOT_BEGUN.items()}}


class DivergenceError(JobError, ValueError):
    """The loss or a parameter is NaN or infinite. All workers raise it after the same batch."""

    def __init__(self, line: str):
        super().__init__(line, BAD_INPUT, on_all_ranks=True)


class _CurrentEpoch:
    """The current epoch of a run: new, or continued from the `state` of an interrupted one.

    `number` counts from 1. `num_batches` of `length` (0: unknown) were queued, and the devices trained for `seconds`,
    both also before the interruption. `training` is True from `begin` until they have finished the last batch.
    """

    def __init__(self, number: int, workers: Workers, progress: Progress, state: dict = NOT_BEGUN):
        self.number, self._workers, self._progress = number, workers, progress
        self.num_batches = self._num_counted = state['num_batches']
        self.length, self.seconds = state['epoch_length'], state['seconds']
        self._loss, self._rows = state['loss'], state['rows']  # sum over the rows read, in nats
        self.training = self._begun = False
        self._unread: list[list] = []
        self._num_arrays = self._num_losses = 0  # recorded in this process
        self._batches_per_read = 1
        self._read_at = time.perf_counter()

    def begin(self, train_iter: Iterable, num_epochs: int) -> Iterator:
        """Check `train_iter`, set its attribute ``epoch``, if any, start the clock, and return the batches to train on.

        The run has `num_epochs`.
        """
        length = length_hint(train_iter)
        if self._begun:
            raise ValueError(f'the batches of epoch {self.number} were already read: call end_epoch(accuracy) first, '
                             'or join several datasets in one iterable')
        if self.num_batches and self.length and length not in (0, self.length):
            raise ValueError(f'the run was stopped in an epoch of {counted(self.length, "batch")}, and train_iter has '
                             f'{length}: resume with the same batch size and data')
        if self._workers.size > 1 and getattr(train_iter, 'shard', None) != self._workers.shard:
            raise ValueError(f"rank {self._workers.rank}: train_iter is not marked as this worker's shard: load the "
                             'data with shard=workers.shard, or set train_iter.shard = workers.shard')
        lengths = self._workers.allgather(length)
        if 0 not in lengths and len(set(lengths)) > 1:
            raise InputError(f'train_iter has {lengths} batches on the workers: must be equal, even without rows')
        if hasattr(train_iter, 'epoch'):
            train_iter.epoch = self.number - 1
        self._progress.begin_epoch(f'epoch {self.number}/{num_epochs}', self.num_batches, length)
        self.training, self._begun, self.length = True, True, length
        batches = iter(train_iter)
        deque(islice(batches, self.num_batches), maxlen=0)  # skip those trained before the interruption
        self._started = time.perf_counter() - self.seconds  # as if it had not been interrupted
        return batches

    def record_losses(self, ls: list) -> None:
        """Keep the losses of a batch, and now and then read those of the batches before."""
        ls = list(ls) if isinstance(ls, Iterable) else [ls]
        for l in ls:
            if not hasattr(l, 'wait_to_read') or l.ndim != 1:
                found = f'an array {l.shape}' if hasattr(l, 'shape') else type(l).__name__
                raise ValueError(f'record_losses needs a list of MXNet arrays (n,), the loss of each row, not {found}: '
                                 'do not take the mean or the sum')
        if not self.training:
            raise ValueError('record_losses was called outside run.batches: write "for X, y in '
                             'run.batches(train_iter)"')
        self._unread.append(ls)
        self._num_arrays += len(ls)
        self._num_losses += sum(l.size for l in ls)
        if len(self._unread) > self._batches_per_read:
            self._read(self._batches_per_read)

    def check_losses(self, batch: Any) -> None:
        """Raise ValueError if the losses of the first batch, a pair (X, y), are means of its shards."""
        is_pair = isinstance(batch, (list, tuple)) and len(batch) == 2
        num_rows = (getattr(batch[1], 'shape', ()) or (0,))[0] if is_pair else 0
        if 0 < self._num_losses == self._num_arrays < num_rows:
            raise ValueError(f'the losses have {counted(self._num_losses, "value")} for {counted(num_rows, "row")}: '
                             'record one for each row, because the mean of a shard depends on the number of devices')

    def synchronize(self) -> None:
        """Wait for the devices, stop the clock and read all losses."""
        if self.training:
            with self._workers.time_limit('the sums of the gradients'):
                npx.waitall()
            self.seconds = time.perf_counter() - self._started
            self._read()

    def _read(self, num_batches: int | None = None) -> None:
        """Read the losses of the first `num_batches` unread batches, or all, and add them up over the workers."""
        batches = self._unread[:num_batches]
        del self._unread[:num_batches]
        if not batches:
            return
        with self._workers.time_limit('the sums of the gradients'):
            for l in batches[-1]:
                l.wait_to_read()  # the newest batch first: then the others are ready as well, and Python waits once
        losses = [numpy.concatenate([numpy.empty(0), *(l.asnumpy() for l in ls)]) for ls in batches]  # float64
        sums = numpy.array([(l.sum(), len(l)) for l in losses])  # loss and rows of each batch
        self._batches_per_read = self._next_read_size(len(batches))
        if self._workers.size > 1:
            gathered = self._workers.allgather((sums, self._batches_per_read), 'an exchange of losses')
            sums = sum(of_worker for of_worker, _ in gathered)
            self._batches_per_read = gathered[0][1]  # that of rank 0, so that all read the same batches
        self._count(sums.tolist())

    def _next_read_size(self, num_batches: int) -> int:
        """Return how many batches to read next, about `SECONDS_BETWEEN_READS` from now."""
        now = time.perf_counter()
        seconds_per_batch = (now - self._read_at) / num_batches
        self._read_at = now
        return min(MAX_UNREAD, int(SECONDS_BETWEEN_READS / max(seconds_per_batch, 1e-6)) or 1)

    def _count(self, sums: list) -> None:
        """Add up the loss and rows of batches, and show progress."""
        for loss, rows in sums:
            self._num_counted += 1
            if not math.isfinite(loss):
                raise DivergenceError(f'the loss is {loss} in epoch {self.number}, batch {self._num_counted}: use a '
                                      'smaller learning rate')
            self._loss += loss
            self._rows += int(rows)
        self._progress.advance(len(sums), loss / max(rows, 1),  # of the last batch, which may have no rows
                               images_per_second=self._rows / (time.perf_counter() - self._started))

    def result(self, accuracy: float, lr: float | None) -> EpochResult:
        """Return the results; ValueError for an invalid accuracy, unread batches and an epoch without losses."""
        accuracy = at_least_0('accuracy', accuracy)
        if accuracy > 1:
            raise ValueError(f'accuracy {accuracy}: must be a share of the rows, from 0 to 1')
        if self.training or (self._rows and not self._begun):  # resumed within the epoch
            raise ValueError('the batches of this epoch were not read to the end: to train on fewer, pass shorter '
                             'data, such as load_data(..., train_size=n)')
        if not self._rows:
            raise ValueError('the epoch has no losses: call record_losses(ls) after each batch')
        return EpochResult(self.number, self.seconds, self._loss / self._rows, accuracy, self._rows / self.seconds, lr)

    def state(self) -> dict:
        """Return what `__init__` needs to continue the epoch."""
        return {'num_batches': self.num_batches, 'epoch_length': self.length, 'loss': self._loss, 'rows': self._rows,
                'seconds': self.seconds}


def check_state(state: Any) -> None:
    """Raise ValueError unless `state`, possibly of another program's file, has the entries of a `Run.state()`."""
    check_entries('state', state, STATE)
    checked_history(state['history'])


def check_num_epochs(num_epochs: int, state: dict, name: str = 'num_epochs') -> None:
    """Raise ValueError, with the name of the argument, if a `Run.state()` is later than the end of `num_epochs`."""
    epoch = len(state['history']) + (state['num_batches'] > 0)
    if epoch > num_epochs:
        raise ValueError(f'{name} {num_epochs}: must be at least {epoch}, the epoch that the run has reached')


def place_of(state: dict, of_all: str = '') -> str:
    """Return how far a `Run.state()` has come, such as ``'in epoch 2 of 10 after 17 batches'`` for ``' of 10'``."""
    epochs, batches = len(state['history']), state['num_batches']
    if batches:
        return f'in epoch {epochs + 1}{of_all} after {counted(batches, "batch")}'
    return f'after epoch {epochs}{of_all}' if epochs else 'before the first batch'
