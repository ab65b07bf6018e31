"""The folder that a program leaves its results in: a new one, and no other program's."""
from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import secrets
import time
import uuid
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import BinaryIO


class FolderTakenError(ValueError):
    """A folder that holds something already."""


def check_free(path: str | os.PathLike | None) -> None:
    """Refuse a path that cannot become a new folder. Creates nothing.

    Parameters
    ----------
    path : path-like or None
        None means a new folder in ``runs/``, the default of `new_folder`.

    Raises
    ------
    FolderTakenError
        If `path` is a folder that is not empty, or is not a folder.
    ValueError
        If a folder above it is not a folder, but a file or a broken link.
    """
    path = Path('runs/new' if path is None else path)
    if os.path.lexists(path) and (not path.is_dir() or not is_empty(path)):
        raise FolderTakenError(f'{path} is not an empty folder, and a run overwrites nothing: give another --out-dir')
    above = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not above.is_dir():
        raise ValueError(f'{path} cannot be created because {above} is not a folder: remove it, or give another '
                         '--out-dir')


def is_empty(folder: str | os.PathLike) -> bool:
    """Return whether a folder holds nothing, apart from unfinished files that a killed process has left."""
    return all(name.endswith('.part') for name in os.listdir(folder))


def new_folder(path: str | os.PathLike | None, program: str, record: str = 'config.json',
               content: dict | None = None) -> Path:
    """Create the folder for the results of a program, and the first file in it.

    Parameters
    ----------
    path : path-like, optional
        A folder that does not exist yet or is empty; by default one in ``runs/``, named after the program and the time.
    program : str
        The program's name.
    record : str
        The name of the first file. The process that creates it has the folder: two programs never share one.
    content : dict, optional
        The content of the first file, written as JSON. The file is complete as soon as it exists.

    Returns
    -------
    Path

    Raises
    ------
    ValueError
        If there is something in `path` already, or it cannot be a folder.
    OSError
        If the folder or the file cannot be written.
    """
    text = json.dumps(content or {}, indent=2) + '\n'
    if path is not None:
        return _claim(Path(path), record, text)
    default = f'runs/{program}-{time.strftime("%Y%m%d-%H%M%S")}'
    for number in count(1):
        with contextlib.suppress(FolderTakenError):
            return _claim(Path(default + (f'-{number}' if number > 1 else '')), record, text)
    raise AssertionError('count() never ends')


def _claim(folder: Path, record: str, text: str) -> Path:
    check_free(folder)
    folder.mkdir(parents=True, exist_ok=True)
    own = folder / f'{record}.{secrets.token_hex(8)}.part'
    try:
        write_whole(own, [text.encode()])
        _rename_if_free(own, folder / record)
    except FileExistsError:  # another process was faster
        check_free(folder)
        raise
    finally:
        with contextlib.suppress(OSError):
            own.unlink()
    return folder


def _rename_if_free(old: Path, new: Path) -> None:
    """Rename a file, or raise FileExistsError if there is a file of the new name."""
    try:
        os.link(old, new)
    except OSError:
        if new.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(new)) from None
        os.replace(old, new)  # a file system without hard links


class SameFolder:
    """Remembers a folder, to notice when it was deleted and another one has its name.

    The folder is kept open, because the number (inode) of a deleted folder is soon used again.

    Parameters
    ----------
    path : path-like
        It must exist.
    """

    def __init__(self, path: str | os.PathLike):
        self._path, self._descriptor = path, os.open(path, os.O_RDONLY)

    def check(self) -> None:
        """Refuse (OSError) a folder that is gone, or is another one by now."""
        if not os.path.samestat(os.stat(self._path), os.fstat(self._descriptor)):
            raise OSError(errno.ESTALE, 'it was replaced by another folder')

    def __del__(self) -> None:
        if hasattr(self, '_descriptor'):
            os.close(self._descriptor)


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
