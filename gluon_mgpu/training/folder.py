"""The folder that a program leaves its results in: a new one, and no other program's."""
from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import time
import uuid
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import BinaryIO


def check_free(path: str | os.PathLike | None) -> None:
    """Refuse a path that cannot become a new folder; makes nothing.

    Raises
    ------
    ValueError
        If there is something in it already, it is no folder, or it would be in something that is none.
    """
    if path is not None and os.path.lexists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise _taken(Path(path))
    above = next((folder for folder in Path(path).absolute().parents if folder.exists()), None) if path else None
    if above and not above.is_dir():
        raise ValueError(f'{path} cannot be made: {above} is no folder')


def new_folder(path: str | os.PathLike | None, program: str, record: str = 'config.json',
               content: dict | None = None) -> Path:
    """Make the folder for what a program leaves, and the first file in it.

    Parameters
    ----------
    path : path-like, optional
        A folder that is not there yet or is empty; by default one in ``runs/``, named by the program and the time.
    program : str
        The program's name.
    record : str
        The name of the file. Whoever makes it has the folder: two programs never share one.
    content : dict, optional
        What is written there, as JSON.

    Returns
    -------
    Path

    Raises
    ------
    ValueError
        If there is something in `path` already.
    OSError
        If the folder cannot be made.
    """
    named = path is not None
    default = f'runs/{program}-{time.strftime("%Y%m%d-%H%M%S")}'
    for number in count(1):
        folder = Path(path) if path is not None else Path(default + (f'-{number}' if number > 1 else ''))
        try:
            check_free(folder)
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / record, 'x') as file:
                file.write(json.dumps(content or {}, indent=2) + '\n')
            return folder
        except (FileExistsError, ValueError):  # another run's
            if named:
                raise _taken(folder) from None
    raise AssertionError('count() never ends')


@contextlib.contextmanager
def hold(folder: str | os.PathLike) -> Iterator[None]:
    """Keep the folder of a run for this process while the block runs, so that no two runs write into it.

    Parameters
    ----------
    folder : path-like
        It must be there. It is free again at the latest when the process ends, however that may be.

    Raises
    ------
    ValueError
        If another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f'{folder} is in use by {_holder(Path(folder))}: wait until that ends, or give '
                             'another --out-dir') from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)


def this_process() -> dict[str, object]:
    """What tells this process from others, for ``config.json``."""
    return {'pid': os.getpid(), 'host': platform.node(), 'since': time.strftime('%Y-%m-%d %H:%M:%S')}


def _holder(folder: Path) -> str:
    try:
        process = json.loads((folder / 'config.json').read_text())['process']
        return f'the run of process {process["pid"]} on {process["host"]} since {process["since"]}'
    except (OSError, ValueError, KeyError, TypeError):  # it has only just begun
        return 'another run'


def write_whole(path: str | os.PathLike, pieces: Iterable) -> None:
    """Write a file atomically, safe against crashes and power cuts: write a second file, sync it, then rename it.

    Parameters
    ----------
    path : path-like
        The file, which stays as it was if anything fails. A symbolic link stays one: its target is written.
    pieces : iterable of bytes
        The content.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, 'not a regular file', str(path))  # renaming would replace a FIFO or a device
    with _open_beside(path) as file:
        try:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(file.name)
            raise
    with contextlib.suppress(OSError):  # the new name, too; some file systems cannot
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _open_beside(path: Path) -> BinaryIO:
    """Open ``PATH.part`` for writing, or a name of its own if another process or thread is writing that file."""
    file = open(f'{path}.part', 'ab')  # noqa: SIM115, the caller closes it
    if _lock(file):
        file.truncate(0)  # left by a process that was killed
        return file
    file.close()
    return open(f'{path}.{uuid.uuid4().hex[:8]}.part', 'xb')


def _lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(file.name))
    except FileNotFoundError:  # the other process has renamed it meanwhile
        return False


def _taken(path: Path) -> ValueError:
    return ValueError(f'{path} is not an empty folder, and a run overwrites nothing: give another --out-dir')
