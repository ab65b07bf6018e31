"""One training run: its epochs and batches, its callbacks, and the history that it records.

    run = Run(num_epochs=10)
    for epoch in run.epochs(net):                      # 1, 2, ... 10
        for X, y in run.batches(train_iter):
            run.record_losses(train_batch(X, y, ...))  # the losses of the batch, one array per device
        run.end_epoch(evaluate_accuracy_gpus(net, test_iter))
"""
from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import length_hint
from pathlib import Path
from typing import Any

from ..base.checks import integer
from ..base.files import SameFolder
from ..distributed.workers import Workers
from .history import Epoch, write_history
from .losses import DivergenceError, Losses
from .parameters import not_finite, seed_all, wait
from .progress import Progress


class Callback:
    """Base class for callbacks; override the methods you need. Each gets the `Run`."""

    def train_begin(self, run: Run) -> None:
        """Called once before the first epoch. `run.net` and `run.trainer` are set; nothing has been trained."""

    def epoch_begin(self, run: Run) -> None:
        """Called before the first batch of an epoch. The devices are idle."""

    def batch_end(self, run: Run) -> None:
        """Called after a batch has been queued on the devices, which may still be computing."""

    def epoch_trained(self, run: Run) -> None:
        """Called after the last batch of an epoch, before evaluation. The devices are idle."""

    def epoch_end(self, run: Run) -> None:
        """Called after evaluation, when the epoch is in `run.history`."""

    def train_end(self, run: Run) -> None:
        """Called once when the run ends, also after an error or a signal."""


