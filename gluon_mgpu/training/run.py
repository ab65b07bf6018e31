"""A training run: its epochs and batches, its callbacks, and the history of its results.

    run = Run(num_epochs=10)
    for epoch in run.epochs(net, trainer):             # 1, 2, ... 10
        for X, y in run.batches(train_iter):
            run.record_losses(train_batch(X, y, ...))  # the losses of the batch, as arrays (n,)
        run.end_epoch(evaluate_accuracy_gpus(net, test_iter))
"""
from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator
from operator import length_hint
from pathlib import Path
from typing import Any

from ..base.arguments import existing_folder, integer
from ..base.program import InputError, Stopped
from ..base.progress import Progress
from ..base.text import counted
from ..data.batches import as_pair
from ..mxnet_setup.compat import gluon
from ..networks.static_shapes import forget_operators
from ..parallel.step import check_trainer
from ..parallel.workers import Workers, checksum
from .callback import Callback
from .epoch import DivergenceError, _CurrentEpoch, check_num_epochs, check_state
from .history import EpochResult, summary, write_history
from .parameters import copies, first_non_finite, first_unequal, plain, trained_arrays
from .schedules import rates
from .seeds import seed_all


class Run:
    """A training run: measures the time of each epoch, adds up losses, shows progress, calls the callbacks.

    After a signal to any worker, such as Ctrl-C, all workers raise `Stopped` at the same point: before an epoch, after
    a batch (with several workers, possibly a few batches later), or before, during or after an evaluation. A signal
    after the last evaluation is ignored, because the run is complete.

    Parameters
    ----------
    quiet : bool
        Print only warnings.
    folder : path-like, optional
        An existing folder for ``history.csv``, which is written before the first and after every epoch.
    workers : Workers, optional
        The processes that train together, by default this one alone; they receive the signals.
    evaluated : str
        The rows that each epoch evaluates, ``'test'`` or ``'validation'``: their name in lines, curves and files.

    Attributes
    ----------
    history : list of EpochResult
        The completed epochs.
    complete : bool
        True after the last of `num_epochs` epochs, or after the one in which a callback stopped the run.
    num_steps : int
        Batches queued in all epochs; the devices may still be computing some of them.
    lr : float or None
        Learning rate of the current batch, if `epochs` got one.
    print, warn : callable
        See `Progress`.
    """

    def __init__(self, num_epochs: int, *, quiet: bool = False, folder=None,
                 callbacks: Iterable[Callback] | Callback | None = None, workers: Workers | None = None,
                 evaluated: str = 'test'):
        self.num_epochs = integer('num_epochs', num_epochs, minimum=1)
        self.evaluated = evaluated
        self.workers = workers or Workers()
        self.callbacks = [callbacks] if isinstance(callbacks, Callback) else list(callbacks or ())
        self.history: list[EpochResult] = []
        self.num_steps, self.complete = 0, False
        self.net: Any = []  # no parameters, until `epochs` sets it
        self.trainer: Any = None
        self.lr: Any = None
        self._lrs = rates(None)  # learning rates of the coming batches
        self._seed: int | None = None
        self._progress = Progress(quiet, self.workers.rank)
        self.print, self.warn = self._progress.print, self._progress.warn
        self._epoch = _CurrentEpoch(1, self.workers, self._progress)
        self._folder = None if folder is None else Path(existing_folder('folder', folder))
        self._closed, self._broadcast_pending = False, self.workers.size > 1

    def epochs(self, net: Any, trainer: Any = None, seed: int | None = None,
               lr: float | Callable[[int], float] | None = None) -> Iterator[int]:
        """Yield the number of each remaining epoch, from 1; the caller ends each epoch with `end_epoch`.

        Parameters
        ----------
        net : gluon.Block or list of lists of np.ndarray
            The network, or the parameters on each device. After each epoch they are checked for NaN and infinity,
            which the loss may not show, because relu(NaN) is 0.
        trainer : gluon.Trainer, optional
            For the callbacks. The state of its optimizer becomes part of checkpoints.
        seed : int, optional
            Seed MXNet, NumPy and Python's `random` anew in each epoch, so that a run resumed after an epoch draws the
            same random numbers as an uninterrupted one. If resumed within an epoch, that epoch's random numbers begin
            anew. A DataLoader that shuffles needs a seed to repeat the order. Equal on all workers.
        lr : float or callable, optional
            The learning rate, or a function that maps the number of the update (1 for the first) to it. `Run.lr` has
            the rate of each batch, the history that of the last batch of each epoch.
        """
        self._check_open()
        if not hasattr(net, 'collect_params'):
            copies(net)  # raises an error for what is no list of arrays
        if isinstance(trainer, gluon.Trainer):
            check_trainer(trainer)
        seed = None if seed is None else integer('seed', seed, minimum=0)
        gc.collect()  # free the networks of earlier runs, because Gluon's blocks are in reference cycles
        forget_operators(plain(net))
        self.net, self.trainer, self._seed, self._lrs = net, trainer, seed, rates(lr)
        self.workers.check_equal({'num_epochs': self.num_epochs, 'seed': seed, 'lr': None if callable(lr) else lr})
        with contextlib.closing(self):
            self._call('train_begin')  # 1. a callback may restore the state of an earlier process
            self._write_history()  # 2. without epochs that this state does not have
            if self.num_steps:  # 3. the rate of the last batch, and after it those of the others
                self._lrs = rates(lr, self.num_steps)
                self.lr = next(self._lrs)
            self._decide_whether_complete()  # 4. the restored history may be complete
            while not self.complete:
                self._stop_after_signal()
                epoch = self._epoch.number
                yield epoch
                if len(self.history) != epoch:
                    raise ValueError(f'epoch {epoch} was not ended: call end_epoch(accuracy) after its batches')

    def check_data(self, *data: Iterable) -> None:
        """Raise ValueError after the end of this run, for `data` without batches, or if not each epoch can read it."""
        self._check_open()
        for batches in data:
            for batch in batches if isinstance(batches, (list, tuple)) else ():
                as_pair(batch)
            if not length_hint(batches, 1):  # len() fails for a DataLoader whose sampler has no length
                raise ValueError(f'{batches!r} has no batches: pass at least one, for training and for testing')
            if isinstance(batches, Iterator) and self.num_epochs > 1:
                raise ValueError(f'a {type(batches).__name__} can be read only once, not in {self.num_epochs} epochs: '
                                 'pass batches that can be read again, such as a list or a DataLoader')

    def batches(self, train_iter: Iterable) -> Iterator:
        """Yield the batches (X, y) of one epoch, time them and show progress; then wait for the devices.

        If the run was resumed within this epoch, the batches trained before are skipped. An attribute ``epoch`` of
        `train_iter` is set to the index of the epoch, from 0, which determines the order of a `BatchIterator`. With
        several workers, `train_iter` must yield this worker's shard of each batch; before the first, all workers get
        the parameters of rank 0. Raises DivergenceError if a loss or, after the last batch, a parameter is NaN or
        infinite, and ValueError if `train_iter` is not valid, or if called twice in an epoch.
        """
        epoch = self._epoch
        if self._seed is not None:
            seed_all(self._seed, epoch.number)    # 1. `train_iter` may draw random numbers
        self._call('epoch_begin')                 # 2. outside the time of training
        self.workers.place = f'epoch {epoch.number}'
        # 3. the clock starts
        for batch in epoch.begin(train_iter, self.num_epochs):
            # Not before the first batch, because a network may get its shapes from it
            if is_first := self._broadcast_pending:
                self.workers.broadcast_parameters(self.net, batch[0], statistics=not self.num_steps)
                self._broadcast_pending = False
            self.lr = next(self._lrs)
            yield batch
            if not self.num_steps:
                epoch.check_losses(batch)
            if is_first:
                self._compare_workers()
            epoch.num_batches += 1
            self.num_steps += 1
            self._call('batch_end')
            self._stop_after_signal()
        if not epoch.num_batches:
            raise ValueError(f'train_iter has no batches in epoch {epoch.number}: pass batches that can be read again '
                             'in each epoch, not a generator')
        self.synchronize()                        # 4. the clock stops when the devices have finished
        epoch.training = False
        self._call('epoch_trained')               # 5. outside the time of training
        self.check_finite(f'after epoch {epoch.number}')
        if names := [name for name in self.workers.allgather(first_unequal(self.net)) if name]:
            raise InputError(f'{names[0]} differs between the devices after epoch {epoch.number}: start equal, give '
                             "each device the sum of all gradients, in place, as the book's allreduce does, and update "
                             'all alike')
        self._compare_workers()
        self._stop_after_signal()                 # 6. `allgather` has exchanged the signals

    def record_losses(self, ls: list) -> None:
        """Record the losses of the batch just queued: the arrays (n,) that `train_batch` returned.

        About four times a second, but at least every 16 batches and at most once per batch, this waits for the batches
        before and reads their losses; otherwise it does not block. Raises DivergenceError if a loss is NaN or infinite.
        """
        self._epoch.record_losses(ls)

    def synchronize(self) -> None:
        """Wait for the devices and read the losses of all queued batches; does nothing between epochs."""
        self._epoch.synchronize()

    def end_epoch(self, accuracy: float) -> EpochResult:
        """Record the current epoch with its accuracy, 0 to 1, equal on all workers; decide if the run is complete.

        Raises ValueError if `accuracy` is no such number, the batches were not read to the end, or there are no losses.
        """
        result = self._epoch.result(accuracy, self.lr)
        self.history.append(result)
        self._epoch = _CurrentEpoch(len(self.history) + 1, self.workers, self._progress)
        self._decide_whether_complete()
        self._write_history()
        self._progress.close()
        loss = f'{result.loss:.3f}' if result.loss < 1e6 else f'{result.loss:.3g}'
        self.print(f'epoch {result.epoch}/{self.num_epochs}: loss {loss}, {self.evaluated} acc {result.accuracy:.3f}, '
                   f'{result.seconds:.1f} s, {result.images_per_second:,.0f} images/s')
        self._call('epoch_end')
        return result

    def state(self) -> dict:
        """Return the progress of the run, JSON-serializable, for `restore`; in an epoch, call `synchronize` first."""
        return {'history': [list(epoch) for epoch in self.history], 'num_steps': self.num_steps, **self._epoch.state()}

    def restore(self, state: dict) -> None:
        """Continue from a `state`, in a callback's `train_begin`; raise ValueError if malformed or beyond the end."""
        check_state(state)
        check_num_epochs(self.num_epochs, state)
        self.history = [EpochResult(*epoch) for epoch in state['history']]
        self.num_steps = state['num_steps']
        self._epoch = _CurrentEpoch(len(self.history) + 1, self.workers, self._progress, state)

    def print_summary(self, devices: list) -> None:
        """Print the summary line of D2L's ``train``, unless the run is quiet."""
        self.print(summary(self.history, devices, self.workers.size, self.evaluated))

    def close(self) -> None:
        """End the run, possibly early: remove the progress bar and call `train_end`. `epochs` calls this at its end."""
        self._progress.close()
        if not self._closed:
            self._closed = True
            with contextlib.ExitStack() as stack:  # calls all, even if one raises an error
                for callback in reversed(self.callbacks):
                    stack.callback(callback.train_end, self)

    def check_finite(self, place: str) -> None:
        """Raise DivergenceError, with the place in the run, if training has made a parameter NaN or infinite; waits."""
        if names := [name for name in self.workers.allgather(first_non_finite(self.net)) if name]:
            raise DivergenceError(f'{names[0]} is no longer finite {place}: use a smaller learning rate')

    def _compare_workers(self) -> None:
        """Raise InputError if the workers have taken different steps; waits for the devices if there are several."""
        if self.workers.size > 1:
            self.workers.check_equal({'the learning rate': self.lr, 'the checksum of the parameters': checksum(
                trained_arrays(self.net))}, 'sum the gradients over all workers, and update with the same settings')

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f'this Run ended after {len(self.history)} of '
                             f'{counted(self.num_epochs, "epoch")}: create a new Run')

    def _call(self, method: str) -> None:
        for callback in self.callbacks:
            getattr(callback, method)(self)

    def _write_history(self) -> None:
        if self._folder:
            path = self._folder / 'history.csv'
            try:
                write_history(self.history, path, self.evaluated)
            except OSError as error:  # such as a full disk, which must not end the training
                self.warn(f'{path} cannot be written ({error.strerror}); the run continues')

    def _decide_whether_complete(self) -> None:
        """Set `complete`, equal on all workers; exchanges their signals as well."""
        # Resumed within an epoch, a run ends after it at the earliest, because the parameters are those of its middle
        at_end = self.history and not self._epoch.num_batches
        stop = bool(at_end) and any(callback.should_stop(self) for callback in self.callbacks)
        self.complete = any(self.workers.allgather(stop)) or len(self.history) == self.num_epochs

    def _stop_after_signal(self) -> None:
        """Raise `Stopped` if all workers know of a signal; does not block."""
        if self.workers.signals.received:
            raise Stopped(self.workers.signals.received)
