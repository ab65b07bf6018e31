"""Checkpoint callback: write checkpoints during a run and keep the last two; find the newest in a folder."""
from __future__ import annotations

import contextlib
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
from .checkpoint import CheckpointError
from .file import DamagedError, Snapshot

NUM_KEPT = 2
FILE_NAME = re.compile(r'checkpoint-(\d{8,})\.safetensors')


def checkpoints(folder, above: int = -1) -> list[Path]:
    """Return the checkpoints in a folder written after more than `above` steps, newest first. Does not open them."""
    found = [path for path in Path(folder).iterdir() if steps_in_name(path) > above]  # -1 for other files
    return sorted(found, key=steps_in_name, reverse=True)


def find_checkpoint(path: Path, log: Callable[[str], None]) -> tuple[Path | None, dict]:
    """Return a checkpoint and its metadata: the file `path`, or the newest complete one in the folder `path`.

    Returns (None, {}) if the folder has none. Logs a line for each checkpoint there that is damaged or was renamed.
    Raises CheckpointError for one that may be intact, but cannot be read: a run from an earlier one would replace it.
    """
    if not path.is_dir():
        return path, checkpoint.read(path)[0]['metadata']
    for file in checkpoints(path):
        try:
            metadata = checkpoint.read(file)[0]['metadata']
        except DamagedError as error:
            log(f'{error}; trying the previous checkpoint')
            continue
        if recorded_steps(metadata) in (None, steps_in_name(file)):  # None: not of a run; `resume.py` reports it
            return file, metadata
        log(f'{file} was renamed: it was written at step {recorded_steps(metadata)}; trying the previous checkpoint')
    return None, {}


def recorded_steps(metadata: dict) -> int | None:
    """Return the number of training steps in a checkpoint's metadata; None if it is not of a `Run`."""
    run = metadata.get('run')
    steps = run.get('num_steps') if isinstance(run, dict) else None
    return steps if isinstance(steps, int) else None