class Run:
    """A training run: times the epochs, collects the losses, shows progress, calls the callbacks.

    Parameters
    ----------
    quiet : bool
        Show only warnings.
    folder : path-like, optional
        An existing folder, where ``history.csv`` is written after every epoch.
    workers : Workers, optional
        The processes that train together; by default this process alone.

    Attributes
    ----------
    history : list of Epoch
        The completed epochs.
    num_batches, num_steps : int
        Batches queued on the devices, in the current epoch and in all epochs.
    """

    def __init__(self, num_epochs: int, quiet: bool = False, folder=None, callbacks: Sequence[Callback] = (),
                 workers: Workers | None = None):
        self.num_epochs = integer('num_epochs', num_epochs, 1)
        self.workers = workers or Workers()
        self.folder = None if folder is None else Path(folder)
        self.callbacks = callbacks
        self.history: list[Epoch] = []
        self.num_batches = self.num_steps = 0
        self.net: Any = []
        self.trainer: Any = None
        self._same_folder: Any = None if folder is None else SameFolder(folder)
        self._progress = Progress(quiet, silent=self.workers.rank > 0)
        self._losses, self._seconds = Losses(1, self.workers), 0.0  # of the current epoch
        self._started, self._training = 0.0, False  # True between the first batch and the end of the last
        self._seed: int | None = None
        self._closed = self._parameters_broadcast = False

    def epochs(self, net: Any, trainer: Any = None, seed: int | None = None) -> Iterator[int]:
        """Yield the number of each remaining epoch, from 1; the caller ends each epoch with `end_epoch`.

        Parameters
        ----------
        net : gluon.Block or list of lists of np.ndarray
            The network, or the parameters on each device. They are checked once per epoch, because NaN in a parameter
            may not show in the loss: relu(NaN) is 0.
        trainer : gluon.Trainer, optional
            For the callbacks.
        seed : int, optional
            Seed MXNet and NumPy anew in each epoch, so that a resumed run draws the same random numbers as an
            uninterrupted one.
        """
        self.check()
        self.net, self.trainer, self._seed = net, trainer, seed
        self._call('train_begin')
        try:
            for epoch in range(len(self.history) + 1, self.num_epochs + 1):
                yield epoch
                if len(self.history) != epoch:
                    raise ValueError(f'epoch {epoch} was not ended: call end_epoch(test_acc) after its batches')
        finally:
            self.close()

    def check(self, *data: Iterable) -> None:
        """Raise ValueError if this run has ended already, or cannot read `data` again in each epoch."""
        if self._closed:
            raise ValueError(f'this Run ended after {len(self.history)} of {self.num_epochs} epochs: create a new Run')
        for batches in data if self.num_epochs > 1 else ():
            if isinstance(batches, Iterator) and not hasattr(batches, 'reset'):  # which MXNet's DataIter has
                raise ValueError(f'a {type(batches).__name__} can be read only once, not in {self.num_epochs} epochs: '
                                 'pass batches that can be read again, such as a list or a DataLoader')

    def batches(self, train_iter: Iterable) -> Iterator:
        """Yield the batches (X, y) of one epoch, time them and show progress; then wait for the devices.

        In an epoch that was interrupted, the completed batches are skipped. If `train_iter` has an attribute
        ``epoch``, as a `BatchIterator` has, it is set to the number of completed epochs. With several workers,
        `train_iter` must yield this worker's shard of each batch. Raises DivergenceError if a loss or, after the last
        batch, a parameter is NaN or infinite.
        """
        epoch, epoch_length = len(self.history) + 1, length_hint(train_iter)
        self.num_batches = self._losses.num_batches  # more than 0 in an epoch that was interrupted
        self._progress.begin_epoch(f'epoch {epoch}/{self.num_epochs}',
                                   done=len(self.history) * epoch_length + self.num_batches,
                                   total=self.num_epochs * epoch_length)
        if hasattr(train_iter, 'epoch'):
            train_iter.epoch = epoch - 1
        if self._seed is not None:
            seed_all(self._seed, epoch)
        self._call('epoch_begin')
        self._started, self._training = time.perf_counter() - self._seconds, True
        for batch in islice(train_iter, self.num_batches, None):
            if self.workers.size > 1:
                self._check_shard(train_iter, batch)
            yield batch
            self.num_batches += 1
            self.num_steps += 1
            self._call('batch_end')
        if not self.num_batches:
            raise ValueError(f'train_iter has no batches in epoch {epoch}: pass batches that can be read again in each '
                             'epoch, not a generator')
        self.synchronize()
        self._training = False
        self._call('epoch_trained')
        self._check_parameters()

    def record_losses(self, ls: list) -> None:
        """Record the losses of the batch just queued, one array (n,) for each device that got rows.

        Four times a second, and at least every 16 batches, this waits for the earlier batches and reads their losses;
        DivergenceError if one is NaN or infinite. Otherwise it does not block, so the devices always have work.
        """
        self._show(self._losses.add, ls)

    def synchronize(self) -> None:
        """Wait for the devices and read the losses of all batches queued; does nothing during evaluation."""
        if not self._training:
            return
        wait()
        self._seconds = time.perf_counter() - self._started
        self._show(self._losses.read)

    def end_epoch(self, test_acc: float) -> Epoch:
        """Record the current epoch with its test accuracy, 0 to 1: print a line and write ``history.csv``."""
        losses, seconds = self._losses, self._seconds
        if not losses.rows:
            raise ValueError('the epoch has no losses: call record_losses(ls) after each batch')
        epoch = Epoch(len(self.history) + 1, seconds, losses.total / losses.rows, test_acc, losses.rows / seconds)
        self.history.append(epoch)
        self._losses, self._seconds = Losses(len(self.history) + 1, self.workers), 0.0
        if self.folder is not None:
            self._write_history(self.folder / 'history.csv')
        self.print(f'epoch {epoch.epoch}/{self.num_epochs}: loss {epoch.loss:.3f}, test acc {test_acc:.3f}, '
                   f'{epoch.seconds:.1f} s, {epoch.images_per_second:,.0f} images/s')
        self._call('epoch_end')
        return epoch

    def state(self) -> dict:
        """Return the run's progress for `restore`, as JSON types; call `synchronize` first within an epoch."""
        return {'history': [list(epoch) for epoch in self.history], 'num_steps': self.num_steps,
                'num_batches': self._losses.num_batches, 'loss': self._losses.total, 'rows': self._losses.rows,
                'seconds': self._seconds}

    def restore(self, state: dict) -> None:
        """Continue from a `state`, in a callback's `train_begin`; ValueError if it is not a state of this run."""
        try:
            check_num_epochs(self.num_epochs, state)
            self.history = [Epoch(*epoch) for epoch in state['history']]
            self.num_steps, self._seconds = state['num_steps'], state['seconds']
            self._losses = Losses(len(self.history) + 1, self.workers)
            self._losses.num_batches, self._losses.total = state['num_batches'], state['loss']
            self._losses.rows = state['rows']
        except (KeyError, TypeError) as error:
            raise ValueError(f'not the state of a run, which Run.state() returns ({error})') from None

    def summary(self, devices: list) -> str:
        """Return the book's last line: ``test acc: 0.84, 2.5 sec/epoch on [gpu(0), gpu(1)]``."""
        seconds = sum(e.seconds for e in self.history) / len(self.history)
        num_workers = f', {self.workers.size} workers' if self.workers.size > 1 else ''
        return f'test acc: {self.history[-1].test_acc:.2f}, {seconds:.1f} sec/epoch on {devices}{num_workers}'

    def print_summary(self, devices: list) -> None:
        """Print the book's last line, unless the run is quiet."""
        self.print(self.summary(devices))

    def print(self, line: str) -> None:
        """Print a line above the progress bar, unless the run is quiet; only rank 0 prints."""
        self._progress.print(line)

    def warn(self, line: str) -> None:
        """Print a line on stderr, also if the run is quiet; only rank 0 prints."""
        self._progress.warn(line)

    def close(self) -> None:
        """End the run, possibly early: remove the progress bar and call the callbacks' `train_end`."""
        self._progress.close()
        if not self._closed:
            self._closed = True
            self._call('train_end')

    def _call(self, method: str) -> None:
        for callback in self.callbacks:
            getattr(callback, method)(self)

    def _show(self, read_losses, *args) -> None:
        """Call a method of `Losses`, and advance the progress bar by the number of batches that it has counted."""
        try:
            num_finished = read_losses(*args)
        except DivergenceError:
            self.close()
            raise
        images_per_second = self._losses.rows / (time.perf_counter() - self._started)
        self._progress.advance(num_finished, self._losses.last, images_per_second)

    def _check_shard(self, train_iter: Any, batch: tuple) -> None:
        """Check that the batches are this worker's; before the first one, give all workers the same parameters."""
        if getattr(train_iter, 'shard', None) != self.workers.shard:
            raise ValueError(f'worker {self.workers.rank} of {self.workers.size} has the batches of another: load '
                             'them with shard=workers.shard')
        if not self._parameters_broadcast:
            self._parameters_broadcast = True
            self.workers.broadcast_parameters(self.net, batch[0])

    def _check_parameters(self) -> None:
        name = next(filter(None, self.workers.allgather(not_finite(self.net))), '')
        if name:
            self.close()
            raise DivergenceError(f'{name} is no longer finite after epoch {len(self.history) + 1}: use a smaller '
                                  'learning rate')

    def _write_history(self, path: Path) -> None:
        try:
            self._same_folder.check()
            write_history(self.history, path)
        except OSError as error:  # such as a full disk, which must not end the training
            self.warn(f'{path} cannot be written ({error.strerror}): training continues')


def check_num_epochs(num_epochs: int, state: dict) -> None:
    """Raise ValueError if a run would end before the epoch of `state`, with the accuracy of the epoch before."""
    epoch = len(state['history']) + 1
    if state['num_batches'] and epoch > num_epochs:
        raise ValueError(f'num_epochs {num_epochs}: the run was stopped in epoch {epoch} and needs at least {epoch}')
