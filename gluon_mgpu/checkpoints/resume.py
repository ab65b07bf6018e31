"""Resume a run: find its folder and checkpoint, and check that the flags still match."""
from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from ..base.files import write_atomically
from ..base.program import BAD_INPUT, JobError
from ..distributed.workers import Workers
from .callback import checkpoints, find_checkpoint, recorded_steps
from .run_folder import is_empty, lock_folder

AUTO = 'auto'
# Settings that a resumed run must keep, and their flags. Changes of other settings are recorded in its config.json
FIXED = {'dataset': '--dataset', 'train_size': '--train-size', 'batch_size': '--batch-size',
         'seed': '--seed', 'dtype': '--dtype', 'momentum': '--momentum', 'sync_batch_norm': '--sync-batch-norm'}
ROWS = {'train_digest': 'training', 'test_digest': 'test'}  # the digests of the datasets
# Settings that do not affect training, so that changes are not worth a note
FREE = ('out_dir', 'resume', 'process', 'resumed', 'quiet', 'no_plot', 'timeline', 'export', 'data_dir', *ROWS)


class ResumedRun(NamedTuple):
    """A run that can be resumed."""

    folder: Path
    config: dict
    checkpoint: Path | None  # to resume from; None if none was written
    metadata: dict           # of the checkpoint: run state and configuration


def find_resumed_run(resume: str, out_dir: str | None, stack: ExitStack,
                     log: Callable[[str], None]) -> ResumedRun | None:
    """Return the run that ``--resume`` means; None for ``auto`` if there is no run in `out_dir` yet.

    `resume` is ``'auto'`` for the run in `out_dir`, the folder of a run, or a checkpoint in such a folder. `out_dir` is
    the value of ``--out-dir``. The folder stays locked until `stack` is closed. `log` gets a line for each damaged or
    renamed checkpoint.
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
    stack.enter_context(lock_folder(folder))  # so that no other process writes there
    config = _read_config(folder)
    found, metadata = find_checkpoint(path, log)
    if found:
        _check_checkpoint(found, metadata, config)
    elif resume != AUTO:
        raise ValueError(f'--resume {resume}: there is no complete checkpoint in it')
    newer = [] if path.is_dir() else [
        other for other in checkpoints(folder, above=recorded_steps(metadata) or 0) if not other.samefile(path)]
    if newer:
        raise ValueError(f'--resume {resume}: {newer[0].name} is newer and would be lost; move it elsewhere first')
    return ResumedRun(folder, config, found, metadata)


def check_on_rank_0(resume: str, out_dir: str | None, workers: Workers) -> None:
    """Raise `JobError` if the run to resume is on the machine of another worker only, where rank 0 cannot read it."""
    path = Path(out_dir or '') if resume == AUTO else Path(resume)
    found = workers.allgather(path.is_file() or (path / 'config.json').exists())
    if any(found) and not found[0]:
        host, other = workers.hosts[0], workers.hosts[found.index(True)]
        raise JobError(f'--resume {resume}: {path} is on {other} and not on {host}, where worker 0 reads and writes '
                       f'it; start worker 0 on {other}, or share or copy the folder', BAD_INPUT, on_all_ranks=True)


def _check_checkpoint(path: Path, metadata: dict, config: dict) -> None:
    """Raise ValueError if a checkpoint is not of the run with this configuration."""
    saved = metadata.get('config', {})
    if recorded_steps(metadata) is None or not isinstance(saved, dict):
        raise ValueError(f'{path} is not a checkpoint of a run: move it elsewhere')
    for name in ('chapter', *FIXED, *ROWS):
        if saved.get(name) != config.get(name):
            raise ValueError(f'{path} is of another run ({name} {saved.get(name)}, not {config.get(name)}): move it '
                             'elsewhere, or name the folder that it is from')


def check_same_run(before: dict, now: dict) -> None:
    """Raise ValueError if the settings in `now`, possibly not all of them, would make it another run."""
    for name, flag in FIXED.items():
        if name in now and now[name] != before.get(name):
            raise ValueError(f'{flag} {now[name]}: the run to resume has {before.get(name)}; leave {flag} out, or '
                             'start a new run')
    for name, rows in ROWS.items():
        if before.get(name) and now.get(name, before[name]) != before[name]:
            raise ValueError(f'the {rows} images or labels differ from those of the run to resume: give the folder '
                             'with the same data as --data-dir, or start a new run')


def record_resume(resumed: ResumedRun, now: dict) -> dict[str, list]:
    """Write the new configuration `now` of a resumed run into its ``config.json``, with a note of what has changed.

    Returns the settings that have changed, as ``{name: [before, now]}``. Raises ValueError if it would be another run.
    """
    before = resumed.config
    check_same_run(before, now)
    changed = {name: [before.get(name), now.get(name)] for name in {**before, **now}
               if name not in FREE and before.get(name) != now.get(name)}
    note = {'from': resumed.checkpoint.name if resumed.checkpoint else None,
            'time': time.strftime('%Y-%m-%d %H:%M:%S'), 'changed': changed}
    config = {**now, 'resumed': [*before.get('resumed', []), note]}
    write_atomically(resumed.folder / 'config.json', (json.dumps(config, indent=2) + '\n').encode())
    return changed


def _read_config(folder: Path) -> dict:
    try:
        config = json.loads((folder / 'config.json').read_text())
        if (isinstance(config, dict) and isinstance(config.get('chapter'), str)
                and isinstance(config.get('resumed', []), list)):
            return config
        problem = 'its config.json is not that of a run'
    except (OSError, ValueError) as error:
        problem = f'config.json cannot be read, {getattr(error, "strerror", None) or error}'
    raise ValueError(f'{folder} is not the folder of a run ({problem})') from None
