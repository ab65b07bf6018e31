"""A training run: its epochs and batches, its callbacks, and the history of its results.

    run = Run(num_epochs=10)
    for epoch in run.epochs(net):                      # 1, 2, ... 10
        for X, y in run.batches(train_iter):
            run.record_losses(train_batch(X, y, ...))  # the losses of the batch, as arrays (n,)
        run.end_epoch(evaluate_accuracy_gpus(net, test_iter))
"""
from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice, repeat
from operator import length_hint
from typing import Any

from tqdm import tqdm

from ..base.checks import at_least_0, integer
from ..base.files import SameFolder
from ..base.program import show
from ..distributed.workers import Workers
from .history import Epoch, write_history
from .losses import DivergenceError, Losses
from .parameters import first_non_finite, seed_all, wait
from .progress import Progress


class Callback:
    """Base class for callbacks; override the methods you need. Each receives the `Run`."""

    def train_begin(self, run: Run) -> None:
        """Called once, before the first epoch. `run.net` and `run.trainer` are set."""

    def epoch_begin(self, run: Run) -> None:
        """Called before the first batch of an epoch. The devices are idle."""

    def batch_end(self, run: Run) -> None:
        """Called when a batch has been queued on the devices, which may still be computing it."""

    def epoch_trained(self, run: Run) -> None:
        """Called after the last batch of an epoch, before evaluation. The devices are idle."""

    def epoch_end(self, run: Run) -> None:
        """Called after evaluation. `run.history` includes the epoch."""

    def train_end(self, run: Run) -> None:
        """Called once, when the run ends, also after an error or a signal; see `Run.close`."""


