"""The folder of a run: one program claims it, and writes its configuration and checkpoints there."""
from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from ..base.arguments import check_entries
from ..base.files import UNFINISHED, read_file, write_atomically
from ..base.program import warn
from .checkpoint import DamagedError, read

FILE_NAME = re.compile(r'checkpoint-(\d{8,})\.safetensors')
BEST = 'best.safetensors'
# Files of a killed process; others with such an end may be of the user, or of another program that is running
OWN_UNFINISHED = re.compile(rf'(config\.json|history\.csv|{re.escape(BEST)}|{FILE_NAME.pattern}){UNFINISHED}')


def check_free(path: str | os.PathLike | None) -> None:
    """Raise ValueError if `path` is something else than a missing or empty folder."""
    if path is not None and os.path.lexists(path) and not (os.path.isdir(path) and is_empty(path)):
        raise ValueError(f'{path} is not an empty folder, and a run overwrites nothing: give another --out-dir, or, to '
                         'resume the run in it, --resume auto')


def is_empty(folder: str | os.PathLike) -> bool:
    """Return True if a folder holds nothing but unfinished files of a killed process."""
    return all(map(OWN_UNFINISHED.fullmatch, os.listdir(folder)))


def new_folder(path: str | os.PathLike | None, program: str) -> Path:
    """Create a folder, by default ``runs/PROGRAM-DATE-TIME``, unless `path` exists."""
    if path is not None:
        Path(path).mkdir(parents=True, exist_ok=True)
        return Path(path)
    Path('runs').mkdir(exist_ok=True)
    while True:
        folder = Path(f'runs/{program}-{time.strftime("%Y%m%d-%H%M%S")}')
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
        time.sleep(1)  # another program has started in the same second


def claim_folder(path: str | os.PathLike | None, chapter: str, config: dict, stack: contextlib.ExitStack) -> Path:
    """Create the folder of a run, lock it until `stack` is closed, and write ``config.json``; see `new_folder`.

    Raises ValueError if another run uses it, or if it is not empty.
    """
    folder = new_folder(path, chapter)
    lock_folder(folder, stack)
    check_free(folder)  # only now, because another run may have claimed it in the meantime
    write_config(folder, config)
    return folder


def lock_folder(path: str | os.PathLike, stack: contextlib.ExitStack) -> None:
    """Lock a folder until `stack` is closed or the process ends; on a network, possibly for this machine only."""
    descriptor = os.open(path, os.O_RDONLY)
    stack.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        stack.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)  # processes that were forked have the descriptor as well
    except BlockingIOError:
        raise ValueError(f'{path} is in use by another run: wait until it ends, or use another folder') from None
    except OSError:  # a file system without locks
        pass


def write_config(folder: Path, config: dict) -> None:
    """Write the configuration of a run to ``config.json`` in its folder."""
    write_atomically(folder / 'config.json', (json.dumps(config, indent=2) + '\n').encode())


def read_config(folder: Path) -> dict:
    """Return the content of ``config.json``; raise ValueError if the folder is not that of a run."""
    try:
        config = json.loads(read_file(folder / 'config.json'))
        check_entries('configuration', config, {'chapter': str})
        return config
    except (OSError, ValueError):
        raise ValueError(f'{folder} is not the folder of a run: its config.json is missing or damaged') from None


def checkpoints(folder) -> list[Path]:
    """Return the checkpoints in a folder, newest first, by their names. Does not open them."""
    found = [path for path in Path(folder).iterdir() if steps_in_name(path) >= 0]
    return sorted(found, key=steps_in_name, reverse=True)


def steps_in_name(path: Path) -> int:
    """Return the number of steps in the name of a checkpoint; -1 for other files."""
    found = FILE_NAME.fullmatch(path.name)
    return int(found[1]) if found else -1


def newest_checkpoint(path: Path, warn: Callable[[str], None] = warn) -> tuple[Path | None, dict]:
    """Return a checkpoint and its metadata: the file `path`, or the newest complete one in the folder, or (None, {}).

    If a folder has no other, it is `BEST`. Calls `warn` for each one that is damaged.
    Raises CheckpointError for one that may be intact, but cannot be read.
    """
    if not path.is_dir():
        return path, read(path)[0]['metadata']
    for file in [*checkpoints(path), *path.glob(BEST)]:
        try:
            return file, read(file)[0]['metadata']
        except DamagedError as error:
            warn(f'{error}; skipped')
    return None, {}


def check_newest(folder: Path, steps: int) -> None:
    """Raise ValueError if a run from this step, or a new one from 0, would replace a checkpoint in the folder."""
    newest, _ = newest_checkpoint(folder, lambda line: None)
    if newest and (not steps or steps_in_name(newest) > steps):
        raise ValueError(f'{newest} would be lost: resume from it, or move it elsewhere first')
