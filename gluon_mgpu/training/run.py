"""One run of training: its epochs and batches, what it tells on the way, and the record that it leaves.

    run = Run(num_epochs=10)
    for epoch in run.epochs(net):                      # 1, 2, ... 10
        for X, y in run.batches(train_iter):
            run.record_losses(train_batch(X, y, ...))            # the losses of the batch
        run.end_epoch(evaluate_accuracy_gpus(net, test_iter))
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    """The record of a run: shows progress while it goes on and keeps one `Epoch` per epoch.

    Parameters
    ----------
    num_epochs : int
        Epochs that the run is going to take.
    quiet : bool
        Show nothing, only keep the record.
    folder : path-like, optional
        Where ``history.csv`` is written anew after every epoch; it must be there.
    callbacks : sequence of Callback
        Called in this order.
    workers : Workers, optional
        The processes that train together, of which this is one; by default this one alone.

    Attributes
    ----------
    history : list of Epoch
        The epochs done.
    num_batches : int
        The batches of the present epoch that have been started; after its last one, all of them.
    num_steps : int
        The batches of all epochs that have been started.
    net, trainer
        What is trained, as `epochs` was given it.

    Raises
    ------
    ValueError
        If `num_epochs` is no integer of at least 1.
    """

    def __init__(self, num_epochs: int, quiet: bool = False, folder=None, callbacks: Sequence[Callback] = (),
                 workers: Workers | None = None):
        self.num_epochs = integer('num_epochs', num_epochs, 1)
        self.workers = workers or Workers()
        self._progress = Progress(quiet, silent=self.workers.rank > 0)
        self.folder = None if folder is None else Path(folder)
        self._same_folder: Any = None if folder is None else SameFolder(folder)
        self.callbacks = callbacks
        self.history: list[Epoch] = []
        self.num_batches = self.num_steps = 0
        self.net: Any = []
        self.trainer: Any = None
        self._seed: int | None = None
        self._losses = self._new_losses(1)
        self._seconds = 0.0
        self._batches_done = 0  # of the next epoch, by a run that was interrupted; its losses and seconds are above
        self._closed = False
        self._together = False  # whether all workers have begun with the same parameters

    def epochs(self, net: Any, trainer: Any = None, seed: int | None = None) -> Iterator[int]:
        """Yield the numbers of the epochs to come, from 1; each must be ended by `end_epoch`.

        Parameters
        ----------
        net : gluon.Block or list of lists of np.ndarray
            What is trained: a network, or the parameters on each device. Once per epoch they are looked at,
            since a parameter that is NaN may not show in the loss: relu(NaN) is 0.
        trainer : gluon.Trainer, optional
            What updates them, for the callbacks to know.
        seed : int, optional
            With it, MXNet's and NumPy's random numbers begin anew in each epoch, decided by this and the
            epoch, so that a resumed run draws the same as one that was never interrupted.
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
        """Refuse to train with a run that has ended, or with data that cannot be read in each epoch.

        Call it before anything is changed.

        Parameters
        ----------
        *data : iterables
            The training and the test batches.

        Raises
        ------
        ValueError
            If `epochs` has ended before, or one of `data` is a generator or another iterator that can be read once and
            there is more than one epoch.
        """
        if self._closed:
            raise ValueError(f'this Run has ended after {len(self.history)} of {self.num_epochs} epochs: make a new '
                             'Run')
        for batches in data if self.num_epochs - len(self.history) > 1 else ():
            if isinstance(batches, Iterator) and not hasattr(batches, 'reset'):  # MXNet's DataIter has it
                raise ValueError(f'a {type(batches).__name__} can be read only once, and there are {self.num_epochs} '
                                 'epochs: pass batches that can be read again, such as a list or a DataLoader')

    def batches(self, train_iter: Iterable) -> Iterator:
        """Yield the batches (X, y) of one epoch, time them and show how far the run has come.

        The bar counts batches that the devices have finished, and tells the time left for the whole run. It
        appears on a terminal only. After the last batch it waits until the devices are done.

        An iterator with an attribute ``epoch``, such as a `BatchIterator`, is set to the epochs done. Of an epoch
        that was interrupted, the batches done are left out.

        With several workers it yields this one's part of each batch, and `train_iter` must be of that part.

        Raises
        ------
        DivergenceError
            If a loss that `record_losses` did not read, or a parameter, is NaN or infinite after the last batch.
        ValueError
            If `train_iter` is of another part, or the workers have different networks.
        """
        length = length_hint(train_iter)
        self._progress.begin(self.num_epochs * length, len(self.history) * length + self._batches_done)
        epoch = len(self.history) + 1
        self._progress.epoch(f'epoch {epoch}/{self.num_epochs}')
        if hasattr(train_iter, 'epoch'):
            train_iter.epoch = epoch - 1
        if self._seed is not None:
            seed_all(self._seed, epoch)
        if not self._batches_done:
            self._losses, self._seconds = self._new_losses(epoch), 0.0
        self.num_batches, self._batches_done = self._batches_done, 0
        self._call('epoch_begin')
        self._started = time.perf_counter() - self._seconds
        for batch in islice(train_iter, self.num_batches, None):
            if self.workers.size > 1:
                self._share(train_iter, batch)
            yield batch
            self.num_batches += 1
            self.num_steps += 1
            self._call('batch_end')
        if not self.num_batches:
            raise ValueError(f'train_iter has no batches in epoch {epoch}; a generator can be read only once: pass '
                             'batches that can be read again in each epoch')
        self.synchronize()
        self._call('epoch_trained')
        self._refuse_parameters()

    def synchronize(self) -> None:
        """Wait until the devices are done, and read the losses of all batches started in this epoch.

        Raises
        ------
        DivergenceError
            If one of them is NaN or infinite.
        """
        wait()
        self._seconds = time.perf_counter() - self._started
        self._read(lambda: self._losses.read())

    def state(self) -> dict:
        """Return how far the run has come, of what JSON can hold, for `restore`; call `synchronize` first.

        Between two epochs that is the history; within one also its batches, its losses and its seconds so far.
        """
        losses = self._losses
        if not losses.rows:
            losses = Losses(1)
        return {'history': [list(epoch) for epoch in self.history], 'num_steps': self.num_steps,
                'num_batches': losses.num_batches, 'loss': losses.total, 'rows': losses.rows,
                'seconds': self._seconds if losses.rows else 0.0}

    def restore(self, position: dict) -> None:
        """Take up a run where `state` was asked for; to be called by a callback's `train_begin`.

        Raises
        ------
        ValueError
            If `state` has not returned it, or the run would end before it.
        """
        try:
            check_num_epochs(self.num_epochs, position)
            self.history = [Epoch(*epoch) for epoch in position['history']]
            self.num_steps, self._batches_done = position['num_steps'], position['num_batches']
            self._losses = self._new_losses(len(self.history) + 1, position['loss'], position['rows'],
                                            self._batches_done)
            self._seconds = position['seconds']
        except (KeyError, TypeError) as error:
            raise ValueError(f'{error}: no position of a run; one that Run.state() returned expected') from None

    def record_losses(self, ls: list) -> None:
        """Take the losses of the batch just started, one array (n,) per device.

        Some four times a second, and at every 16th batch at the latest, it waits for the batches before
        this one, to read their losses; otherwise it doesn't wait. So the devices always have work.

        Parameters
        ----------
        ls : list of np.ndarray, (n,)
            The losses of the rows, an array for each device that got rows.

        Raises
        ------
        DivergenceError
            If one of the losses read is NaN or infinite.
        """
        self._read(lambda: self._losses.add(ls))

    def _read(self, read: Callable[[], int]) -> None:
        """Call what reads losses, and show how far the devices have come."""
        try:
            count = read()
        except DivergenceError:
            self.close()
            raise
        speed = self._losses.rows / (time.perf_counter() - self._started)
        self._progress.advance(count, self._losses.last, speed)

    def _share(self, train_iter: Any, batch: tuple) -> None:
        """Refuse the batches of another worker; before the first batch, give all workers the same parameters."""
        if getattr(train_iter, 'shard', None) != self.workers.shard:
            raise ValueError(f'worker {self.workers.rank} of {self.workers.size} has the batches of another: load '
                             'them with shard=workers.shard')
        if not self._together:
            self._together = True
            self.workers.broadcast_parameters(self.net, batch[0])

    def _new_losses(self, epoch: int, total: float = 0.0, rows: int = 0, num_batches: int = 0) -> Losses:
        return Losses(epoch, total, rows, num_batches, self.workers)

    def _refuse_parameters(self) -> None:
        """End the run if a parameter is no number."""
        name = next(filter(None, self.workers.allgather(not_finite(self.net))), '')
        if name:
            self.close()
            raise DivergenceError(f'{name} is no longer finite after epoch {len(self.history) + 1}, though the '
                                  'loss is: all parameters must be; use a smaller learning rate')

    def end_epoch(self, test_acc: float) -> Epoch:
        """Record the epoch whose batches have all been trained on: show a line, write ``history.csv``.

        Parameters
        ----------
        test_acc : float
            Accuracy on the test rows, 0 to 1.
        """
        losses, self._losses = self._losses, self._new_losses(len(self.history) + 2)
        if not losses.rows:
            raise ValueError('the epoch has 0 rows: its losses are needed; call record_losses(ls) after each batch')
        epoch = Epoch(len(self.history) + 1, self._seconds, losses.total / losses.rows, test_acc,
                      losses.rows / self._seconds)
        self.history.append(epoch)
        if self.folder is not None:
            self._keep(self.folder / 'history.csv')
        self.print(f'epoch {epoch.epoch}/{self.num_epochs}: loss {epoch.loss:.3f}, test acc {test_acc:.3f}, '
                 f'{epoch.seconds:.1f} s, {epoch.images_per_second:,.0f} images/s')
        self._call('epoch_end')
        return epoch

    def summary(self, devices: list) -> str:
        """Return the book's last line: ``test acc: 0.84, 2.5 sec/epoch on [gpu(0), gpu(1)]``.

        Parameters
        ----------
        devices : list of mx.Context
            Where it was trained.
        """
        seconds = sum(e.seconds for e in self.history) / len(self.history)
        others = f', {self.workers.size} workers' if self.workers.size > 1 else ''
        return f'test acc: {self.history[-1].test_acc:.2f}, {seconds:.1f} sec/epoch on {devices}{others}'

    def print_summary(self, devices: list) -> None:
        """Print the book's last line, unless the run is quiet; of several workers, the first does.

        Parameters
        ----------
        devices : list of mx.Context
            Where it was trained.
        """
        self.print(self.summary(devices))

    def print(self, line: str) -> None:
        """Print a line beside the progress bar, unless the run is quiet; of several workers, the first."""
        self._progress.print(line)

    def warn(self, line: str) -> None:
        """Print a line on stderr, beside the progress bar, also if the run is quiet; of several workers, the first."""
        self._progress.warn(line)

    def _keep(self, path) -> None:
        try:
            self._same_folder.check()
            write_history(self.history, path)
        except OSError as error:  # a full disk: what has been trained so far is worth more than the file
            self.warn(f'{path} cannot be written ({error.strerror}): training goes on')

    def close(self) -> None:
        """End the run, at its end or before: take the progress bar off the screen, call the callbacks' `train_end`."""
        self._progress.close()
        if not self._closed:
            self._closed = True
            self._call('train_end')

    def _call(self, name: str) -> None:
        for callback in self.callbacks:
            getattr(callback, name)(self)


def check_num_epochs(num_epochs: int, position: dict) -> None:
    """Refuse to end a run before the epoch that it has reached.

    Its parameters would be those of the later epoch, and its accuracy that of the one before.

    Parameters
    ----------
    num_epochs : int
        The epochs that the run is to take.
    position : dict
        As `Run.state` returns it.

    Raises
    ------
    ValueError
        If the run was stopped within a later epoch.
    """
    begun = len(position['history']) + 1
    if position['num_batches'] and begun > num_epochs:
        raise ValueError(f'num_epochs {num_epochs}: the run was stopped in epoch {begun} and needs at least {begun}')
