"""The folder for the results of a program: a new or empty folder that no other program uses."""
from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from ..base.files import write_atomically


class FolderTakenError(ValueError):
    """The path exists and is not an empty folder."""


def check_free(path: str | os.PathLike | None) -> None:
    """Raise ValueError if `path` cannot become a new folder, FolderTakenError if it exists and is not empty.

    None stands for the default of `new_folder`, a new folder in ``runs/``. Creates nothing.
    """
    path = Path('runs/new' if path is None else path)
    if os.path.lexists(path) and (not path.is_dir() or not is_empty(path)):
        raise FolderTakenError(f'{path} is not an empty folder, and a run overwrites nothing: give another --out-dir')
    above = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not above.is_dir():  # a file or a broken link
        raise ValueError(f'{path} cannot be created because {above} is not a folder: remove it, or give another '
                         '--out-dir')


def is_empty(folder: str | os.PathLike) -> bool:
    """Return True if a folder holds nothing but unfinished files of a killed process."""
    return all(name.endswith('.part') for name in os.listdir(folder))


def new_folder(path: str | os.PathLike | None, program: str, record: str = 'config.json',
               content: dict | None = None) -> Path:
    """Create a folder, by default ``runs/PROGRAM-DATE-TIME``, and a first file in it with JSON content.

    The folder must be empty or not exist yet. The process that creates the file owns the folder, so two programs never
    share one. The file is complete as soon as it exists.
    """
    text = json.dumps(content or {}, indent=2) + '\n'
    if path is not None:
        return _claim(Path(path), record, text)
    default = f'runs/{program}-{time.strftime("%Y%m%d-%H%M%S")}'
    names = (f'{default}-{number}' if number > 1 else default for number in count(1))
    while True:
        with contextlib.suppress(FolderTakenError):
            return _claim(Path(next(names)), record, text)


def _claim(folder: Path, record: str, text: str) -> Path:
    check_free(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        write_atomically(folder / record, text.encode(), rename=_rename_if_free)
    except FileExistsError:  # another process was faster
        check_free(folder)
        raise
    return folder


def _rename_if_free(old: str, new: Path) -> None:
    """Rename a file; raise FileExistsError if the new name is taken."""
    try:
        os.link(old, new)
        os.unlink(old)
    except OSError:
        if new.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(new)) from None
        os.replace(old, new)  # a file system without hard links


@contextlib.contextmanager
def lock_folder(folder: str | os.PathLike) -> Iterator[None]:
    """Lock the folder of a run within the block or until the process ends.

    Raises ValueError if another process holds it. On network file systems, it may notice only those of this machine.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f'{folder} is in use by {_holder(Path(folder))}: wait until it ends, or give another '
                             '--out-dir') from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)


def this_process() -> dict[str, object]:
    """Return the process number, machine and time, for ``config.json``."""
    return {'pid': os.getpid(), 'host': platform.node(), 'since': time.strftime('%Y-%m-%d %H:%M:%S')}


def _holder(folder: Path) -> str:
    try:
        process = json.loads((folder / 'config.json').read_text())['process']
        return f'the run of process {process["pid"]} on {process["host"]} since {process["since"]}'
    except (OSError, ValueError, KeyError, TypeError):  # it has only just started
        return 'another run'
