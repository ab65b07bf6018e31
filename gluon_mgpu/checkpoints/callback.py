"""Checkpoint callback: write checkpoints during a run, keep the last two, find the newest one."""
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


def checkpoints(folder, above: int = -1) -> list[Path]:
    """Return the checkpoints in a folder with more than `above` steps, newest first, without opening them."""
    return sorted((path for path in Path(folder).iterdir() if _steps(path) > above), key=_steps, reverse=True)


def newest(folder, log: Callable[[str], None]) -> tuple[Path | None, dict]:
    """Return the newest complete checkpoint in a folder and its position; (None, {}) if there is none.

    Logs a line for each checkpoint that is damaged or was renamed.
    """
    for path in checkpoints(folder):
        try:
            position = checkpoint.read(path)[0]['position']
        except CheckpointError as error:
            log(f'{error}; trying the previous checkpoint')
            continue
        if num_steps(position) in (None, _steps(path)):
            return path, position
        log(f'{path} was renamed, it is of step {num_steps(position)}; trying the previous checkpoint')
    return None, {}


def num_steps(position: dict) -> int | None:
    """Return the steps of the run at the position in a checkpoint; None if it is not a run's."""
    run = position.get('run')
    steps = run.get('num_steps') if isinstance(run, dict) else None
    return steps if isinstance(steps, int) else None


class CheckpointCallback(Callback):
    """Callback that writes checkpoints of a run, and can resume it from one.

    Waits for the devices, copies their state to the host, and writes the file in a background thread while training
    continues. If writing fails, training continues and warns once per epoch, unless `require` is set.

    When the run's `Workers` report a signal, the run ends with `Stopped`: after the current step, the same one on all
    workers, or during evaluation. Then call `stopped`.

    Parameters
    ----------
    folder : path-like
        An existing folder, where ``checkpoint-STEPS.safetensors`` are written.
    every : int, optional
        Steps between two checkpoints; another one is written when the run is complete. By default one per epoch.
    config : dict, optional
        Stored in each checkpoint, of JSON types.
    resume : path-like, optional
        The checkpoint to resume from.
    require : bool
        End the run with `JobError` if a checkpoint cannot be written.
    how_to_resume : str
        A command, for the message of `stopped`.
    """

    def __init__(self, folder, every: int | None = None, config: dict | None = None, resume=None,
                 require: bool = False, how_to_resume: str = ''):
        self.folder = Path(folder)
        self.every = every if every is None else integer('every', every, 1)
        self.config = config or {}
        self.resume, self.require, self.how_to_resume = resume, require, how_to_resume
        self._same_folder = SameFolder(folder)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix='checkpoint')
        self._written: Future | None = None
        self._problem = ''  # why the last checkpoint could not be written
        self._last: Path | None = None

    def train_begin(self, run: Run) -> None:
        """Remove unfinished files of a killed process, and load the checkpoint to resume from."""
        if run.workers.rank == 0:
            for name in ('checkpoint-', 'config.json', 'history.csv'):
                for unfinished in self.folder.glob(f'{name}*.part'):
                    unfinished.unlink()
        if self.resume is not None:
            position = checkpoint.load(self.resume, run.net, run.trainer, run.warn, run.workers)
            try:
                run.restore(position.get('run', {}))
            except ValueError as error:
                raise CheckpointError(f'{self.resume}: {error}') from None
            self._last = Path(self.resume)

    def batch_end(self, run: Run) -> None:
        """Stop if a signal came; write a checkpoint every `every` steps."""
        _stop_after(run.workers.pending_signal())
        if self.every and run.num_steps % self.every == 0:
            self._save(run)

    def epoch_trained(self, run: Run) -> None:
        """Stop if a signal came."""
        _stop_after(run.workers.exchange_signal())

    def epoch_end(self, run: Run) -> None:
        """Write the epoch's checkpoint, report a failed one, stop if a signal came."""
        complete = len(run.history) == run.num_epochs
        if complete or not self.every:
            self._save(run)
        if complete:
            self._wait_for_writer()
        self._report_problem(run)
        signum = run.workers.exchange_signal()
        if not complete:
            _stop_after(signum)

    def train_end(self, run: Run) -> None:
        """Wait for the background thread."""
        self._wait_for_writer()
        if self._problem:
            run.warn(self._problem)

    def stopped(self, run: Run, signum: int) -> Stopped:
        """Write a last checkpoint after a signal; return a `Stopped` that says how to resume."""
        self._wait_for_writer()
        if not run.workers.on_rank_0(
                lambda: self._last and self._last.exists() and _steps(self._last) == run.num_steps):
            self._save(run)
            self._wait_for_writer()
        num_batches = run.state()['num_batches']
        where = (f'in epoch {len(run.history) + 1} after {num_batches} batches' if num_batches
                 else f'after epoch {len(run.history)}')
        return Stopped(signum, f'stopped {where}; {self._problem or "resume with: " + self.how_to_resume}')

    def _save(self, run: Run) -> None:
        """Copy the state to the host and start writing it; waits for the devices and the previous checkpoint."""
        run.synchronize()
        snapshot = checkpoint.snapshot(run.net, run.trainer, run.workers)
        for name, arrays in snapshot.arrays.items():
            if not all(numpy.isfinite(array).all() for array in arrays):
                raise DivergenceError(f'{name.partition("/")[2]} is no longer finite in epoch {len(run.history) + 1}, '
                                      f'batch {run.num_batches}: use a smaller learning rate')
        if run.workers.rank != 0:
            return
        self._wait_for_writer()
        if self.require:
            self._report_problem(run)
        self._written = self._writer.submit(self._write, snapshot, {'run': run.state(), 'config': self.config})

    def _write(self, snapshot: Snapshot, position: dict) -> None:
        """Write a checkpoint and remove old ones, in the background thread."""
        steps = position['run']['num_steps']
        path = self.folder / f'checkpoint-{steps:08}.safetensors'
        self._same_folder.check()
        checkpoint.write(path, snapshot, position)
        self._last = path
        self._same_folder.check()  # again, because writing takes long
        for old in [other for other in checkpoints(self.folder) if _steps(other) < steps][KEPT - 1:]:
            old.unlink()

    def _wait_for_writer(self) -> None:
        if self._written is None:
            return
        written, self._written, self._problem = self._written, None, ''
        try:
            written.result()
        except OSError as error:
            last = f'the last one is {self._last.name}' if self._last else 'and there is no earlier one'
            self._problem = f'no checkpoint can be written in {self.folder} ({error.strerror or error}), {last}'

    def _report_problem(self, run: Run) -> None:
        problem, self._problem = self._problem, ''
        if problem and self.require:
            raise JobError(problem)
        if problem:
            run.warn(f'{problem}; training continues')


def _steps(path: Path) -> int:
    found = NAME.fullmatch(path.name)
    return int(found[1]) if found else -1


def _stop_after(signum: int) -> None:
    if signum:
        raise Stopped(signum)
