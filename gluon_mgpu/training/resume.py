"""To go on with a run in its own folder: what the folder holds, and whether a command still means the same run."""
from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .folder import write_whole
from .saver import checkpoints, newest

AUTO = 'auto'
# What would make it another run, and so is refused; what else differs goes on record
FIXED = {'dataset': '--dataset', 'train_size': '--train-size', 'batch_size': '--batch-size',
         'seed': '--seed', 'dtype': '--dtype'}
# What says nothing about the run itself
FREE = ('flags', 'out_dir', 'resume', 'process', 'resumed', 'quiet', 'no_plot', 'timeline', 'export', 'data_dir')


class Earlier(NamedTuple):
    """A run that can be taken up."""

    folder: Path
    config: dict
    checkpoint: Path | None  # the one to go on from; None if none was written


def earlier_run(resume: str, out_dir: str | None,
                say: Callable[[str], None] = lambda line: None) -> Earlier | None:
    """Find the run that ``--resume`` means; None if there is none yet.

    Parameters
    ----------
    resume : str
        ``'auto'``: the run in `out_dir`, if there is one. Else a folder of a run, or a checkpoint in one.
    out_dir : str or None
        As given on the command line.
    say : callable
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
        if not folder.is_dir() or not any(folder.iterdir()):
            return None
        config = _config(folder)
        return Earlier(folder, config, newest(folder, say))
    path = Path(resume)
    folder = path if path.is_dir() else path.parent
    if out_dir is not None and Path(out_dir).resolve() != folder.resolve():
        raise ValueError(f'--out-dir {out_dir} is not {folder}, and a run goes on in its own folder: leave it out')
    if path.is_dir():
        config, found = _config(folder), newest(folder, say)
        if found is None:
            raise ValueError(f'--resume {resume}: there is no whole checkpoint in it')
        return Earlier(folder, config, found)
    if not path.exists():
        raise ValueError(f"--resume {resume}: not there; 'auto', a run's folder or a checkpoint expected")
    config, newer = _config(folder), [other for other in checkpoints(folder) if other.name > path.name]
    if newer:
        raise ValueError(f'--resume {resume}: {newer[0].name} is newer and would be lost: move it elsewhere first')
    return Earlier(folder, config, path)


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
    write_whole(earlier.folder / 'config.json', [(json.dumps(config, indent=2) + '\n').encode()])


def _config(folder: Path) -> dict:
    try:
        config = json.loads((folder / 'config.json').read_text())
        if isinstance(config, dict) and 'chapter' in config:
            return config
        problem = 'it is not that of a run'
    except (OSError, ValueError) as error:
        problem = str(error)
    raise ValueError(f'{folder} is not the folder of a run, of its config.json: {problem}') from None
