"""Write files that are always complete, and notice a folder that was replaced."""
from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: str | os.PathLike, pieces: Iterable) -> None:
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
