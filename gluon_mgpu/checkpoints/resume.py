"""To go on with a run in its own folder: what the folder holds, and whether a command still means the same run."""
from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..base.files import write_atomically
from . import checkpoint
from .callback import checkpoints, newest_position, num_steps
from .run_folder import is_empty

AUTO = 'auto'
# What would make it another run, and so is refused; what else differs goes on record
FIXED = {'dataset': '--dataset', 'train_size': '--train-size', 'batch_size': '--batch-size',
         'seed': '--seed', 'dtype': '--dtype'}
ROWS = {'training_rows': 'training', 'test_rows': 'test'}  # the digests of the datasets
# What says nothing about the run itself
FREE = ('flags', 'out_dir', 'resume', 'process', 'resumed', 'quiet', 'no_plot', 'timeline', 'export', 'data_dir', *ROWS)


class Earlier(NamedTuple):
    """A run that can be taken up."""

    folder: Path
    config: dict
    checkpoint: Path | None  # the one to go on from; None if none was written
    position: dict           # what is in it about the run


def earlier_run(resume: str, out_dir: str | None,
                log: Callable[[str], None] = lambda line: None) -> Earlier | None:
    """Find the run that ``--resume`` means; None if there is none yet.

    Parameters
    ----------
    resume : str
        ``'auto'``: the run in `out_dir`, if there is one. Else a folder of a run, or a checkpoint in one.
    out_dir : str or None
        As given on the command line.
    log : callable
        Is told in one line of each checkpoint that is passed over.

    Raises
    ------
    ValueError
        If there is no such run, no checkpoint, or a newer one than that named.
    """
    if resume == AUTO:
        if out_dir is None:
            raise ValueError('--resume auto goes on with the run in --out-dir: give --out-dir, too')
        folder = Path(out_dir)
        if not folder.is_dir() or is_empty(folder):
            return None
        return _earlier(folder, *newest_position(folder, log))
    path = Path(resume)
    folder = path if path.is_dir() else path.parent
    if out_dir is not None and Path(out_dir).resolve() != folder.resolve():
        raise ValueError(f'--out-dir {out_dir} is not {folder}, and a run goes on in its own folder: leave it out')
    if path.is_dir():
        _config(folder)
        found, position = newest_position(folder, log)
        if found is None:
            raise ValueError(f'--resume {resume}: there is no whole checkpoint in it')
        return _earlier(folder, found, position)
    if not path.exists():
        raise ValueError(f"--resume {resume}: not there; 'auto', a run's folder or a checkpoint expected")
    _config(folder)
    position = checkpoint.read(path)[0]['position']
    earlier = _earlier(folder, path, position)
    newer = [other for other in checkpoints(folder, above=num_steps(position)) if not other.samefile(path)]
    if newer:
        raise ValueError(f'--resume {resume}: {newer[0].name} is newer and would be lost: move it elsewhere first')
    return earlier


def _earlier(folder: Path, found: Path | None, position: dict) -> Earlier:
    """Return the run in a folder, once it is known that the checkpoint is one of it."""
    config, theirs = _config(folder), position.get('config', {})
    if not found:
        return Earlier(folder, config, None, {})
    if num_steps(position) is None or not isinstance(theirs, dict):
        raise ValueError(f'{found} is not a checkpoint of a run: move it elsewhere')
    for name in ('chapter', *FIXED, *ROWS):
        if theirs.get(name) != config.get(name):
            raise ValueError(f'{found} is of another run ({name} {theirs.get(name)}, not {config.get(name)}): move it '
                             'elsewhere, or name the folder that it is from')
    return Earlier(folder, config, found, position)


def differences(before: dict, now: dict) -> dict[str, list]:
    """Return what differs between two configurations of a run, as ``{name: [before, now]}``.

    Raises
    ------
    ValueError
        If the difference makes it another run.
    """
    differing = {name: [before.get(name), now.get(name)] for name in {**before, **now}
                 if name not in FREE and before.get(name) != now.get(name)}
    check_same_run(before, now)
    return differing


def check_same_run(before: dict, now: dict) -> None:
    """Refuse what would make it another run.

    Parameters
    ----------
    before, now : dict
        The run's configuration, and the present one, or as much of it as is known.

    Raises
    ------
    ValueError
        Naming the flag that differs.
    """
    for name, flag in FIXED.items():
        if name in now and now[name] != before.get(name):
            raise ValueError(f'{flag} {now[name]} differs from that of the run, {before.get(name)}: a resumed run has '
                             'the same; leave it out, or begin another run')
    for name, rows in ROWS.items():
        if before.get(name) and now.get(name, before[name]) != before[name]:
            raise ValueError(f'the {rows} images or labels differ from those of the run: name the folder of the same '
                             'data with --data-dir, or begin another run')


def record(earlier: Earlier, now: dict, changed: dict[str, list]) -> None:
    """Write the configuration that a run goes on with into its ``config.json``, and what was different before.

    Parameters
    ----------
    earlier : Earlier
        The run that goes on.
    now : dict
        Its configuration from here on.
    changed : dict of str to list
        As from `differences`.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    note = {'from': earlier.checkpoint.name if earlier.checkpoint else None,
            'time': time.strftime('%Y-%m-%d %H:%M:%S'), 'changed': changed}
    config = {**now, 'resumed': [*earlier.config.get('resumed', []), note]}
    write_atomically(earlier.folder / 'config.json', [(json.dumps(config, indent=2) + '\n').encode()])


def _config(folder: Path) -> dict:
    try:
        config = json.loads((folder / 'config.json').read_text())
        if isinstance(config, dict) and isinstance(config.get('chapter'), str) and isinstance(
                config.get('flags', {}), dict) and isinstance(config.get('resumed', []), list):
            return config
        problem = 'it is not that of a run'
    except (OSError, ValueError) as error:
        problem = str(error)
    raise ValueError(f'{folder} is not the folder of a run, of its config.json: {problem}') from None
