"""Checkpoint callback: write checkpoints during a run and keep the last two."""
from __future__ import annotations

import contextlib
from pathlib import Path

from ..base.arguments import integer
from ..base.program import Stopped, reason
from ..base.text import counted
from ..training.callback import Callback, epochs_since_best
from ..training.epoch import place_of
from ..training.parameters import not_in_trainer
from ..training.run import Run
from . import checkpoint
from .checkpoint import CheckpointError
from .run_folder import BEST, OWN_UNFINISHED, check_newest, checkpoints, lock_folder, steps_in_name

NUM_KEPT = 2


class CheckpointCallback(Callback):
    """Callback that writes checkpoints of a run, and can resume it from one.

    For each checkpoint, it waits for the devices, copies the state to CPU memory and writes the file. If that fails,
    training continues, with a warning before the next epoch or at the end. After `Stopped`, call `save_on_stop`.
    Until the run ends, other processes cannot use the folder.

    Parameters
    ----------
    folder : path-like
        An existing folder for the files ``checkpoint-STEPS.safetensors``, needed on rank 0 only.
    every : int, optional
        Write a checkpoint every `every` steps, and when the run is complete; by default, after every epoch.
    config : dict, optional
        JSON-serializable configuration of the run, to be stored in each checkpoint.
    resume : path-like, optional
        The checkpoint to resume from. If the folder has a newer one, the run ends with an error.
    keep_best : bool
        Also write `BEST` after each epoch with a better accuracy than all before.

    Attributes
    ----------
    resume_command : str
        Command that resumes or starts the run, for the message of `save_on_stop`.
    last : Path or None
        The newest complete checkpoint, on rank 0.
    problem : str
        Why a newer one could not be written, if no warning has said so yet; otherwise ''.
    is_locked : bool
        The program has locked the folder itself.
    """

    def __init__(self, folder, every: int | None = None, config: dict | None = None, resume=None,
                 keep_best: bool = False):
        self.folder = Path(folder)
        self.every = every if every is None else integer('every', every, minimum=1)
        self.config = config or {}
        self.resume, self.keep_best = resume, keep_best
        self.resume_command = self.problem = ''
        self.last: Path | None = None
        self.is_locked = False
        self._lock = contextlib.ExitStack()

    def train_begin(self, run: Run) -> None:
        """Lock the folder, and load the checkpoint; ValueError if the folder is of another run."""
        run.workers.on_rank_0(self._prepare_folder)  # other machines may not have it
        if others := not_in_trainer(run.net, run.trainer):
            run.warn(f"run.epochs got no Trainer of {others[0]}: checkpoints will not have the optimizer's state of "
                     f"{counted(len(others), 'parameter')}; use one Trainer for all, or grad_req 'null' for those that "
                     'stay')
        if self.resume is not None:
            metadata = checkpoint.load(self.resume, run.net, run.trainer, run.warn, run.workers)
            try:
                run.restore(metadata.get('run', {}))
            except ValueError as error:
                raise CheckpointError(f'{self.resume}: {error}') from None
            self.last = Path(self.resume)
        run.workers.on_rank_0(lambda: check_newest(self.folder, run.num_steps))

    def _prepare_folder(self) -> None:
        """Lock the folder, and remove the files of a killed process."""
        if not self.is_locked:
            lock_folder(self.folder, self._lock)
        for path in [path for path in self.folder.iterdir() if OWN_UNFINISHED.fullmatch(path.name)]:
            with contextlib.suppress(OSError):
                path.unlink()

    def epoch_begin(self, run: Run) -> None:
        if self.problem:
            run.warn(f'{self.problem}; the run continues')
        self.problem = ''

    def batch_end(self, run: Run) -> None:
        if self.every and run.num_steps % self.every == 0:
            self._save(run)

    def epoch_end(self, run: Run) -> None:
        """Write a checkpoint if the run is complete, `every` is None, or the epoch is the best one to be kept."""
        is_best = self.keep_best and not epochs_since_best(run.history)
        if run.complete or not self.every or is_best:
            self._save(run, is_best)

    def train_end(self, run: Run) -> None:
        """Unlock the folder, and report a problem with the last checkpoint."""
        self._lock.close()
        if self.problem:
            run.warn(self.problem)

    def save_on_stop(self, run: Run, signum: int) -> Stopped:
        """Write a last checkpoint, unless no batch was trained, and return a `Stopped` that says how to resume."""
        if run.num_steps:  # before the first batch, the network may have no parameters yet
            self._save(run)
        # Workers above rank 0 know no checkpoint; their line is not printed
        can_resume = self.resume_command and (self.last or not run.num_steps)
        advice = f'resume with: {self.resume_command}' if can_resume else ''
        return Stopped(signum, '; '.join(filter(None, (f'stopped {place_of(run.state())}', self.problem, advice))))

    def _save(self, run: Run, is_best: bool = False) -> None:
        """Wait for the devices, and write a checkpoint; a failure is reported later."""
        run.synchronize()
        run.check_finite(place_of(run.state()))
        snapshot = checkpoint.snapshot(run.net, run.trainer, run.workers)
        if run.workers.rank != 0:
            return
        problem, metadata = '', {'run': run.state(), 'config': self.config}
        # The best one first, for a run that is killed in between
        for name in [BEST] * is_best + [f'checkpoint-{run.num_steps:08}.safetensors']:
            try:
                checkpoint.write(self.folder / name, snapshot, metadata)
            except OSError as error:
                problem = f'{self.folder / name} cannot be written ({reason(error)})'
            else:
                self.last = self.last if name == BEST else self.folder / name
        last = f'the newest one is {self.last.name}' if self.last else 'there is no earlier one'
        self.problem = problem and f'{problem}; {last}'
        if not problem:
            self._remove_older(run.num_steps)

    def _remove_older(self, steps: int) -> None:
        """Keep `NUM_KEPT` checkpoints up to that of a step. Those of later steps are damaged or renamed: leave them."""
        older = [path for path in checkpoints(self.folder) if steps_in_name(path) <= steps]
        for path in older[NUM_KEPT:]:
            with contextlib.suppress(OSError):  # the next checkpoint tries again
                path.unlink()
