"""Find checkpoints and runs: the newest checkpoint in a folder, the run to resume, the run to load."""
from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from ..base.program import BAD_INPUT, JobError, reason, warn
from ..parallel.workers import Workers
from . import checkpoint
from .file import CheckpointError, DamagedError
from .run_folder import is_empty, lock_folder

AUTO = 'auto'
FILE_NAME = re.compile(r'checkpoint-(\d{8,})\.safetensors')


def checkpoints(folder) -> list[Path]:
    """Return the checkpoints in a folder, newest first, by their names. Does not open them."""
    found = [path for path in Path(folder).iterdir() if steps_in_name(path) >= 0]
    return sorted(found, key=steps_in_name, reverse=True)


def steps_in_name(path: Path) -> int:
    """Return the number of steps in the name of a checkpoint; -1 for other files."""
    found = FILE_NAME.fullmatch(path.name)
    return int(found[1]) if found else -1


def newest_checkpoint(path: Path, warn: Callable[[str], None] = warn) -> tuple[Path | None, dict]:
    """Return a checkpoint and its metadata: the file `path`, or the newest complete one in the folder `path`.

    Returns (None, {}) if the folder has none. Calls `warn` with a line for each checkpoint there that is damaged or was
    renamed. Raises CheckpointError for one that may be intact, but cannot be read: a run from an earlier one would
    replace it.
    """
    if not path.is_dir():
        return path, checkpoint.read(path)[0]['metadata']
    for file in checkpoints(path):
        try:
            metadata = checkpoint.read(file)[0]['metadata']
        except DamagedError as error:
            warn(f'{error}; trying the previous checkpoint')
            continue
        if recorded_steps(metadata) in (None, steps_in_name(file)):  # None: not of a run; `resume.py` reports it
            return file, metadata
        warn(f'{file} was renamed: it was written at step {recorded_steps(metadata)}; trying the previous checkpoint')
    return None, {}


def run_to_load(path) -> tuple[Path, dict]:
    """Return the checkpoint `path`, or the newest complete one in the folder `path`, and its metadata.

    Raises CheckpointError if there is no complete checkpoint, if it is not from a chapter's run, or if the run in the
    folder recorded a later epoch, of which no checkpoint could be written.
    """
    found, metadata = newest_checkpoint(Path(path))
    if found is None:
        raise CheckpointError(f'{path}: no complete checkpoint was found; name the folder of a run')
    config = metadata.get('config')
    if not isinstance(config, dict) or config.get('chapter') not in ('scratch', 'concise'):
        raise CheckpointError(f'{found}: must be from a run of scratch or concise')
    if Path(path).is_dir() and recorded_steps(metadata) is not None:
        recorded = _num_rows(found.parent / 'history.csv')
        if recorded > len(metadata['run']['history']):
            raise CheckpointError(f'{path}: its newest complete checkpoint is {place_of(metadata)}, but history.csv '
                                  f'has {recorded} epochs; name {found} if you mean this one, or resume the run')
    return found, metadata


def place_of(metadata: dict) -> str:
    """Return how far the run of a checkpoint had come, such as ``'after epoch 3 of 10'``."""
    if recorded_steps(metadata) is None:
        return 'not of a run'
    epochs, batches = len(metadata['run']['history']), metadata['run']['num_batches']
    place = f'{batches} batches of epoch {epochs + 1}' if batches else f'epoch {epochs}'
    return f"after {place} of {metadata['config']['num_epochs']}"


def _num_rows(path: Path) -> int:
    """Return the number of rows below the header of a CSV file, 0 without a file."""
    try:
        return path.read_bytes().count(b'\n') - 1
    except OSError:
        return 0


class ResumedRun(NamedTuple):
    """A run that can be resumed."""

    folder: Path
    config: dict
    checkpoint: Path | None  # to resume from; None if none was written
    metadata: dict           # of the checkpoint: run state and configuration


def run_to_resume(resume: str, out_dir: str | None, stack: ExitStack) -> ResumedRun | None:
    """Return the run that ``--resume`` means; None for ``auto`` if there is no run in `out_dir` yet.

    `resume` is ``'auto'`` for the run in `out_dir`, the folder of a run, or a checkpoint in such a folder. `out_dir` is
    the value of ``--out-dir``. The folder stays locked until `stack` is closed.
    """
    if resume == AUTO:
        if out_dir is None:
            raise ValueError('--resume auto: give --out-dir as well, the folder of the run')
        path = folder = Path(out_dir)
        if not folder.is_dir() or is_empty(folder):
            return None
    else:
        path = Path(resume)
        folder = path if path.is_dir() else path.parent
        if not path.exists():
            raise ValueError(f"--resume {resume}: does not exist; give 'auto', the folder of a run or a checkpoint")
        if out_dir is not None and Path(out_dir).resolve() != folder.resolve():
            raise ValueError(f'--out-dir {out_dir}: a resumed run stays in its folder {folder}; leave --out-dir out')
    lock_folder(folder, stack)  # so that no other process writes there
    config = _read_config(folder)
    found, metadata = newest_checkpoint(path)
    if found is None and resume != AUTO:
        raise ValueError(f'--resume {resume}: there is no complete checkpoint in it')
    if found and recorded_steps(metadata) is None:
        raise ValueError(f'{found} is not a checkpoint of a run: move it elsewhere')
    if found and metadata.get('config', {}).get('run_id') != config.get('run_id'):
        raise ValueError(f'{found} is of another run: move it elsewhere, or name the folder that it is from')
    for newer in [] if path.is_dir() else checkpoints(folder):
        if steps_in_name(newer) > metadata['run']['num_steps'] and not newer.samefile(path):
            raise ValueError(f'--resume {resume}: {newer.name} is newer and would be lost; move it elsewhere first')
    return ResumedRun(folder, config, found, metadata)


def check_on_rank_0(resume: str, out_dir: str | None, workers: Workers) -> None:
    """Raise `JobError` if the run to resume is on the machine of another worker only, where rank 0 cannot read it."""
    path = Path(out_dir or '') if resume == AUTO else Path(resume)
    found = workers.allgather(path.is_file() or (path / 'config.json').exists())
    if any(found) and not found[0]:
        host = workers.hosts[found.index(True)]
        raise JobError(f'--resume {resume}: {path} is on {host} and not on {workers.hosts[0]}, where worker 0 reads '
                       f'and writes it; start worker 0 on {host}, or share or copy the folder', BAD_INPUT,
                       on_all_ranks=True)


def recorded_steps(metadata: dict) -> int | None:
    """Return the number of training steps in a checkpoint's metadata; None if it is not of a `Run`."""
    run = metadata.get('run')
    return run.get('num_steps') if isinstance(run, dict) else None


def _read_config(folder: Path) -> dict:
    try:
        config = json.loads((folder / 'config.json').read_text())
        if (isinstance(config, dict) and isinstance(config.get('chapter'), str)
                and isinstance(config.get('resumed', []), list)):
            return config
        problem = 'its config.json is not that of a run'
    except (OSError, ValueError) as error:
        problem = f'config.json cannot be read, {reason(error)}'
    raise ValueError(f'{folder} is not the folder of a run ({problem})') from None
