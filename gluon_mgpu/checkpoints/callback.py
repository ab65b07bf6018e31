"""Checkpoints of a run: written while it goes on, found again when it is to go on, the last two kept."""
from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy

from ..base.checks import integer
from ..base.files import SameFolder
from ..base.program import JobError, Stopped
from ..training.losses import DivergenceError
from ..training.run import Callback, Run
from . import checkpoint
from .checkpoint import CheckpointError, Snapshot

KEPT = 2
NAME = re.compile(r'checkpoint-(\d{8,})\.safetensors')


def checkpoints(folder, above: int | None = None) -> list[Path]:
    """Return the checkpoints in the folder of a run, whole or not, newest first; optionally only those above a step."""
    found = [path for path in Path(folder).iterdir() if _steps(path) > (-1 if above is None else above)]
    return sorted(found, key=_steps, reverse=True)


def newest(folder, log: Callable[[str], None]) -> Path | None:
    """Return the newest checkpoint in a folder that is whole; None if there is none.

    Parameters
    ----------
    folder : path-like
        That of a run.
    log : callable
        Is told in one line of each that is not whole, or has another one's name.
    """
    return newest_position(folder, log)[0]


def newest_position(folder, log: Callable[[str], None]) -> tuple[Path | None, dict]:
    """Return the newest whole checkpoint in a folder, and its position; (None, {}) if there is none. See `newest`.

    Parameters
    ----------
    folder, say
        As for `newest`.
    """
    for path in checkpoints(folder):
        try:
            position = checkpoint.read(path)[0]['position']
            if num_steps(position) in (None, _steps(path)):
                return path, position
            log(f'{path} was renamed, it is of step {num_steps(position)}: looking for the one before')
        except CheckpointError as error:
            log(f'{error}: looking for the one before')
    return None, {}


def num_steps(position: dict) -> int | None:
    """Return the number of steps of the run that a checkpoint's position is of; None if it is not of a run."""
    run = position.get('run')
    steps = run.get('num_steps') if isinstance(run, dict) else None
    return steps if isinstance(steps, int) else None


