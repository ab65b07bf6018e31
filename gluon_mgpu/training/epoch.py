"""The epoch that a run is in: its batches, its losses and its clock."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from operator import length_hint

from ..base.checks import at_least_0
from ..distributed.workers import Workers
from .history import Epoch
from .losses import Losses
from .parameters import wait
from .progress import Progress


class CurrentEpoch:
    """The epoch that a run is in, possibly continued after an interruption, or not begun yet.

    Attributes
    ----------
    number : int
        From 1.
    num_batches : int
        Batches queued so far, also before the interruption.
    length : int
        Number of batches of the epoch; 0 if unknown.
    seconds : float
        Time of training until the devices were last waited for.
    training : bool
        True from the first batch until the devices have finished the last.
    """

    def __init__(self, number: int, workers: Workers, progress: Progress, num_batches: int = 0, epoch_length: int = 0,
                 loss: float = 0.0, rows: int = 0, seconds: float = 0.0):
        self.number, self.num_batches, self.length, self.seconds = number, num_batches, epoch_length, seconds
        self._workers, self._progress = workers, progress
        self._losses = Losses(number, workers, loss, rows, num_batches)
        self.training = self._begun = False

    def begin(self, train_iter: Iterable, num_epochs: int) -> None:
        """Check that the epoch, one of `num_epochs`, can train on `train_iter`; set its attribute ``epoch``, if any."""
        length = length_hint(train_iter)
        if self._begun:
            raise ValueError(f'the batches of epoch {self.number} were already read: call end_epoch(test_acc) first, '
                             'or join several datasets in one iterable')
        if self.num_batches and self.length and length not in (0, self.length):
            raise ValueError(f'the run was stopped in an epoch of {self.length} batches, and train_iter has {length}: '
                             'resume with the same batch size and data')
        if self._workers.size > 1 and getattr(train_iter, 'shard', None) != self._workers.shard:
            raise ValueError(f"rank {self._workers.rank}: train_iter does not yield this worker's shard; load the data "
                             'with shard=workers.shard')
        self._begun, self.length = True, length
        if hasattr(train_iter, 'epoch'):
            train_iter.epoch = self.number - 1
        self._progress.begin_epoch(f'epoch {self.number}/{num_epochs}', total=num_epochs * length,
                                   done=(self.number - 1) * length + self.num_batches)

    def start_clock(self) -> None:
        """Start training. The seconds before an interruption count."""
        self._started, self.training = time.perf_counter() - self.seconds, True

    def record_losses(self, ls: list) -> None:
        """See `Run.record_losses`."""
        self._update(self._losses.add, ls)

    def synchronize(self) -> None:
        """See `Run.synchronize`."""
        if self.training:
            wait()
            self.seconds = time.perf_counter() - self._started
            self._update(self._losses.read)

    def _update(self, method: Callable, *args) -> None:
        """Call a method of `Losses`, and advance the progress bar by the number of batches whose losses it read."""
        with self._workers.engine_errors_cleared():
            num_finished = method(*args)
        if not self.training:
            raise ValueError('record_losses was called outside run.batches: write "for X, y in '
                             'run.batches(train_iter)"')
        self._progress.advance(num_finished, self._losses.last,
                               images_per_second=self._losses.rows / (time.perf_counter() - self._started))

    def result(self, test_acc: float, lr: float | None) -> Epoch:
        """Return the results; raise ValueError for another `test_acc`, unread batches and an epoch without losses."""
        test_acc = at_least_0('test_acc', test_acc)
        total, rows = self._losses.total, self._losses.rows
        if self.training:
            raise ValueError('the batches of this epoch were not read to the end: to train on fewer, pass shorter '
                             'data, such as load_data(..., train_size=n)')
        if not rows:
            raise ValueError('the epoch has no losses: call record_losses(ls) after each batch')
        return Epoch(self.number, self.seconds, total / rows, test_acc, rows / self.seconds, lr)

    def state(self) -> dict:
        """Return the arguments with which `__init__` continues the epoch, except the first three."""
        return {'num_batches': self.num_batches, 'epoch_length': self.length, 'loss': self._losses.total,
                'rows': self._losses.rows, 'seconds': self.seconds}


def check_num_epochs(num_epochs: int, state: dict) -> None:
    """Raise ValueError if a `Run.state()` is later than the end of a run of `num_epochs`."""
    epoch = len(state['history']) + (state['num_batches'] > 0)
    if epoch > num_epochs:
        raise ValueError(f'num_epochs {num_epochs}: must be at least {epoch}, the epoch that the run has reached')