class Run:
    """A training run: measures the time of each epoch, adds up losses, shows progress, calls the callbacks.

    Parameters
    ----------
    quiet : bool
        Print only warnings.
    folder : path-like, optional
        An existing folder; ``history.csv`` is written there after every epoch.
    workers : Workers, optional
        The group of processes that train together; by default, this process alone.

    Attributes
    ----------
    history : list of Epoch
        The completed epochs.
    num_batches, num_steps : int
        Batches queued in the current epoch (between epochs: in the last one), and batches queued in all epochs. The
        devices may still be computing some of them.
    lr : float or None
        Learning rate of the current batch, if `epochs` got one.
    """

    def __init__(self, num_epochs: int, quiet: bool = False, folder=None, callbacks: Sequence[Callback] = (),
                 workers: Workers | None = None):
        self.num_epochs = integer('num_epochs', num_epochs, minimum=1)
        self.workers = workers or Workers()
        self.callbacks = callbacks
        self.history: list[Epoch] = []
        self.num_batches = self.num_steps = 0
        self.net: Any = []  # no parameters, until `epochs` sets it
        self.trainer: Any = None
        self._folder = None if folder is None else SameFolder(folder)
        self._quiet = quiet or self.workers.rank > 0
        self._progress = Progress(self._quiet)
        self._losses, self._seconds = Losses(1, self.workers), 0.0  # those of the current epoch
        self.lr: Any = None
        self._lrs: Iterator = repeat(None)  # learning rates of the coming batches
        self._in_epoch = False   # True from the first batch of an epoch to `end_epoch`
        self._epoch_length = 0   # batches per epoch; 0 if unknown
        self._started = 0.0      # time at which the current epoch began
        self._training = False   # True while batches are trained; False in evaluation and between epochs
        self._seed: int | None = None
        self._closed = self._parameters_broadcast = False

    def epochs(self, net: Any, trainer: Any = None, seed: int | None = None,
               lr: float | Callable[[int], float] | None = None) -> Iterator[int]:
        """Yield the number of each remaining epoch, from 1; the caller ends each epoch with `end_epoch`.

        Parameters
        ----------
        net : gluon.Block or list of lists of np.ndarray
            The network, or the parameters on each device. After each epoch they are checked for NaN and infinity,
            which the loss may not show, because relu(NaN) is 0.
        trainer : gluon.Trainer, optional
            For the callbacks.
        seed : int, optional
            Seed MXNet and NumPy anew in each epoch, so that a run resumed after an epoch draws the same random numbers
            as an uninterrupted one. A run resumed within an epoch begins the random numbers of this epoch anew, and
            skips the batches trained before. A DataLoader that shuffles needs a seed for that, to repeat the order.
        lr : float or callable, optional
            The learning rate, or a function that maps the number of the update (1 for the first) to it, such as one of
            MXNet's schedulers. `Run.lr` has the rate of each batch, the history that of the last batch of each epoch.
        """
        self.check()
        self.net, self.trainer, self._seed = net, trainer, seed
        from ..mxnet_setup.compat import mx
        if isinstance(lr, mx.lr_scheduler.LRScheduler):
            lr = copy.deepcopy(lr)  # it has state, and the caller may use it again
        rates = map(lr, count(1)) if callable(lr) else repeat(lr)
        self._lrs = (rate if rate is None else float(rate) for rate in rates)  # JSON has no NumPy scalars
        try:
            self._call('train_begin')
            # After a resume, continue behind the steps before it; `end_epoch` needs the last rate if none are left
            for _ in range(self.num_steps):
                self.lr = next(self._lrs)
            for epoch in range(len(self.history) + 1, self.num_epochs + 1):
                yield epoch
                if len(self.history) != epoch:
                    raise ValueError(f'epoch {epoch} was not ended: call end_epoch(test_acc) after its batches')
        finally:
            self.close()

    def check(self, *data: Iterable) -> None:
        """Raise ValueError if this run has ended, or if it has several epochs and `data` can be read only once."""
        if self._closed:
            raise ValueError(f'this Run ended after {len(self.history)} of {self.num_epochs} epochs: create a new Run')
        if self.num_epochs == 1:
            return
        for batches in data:
            if isinstance(batches, Iterator):
                raise ValueError(f'a {type(batches).__name__} can be read only once, not in {self.num_epochs} epochs: '
                                 'pass batches that can be read again, such as a list or a DataLoader')

    def batches(self, train_iter: Iterable) -> Iterator:
        """Yield the batches (X, y) of one epoch, time them and show progress; then wait for the devices.

        If the run was resumed within this epoch, the batches trained before are skipped. If `train_iter` has an
        attribute ``epoch``, it is set to the index of the epoch, from 0, which determines the order of the rows of a
        `BatchIterator`. With several workers, `train_iter` must yield this worker's shard of each batch. Raises
        DivergenceError if a loss or, after the last batch, a parameter is NaN or infinite, and ValueError if there are
        no batches, if `train_iter` is not this worker's shard, or if this is called twice in an epoch.
        """
        epoch, epoch_length = len(self.history) + 1, length_hint(train_iter)  # 0 if unknown
        if self._in_epoch:
            raise ValueError(f'the batches of epoch {epoch} were already read: call end_epoch(test_acc) first, or join '
                             'several datasets in one iterable')
        if self._losses.num_batches and self._epoch_length and epoch_length not in (0, self._epoch_length):
            raise ValueError(f'the run was stopped in an epoch of {self._epoch_length} batches, and train_iter has '
                             f'{epoch_length}: resume with the same batch size and data')
        self._in_epoch, self._epoch_length = True, epoch_length
        self.num_batches = self._losses.num_batches  # above 0 if the run was resumed within this epoch
        self._progress.begin_epoch(f'epoch {epoch}/{self.num_epochs}',
                                   done=len(self.history) * epoch_length + self.num_batches,
                                   total=self.num_epochs * epoch_length)
        if hasattr(train_iter, 'epoch'):
            train_iter.epoch = epoch - 1
        if self._seed is not None:
            seed_all(self._seed, epoch)
        self._call('epoch_begin')
        # Start the clock earlier by the seconds that this epoch took before the interruption, if any
        self._started, self._training = time.perf_counter() - self._seconds, True
        for batch in islice(train_iter, self.num_batches, None):
            if self.workers.size > 1:
                self._prepare_worker(train_iter, batch)
            self.lr = next(self._lrs)
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
        names = [name for name in self.workers.allgather(first_non_finite(self.net)) if name]
        if names:
            self.close()  # removes the progress bar before the error is printed
            raise DivergenceError(f'{names[0]} is no longer finite after epoch {epoch}: use a smaller learning rate')

    def record_losses(self, ls: list) -> None:
        """Record the losses of the batch just queued: the arrays (n,) that `train_batch` returned.

        Usually this does not block, so that the devices always have work. About four times a second, and at least every
        16 batches, it waits for the earlier batches and reads their losses. Raises DivergenceError if one is NaN or
        infinite.
        """
        self._update_losses(self._losses.add, ls)

    def synchronize(self) -> None:
        """Wait for the devices and read the losses of all queued batches; does nothing between epochs."""
        if not self._training:
            return
        wait()
        self._seconds = time.perf_counter() - self._started
        self._update_losses(self._losses.read)

    def end_epoch(self, test_acc: float) -> Epoch:
        """Record the current epoch with its test accuracy, 0 to 1: print a line and write ``history.csv``.

        Raises ValueError if its batches were not read to the end, it has no losses, or `test_acc` is no such number.
        """
        losses, seconds, test_acc = self._losses, self._seconds, at_least_0('test_acc', test_acc)
        if self._training:
            raise ValueError('the batches of this epoch were not read to the end: to train on fewer, pass shorter '
                             'data, such as load_data(..., train_size=n)')
        if not losses.rows:
            raise ValueError('the epoch has no losses: call record_losses(ls) after each batch')
        epoch = Epoch(len(self.history) + 1, seconds, losses.total / losses.rows, test_acc, losses.rows / seconds,
                      self.lr)
        self.history.append(epoch)
        self._losses, self._seconds, self._in_epoch = Losses(len(self.history) + 1, self.workers), 0.0, False
        if self._folder:
            path = self._folder.path / 'history.csv'
            try:
                self._folder.check()
                write_history(self.history, path)
            except OSError as error:  # such as a full disk, which must not end the training
                self.warn(f'{path} cannot be written ({error.strerror}); the run continues')
        self.print(f'epoch {epoch.epoch}/{self.num_epochs}: loss {epoch.loss:.3f}, test acc {test_acc:.3f}, '
                   f'{epoch.seconds:.1f} s, {epoch.images_per_second:,.0f} images/s')
        self._call('epoch_end')
        return epoch

    def state(self) -> dict:
        """Return the progress of the run, JSON-serializable, for `restore`; in an epoch, call `synchronize` first."""
        return {'history': [list(epoch) for epoch in self.history], 'num_steps': self.num_steps,
                'num_batches': self.num_batches if self._in_epoch else self._losses.num_batches,
                'epoch_length': self._epoch_length,
                'loss': self._losses.total, 'rows': self._losses.rows, 'seconds': self._seconds}

    def restore(self, state: dict) -> None:
        """Continue from a `state`; call this in a callback's `train_begin`.

        Raises ValueError if `state` is malformed, or later than the end of this run.
        """
        try:
            check_num_epochs(self.num_epochs, state)
            self.history = [Epoch(*epoch) for epoch in state['history']]
            self.num_steps, self._seconds = state['num_steps'], state['seconds']
            self._epoch_length = state.get('epoch_length', 0)
            self._losses = Losses(len(self.history) + 1, self.workers, state['loss'], state['rows'],
                                  state['num_batches'])
        except (KeyError, TypeError) as error:
            raise ValueError(f'not a state returned by Run.state() ({error})') from None

    def summary(self, devices: list) -> str:
        """Return the summary line, as in D2L's ``train``: ``test acc: 0.84, 2.5 sec/epoch on [gpu(0), gpu(1)]``."""
        seconds = sum(e.seconds for e in self.history) / len(self.history)
        workers = f', {self.workers.size} workers' if self.workers.size > 1 else ''
        return f'test acc: {self.history[-1].test_acc:.2f}, {seconds:.1f} sec/epoch on {devices}{workers}'

    def print_summary(self, devices: list) -> None:
        """Print the summary line, unless the run is quiet."""
        self.print(self.summary(devices))

    def print(self, line: str) -> None:
        """Print a line above the progress bar, unless the run is quiet; only rank 0 prints."""
        if not self._quiet:
            with tqdm.external_write_mode():
                show(line)

    def warn(self, line: str) -> None:
        """Print a line on stderr, even if the run is quiet; only rank 0 prints."""
        if self.workers.rank == 0 and sys.stderr is not None:
            with tqdm.external_write_mode(file=sys.stderr):
                show(line, sys.stderr)

    def close(self) -> None:
        """End the run, possibly early: remove the progress bar and call the callbacks' `train_end`.

        `epochs` calls this, unless it has not started because of an error.
        """
        self._progress.close()
        if not self._closed:
            self._closed = True
            self._call('train_end')

    def _call(self, method: str) -> None:
        for callback in self.callbacks:
            getattr(callback, method)(self)

    def _update_losses(self, method: Callable, *args) -> None:
        """Call a method of `Losses`, and advance the progress bar by the number of batches whose losses it read."""
        try:
            with self.workers.engine_errors_cleared():
                num_finished = method(*args)
        except DivergenceError:
            self.close()  # removes the progress bar before the error is printed
            raise
        if not self._training:
            raise ValueError('record_losses was called outside run.batches: write "for X, y in '
                             'run.batches(train_iter)"')
        images_per_second = self._losses.rows / (time.perf_counter() - self._started)
        self._progress.advance(num_finished, self._losses.last, images_per_second)

    def _prepare_worker(self, train_iter: Any, batch: tuple) -> None:
        """Check that a batch is this worker's shard; before the first, copy the parameters of rank 0 to all workers."""
        if getattr(train_iter, 'shard', None) != self.workers.shard:
            raise ValueError(f"rank {self.workers.rank}: train_iter does not yield this worker's shard; load the data "
                             'with shard=workers.shard')
        if not self._parameters_broadcast:
            self._parameters_broadcast = True
            self.workers.broadcast_parameters(self.net, batch[0])


def check_num_epochs(num_epochs: int, state: dict) -> None:
    """Raise ValueError if `state` is later than the end of a run of `num_epochs`."""
    epoch = len(state['history']) + (state['num_batches'] > 0)
    if epoch > num_epochs:
        raise ValueError(f'num_epochs {num_epochs}: must be at least {epoch}, the epoch that the run has reached')