class CheckpointCallback(Callback):
    """Writes checkpoints of a run, and takes one up at its beginning.

    The devices are waited for and what they hold is copied; the file is written by a thread while they go on. A
    file that cannot be written is told once per epoch and does not end the run, unless `require` says so.

    If the run's `Workers` have `signals`, the run ends by `Stopped` when one is received: after the step, or in
    evaluation. Several workers end after the same step. Call `stopped` then.

    Parameters
    ----------
    folder : path-like
        Where ``checkpoint-STEPS.safetensors`` are written; it must be there.
    every : int, optional
        Steps from one checkpoint to the next, and one when the run is complete; by default one after every epoch.
    config : dict, optional
        What else each checkpoint is to hold of the run, of what JSON can hold.
    resume : path-like, optional
        The checkpoint to go on from.
    require : bool
        End the run if a checkpoint cannot be written.
    how_to_resume : str
        The command, for the last line then.

    Raises
    ------
    ValueError
        If `every` is no integer of at least 1.
    """

    def __init__(self, folder, every: int | None = None, config: dict | None = None, resume=None,
                 require: bool = False, how_to_resume: str = ''):
        self.folder = Path(folder)
        self._same_folder = SameFolder(folder)
        self.every = every if every is None else integer('every', every, 1)
        self.config = config or {}
        self.resume, self.require = resume, require
        self.how_to_resume = how_to_resume
        self._writer = ThreadPoolExecutor(1, thread_name_prefix='checkpoint')
        self._written: Future | None = None
        self._problem = ''  # with the last checkpoint, if it could not be written
        self._last: Path | None = None
        self._training = False

    def train_begin(self, run: Run) -> None:
        """Give the network the values of the checkpoint to go on from, if there is one."""
        if run.workers.rank == 0:
            for name in ('checkpoint-', 'config.json', 'history.csv'):
                for unfinished in self.folder.glob(f'{name}*.part'):  # of a process that was killed
                    unfinished.unlink()
        if self.resume is None:
            return
        position = checkpoint.load(self.resume, run.net, run.trainer, run.warn, run.workers)
        try:
            run.restore(position['run'])
        except KeyError:
            raise CheckpointError(f'{self.resume}: it is not of a run') from None
        except ValueError as error:
            raise CheckpointError(f'{self.resume}: {error}') from None
        self._last = Path(self.resume)

    def epoch_begin(self, run: Run) -> None:
        """Note that the parameters change from here on."""
        self._training = True

    def batch_end(self, run: Run) -> None:
        """Write a checkpoint if it is time; end the run if a signal came."""
        _obey(run.workers.pending_signal())
        if self.every and run.num_steps % self.every == 0:
            self._save(run)

    def epoch_trained(self, run: Run) -> None:
        """Note that the parameters no longer change; end the run if a signal came."""
        self._training = False
        _obey(run.workers.exchange_signal())

    def epoch_end(self, run: Run) -> None:
        """Write a checkpoint if it is time, tell of one that could not be written, obey a signal."""
        complete = len(run.history) == run.num_epochs
        if complete or not self.every:
            self._save(run)
        if complete:
            self._finish()
        self._tell(run, self.require)
        signum = run.workers.exchange_signal()
        if not complete:
            _obey(signum)

    def train_end(self, run: Run) -> None:
        """Wait for the thread that writes."""
        self._finish()
        if self._problem:
            run.warn(self._problem)

    def stopped(self, run: Run, signum: int) -> Stopped:
        """Write a last checkpoint when a signal has ended the run, in training or in evaluation.

        Returns
        -------
        Stopped
            With a line that says how far the run has come and how to go on.
        """
        self._finish()
        if run.workers.on_rank_0(lambda: not (self._last and self._last.exists()
                                              and _steps(self._last) == run.num_steps)):
            self._save(run)
            self._finish()
        within = run.state()['num_batches']
        epoch = len(run.history) + bool(within)
        done = f'ended in epoch {epoch}, after {within} batches' if within else f'ended after epoch {epoch}'
        return Stopped(signum, f'{done}; {self._problem or "to go on: " + self.how_to_resume}')

    def _save(self, run: Run) -> None:
        """Copy what there is to the host and have it written. Waits for the devices and the checkpoint before."""
        if self._training:
            run.synchronize()  # in evaluation nothing changes, and to wait for its end may take long
        kept = checkpoint.snapshot(run.net, run.trainer, run.workers)
        _refuse_not_finite(run, kept)
        if run.workers.rank != 0:
            return
        self._finish()
        if self.require:
            self._tell(run, require=True)
        self._written = self._writer.submit(self._write, kept, {'run': run.state(), 'config': self.config})

    def _write(self, kept: Snapshot, position: dict) -> None:
        """Called in the thread."""
        num_steps = position['run']['num_steps']
        path = self.folder / f'checkpoint-{num_steps:08}.safetensors'
        self._same_folder.check()
        checkpoint.write(path, kept, position)
        self._last = path
        self._same_folder.check()  # once more: that was the long part
        for old in [other for other in checkpoints(self.folder) if _steps(other) < num_steps][KEPT - 1:]:
            old.unlink()

    def _finish(self) -> None:
        """Wait until the file is written, and note if it could not be."""
        if self._written is None:
            return
        error, self._written = self._written.exception(), None
        if error is not None and not isinstance(error, OSError):
            raise error
        self._problem = '' if error is None else (
            f'no checkpoint can be written in {self.folder} ({error.strerror or error}), the last one is '
            f'{self._last.name if self._last else "none"}')

    def _tell(self, run: Run, require: bool = False) -> None:
        problem, self._problem = self._problem, ''
        if problem and require:
            raise JobError(problem)
        if problem:
            run.warn(f'{problem}: training goes on')


def _steps(path: Path) -> int:
    found = NAME.fullmatch(path.name)
    return int(found[1]) if found else -1


def _obey(signum: int) -> None:
    if signum:
        raise Stopped(signum)


def _refuse_not_finite(run: Run, kept: Snapshot) -> None:
    """End the run rather than write a checkpoint that no run could go on from."""
    for name, arrays in kept.arrays.items():
        if not all(numpy.isfinite(array).all() for array in arrays):
            raise DivergenceError(f'{name.partition("/")[2]} is no longer finite in epoch {len(run.history) + 1}, '
                                  f'batch {run.num_batches}: all parameters must be; use a smaller learning rate')