class CheckpointCallback(Callback):
    """Callback that writes checkpoints of a run, and can resume it from one.

    For each checkpoint, it waits for the devices and for the previous file, copies the state to CPU memory, and writes
    the file in a background thread while training continues. If writing fails, training continues, with a warning at
    the end of the epoch if the newest file could not be written; with `require`, the run ends.

    After a signal to any worker, such as Ctrl-C, all workers raise `Stopped` at the same point: after a batch (with
    several workers, possibly a few batches later), or before, during or after an evaluation. The caller then calls
    `save_on_stop`, which writes a last checkpoint. A signal after the last evaluation is ignored: the run is complete.

    Parameters
    ----------
    folder : path-like
        An existing folder for the files ``checkpoint-STEPS.safetensors``, needed on rank 0 only.
    every : int, optional
        Write a checkpoint every `every` steps, and when the run is complete; by default, after every epoch.
    config : dict, optional
        JSON-serializable configuration of the run, to be stored in each checkpoint.
    resume : path-like, optional
        The checkpoint to resume from.
    require : bool
        End the run with `JobError` if a checkpoint cannot be written.
    resume_command : str
        Command that resumes the run, for the message of `save_on_stop`.
    """

    def __init__(self, folder, every: int | None = None, config: dict | None = None, resume=None,
                 require: bool = False, resume_command: str = ''):
        self.folder = Path(folder)
        self.every = every if every is None else integer('every', every, minimum=1)
        self.config = config or {}
        self.resume, self.require, self.resume_command = resume, require, resume_command
        # Never shut down, because `save_on_stop` writes after `train_end`
        self._writer = ThreadPoolExecutor(1, thread_name_prefix='checkpoint')
        self._pending_write: Future | None = None
        self._problem = ''              # why the last checkpoint could not be written, until reported
        self._last: Path | None = None  # newest complete checkpoint

    def train_begin(self, run: Run) -> None:
        """Remove the temporary files of a killed process, and load the checkpoint to resume from.

        Raises ValueError if there is none to resume from, and the folder has a checkpoint of another run.
        """
        if run.workers.rank == 0:  # other machines may not have the folder
            self._same_folder = SameFolder(self.folder)
            for name in ('checkpoint-', 'config.json', 'history.csv'):
                for unfinished in self.folder.glob(f'{name}*.part'):
                    unfinished.unlink()
        if self.resume is None:
            other = run.workers.on_rank_0(lambda: find_checkpoint(self.folder, lambda line: None)[0])
            if other:
                raise ValueError(f'{other} is of an earlier run: resume from it, or choose another folder')
        else:
            metadata = checkpoint.load(self.resume, run.net, run.trainer, run.warn, run.workers)
            try:
                run.restore(metadata.get('run', {}))
            except ValueError as error:
                raise CheckpointError(f'{self.resume}: {error}') from None
            self._last = Path(self.resume)

    def batch_end(self, run: Run) -> None:
        """Stop after a signal; write a checkpoint every `every` steps."""
        _raise_if_signaled(run.workers.pending_signal())
        if self.every and run.num_steps % self.every == 0:
            self._save(run)

    def epoch_trained(self, run: Run) -> None:
        """Stop after a signal."""
        _raise_if_signaled(run.workers.exchange_signal())

    def epoch_end(self, run: Run) -> None:
        """Write a checkpoint if the run is complete or `every` is None; report a failed one; stop after a signal."""
        complete = len(run.history) == run.num_epochs
        if complete or not self.every:
            self._save(run)
        if complete:
            self._wait_for_writer()
        self._report_problem(run)
        signum = run.workers.exchange_signal()  # also if complete, so that all workers wait for the file of rank 0
        if not complete:  # otherwise the signal is too late
            _raise_if_signaled(signum)

    def train_end(self, run: Run) -> None:
        """Wait for the background thread; warn if the last checkpoint could not be written."""
        self._wait_for_writer()
        if self._problem:
            run.warn(self._problem)

    def save_on_stop(self, run: Run, signum: int) -> Stopped:
        """Write a last checkpoint, unless this step has one; return a `Stopped` that says how to resume."""
        self._wait_for_writer()
        # Only rank 0 has written files; on_rank_0 broadcasts its answer
        if not run.workers.on_rank_0(
                lambda: self._last and self._last.exists() and steps_in_name(self._last) == run.num_steps):
            self._save(run)
            self._wait_for_writer()
        # Workers above rank 0 know no checkpoint; their line is not printed
        advice = f'resume with: {self.resume_command}' if self.resume_command and self._last else ''
        return Stopped(signum, '; '.join(filter(None, (f'stopped {_place(run)}', self._problem, advice))))

    def _save(self, run: Run) -> None:
        """Copy the state to CPU memory and start writing it; waits for the devices and the previous checkpoint."""
        run.synchronize()
        snapshot = checkpoint.snapshot(run.net, run.trainer, run.workers)
        for name, arrays in snapshot.arrays.items():
            # `arrays` is one copy for all devices, or one per device if they differ
            if not all(numpy.isfinite(array).all() for array in arrays):
                name = name.partition('/')[2]  # without 'parameters/' or 'states/'
                raise DivergenceError(f'{name} is no longer finite {_place(run)}: use a smaller learning rate')
        if run.workers.rank != 0:
            return
        self._wait_for_writer()
        if self.require:
            self._report_problem(run)
        self._pending_write = self._writer.submit(self._write, snapshot, {'run': run.state(), 'config': self.config})

    def _write(self, snapshot: Snapshot, metadata: dict) -> None:
        """Write a checkpoint and remove old ones; runs in the background thread."""
        steps = metadata['run']['num_steps']
        path = self.folder / f'checkpoint-{steps:08}.safetensors'
        self._same_folder.check()
        checkpoint.write(path, snapshot, metadata)
        self._last = path
        self._same_folder.check()  # again, because writing takes time
        # Keep this file and those before it, NUM_KEPT in all. Files with more steps are damaged or renamed; leave them
        older = [other for other in checkpoints(self.folder) if steps_in_name(other) < steps]
        for other in older[NUM_KEPT - 1:]:
            with contextlib.suppress(OSError):  # the next checkpoint tries again
                other.unlink()

    def _wait_for_writer(self) -> None:
        if self._pending_write is None:
            return
        write, self._pending_write = self._pending_write, None
        self._problem = ''
        try:
            write.result()
        except OSError as error:
            last = f'the newest one is {self._last.name}' if self._last else 'there is no earlier one'
            self._problem = f'cannot write a checkpoint to {self.folder} ({error.strerror or error}); {last}'

    def _report_problem(self, run: Run) -> None:
        problem, self._problem = self._problem, ''
        if problem and self.require:
            raise JobError(problem)
        if problem:
            run.warn(f'{problem}; the run continues')


def steps_in_name(path: Path) -> int:
    """Return the number of steps in the name of a checkpoint; -1 for other files."""
    found = FILE_NAME.fullmatch(path.name)
    return int(found[1]) if found else -1


def _place(run: Run) -> str:
    """Return how far a run has come, such as ``'in epoch 2 after 17 batches'``."""
    num_batches = run.state()['num_batches']
    if num_batches:
        return f'in epoch {len(run.history) + 1} after {num_batches} batches'
    return f'after epoch {len(run.history)}'


def _raise_if_signaled(signum: int) -> None:
    if signum:
        raise Stopped(signum)
