"""Atomic writing, and detecting a replaced folder."""
from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import weakref
from pathlib import Path

MAX_NAME = 241  # bytes: 255 on all common file systems, less those that are added for an unfinished file


def is_unfinished(name: str) -> bool:
    """Return True for the name of a file that `write_atomically` left when its process was killed."""
    return re.fullmatch(r'.+\.[0-9a-f]{8}\.part', name) is not None


def write_atomically(path: str | os.PathLike, content: bytes | memoryview) -> None:
    """Write a file, or the target of a link, that is complete even after a crash; an OSError names `path`."""
    # The content goes to another file, which is synced to disk and renamed. If writing fails, the old file stays
    try:
        _write(Path(os.path.realpath(path)), content)
    except OSError as error:
        error.filename = os.fspath(path)  # a full disk names no file, and other errors name the other file
        raise


def _write(path: Path, content: bytes | memoryview) -> None:
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, 'not a regular file', str(path))  # renaming would replace a FIFO or a device
    unfinished = f'{path}.{secrets.token_hex(4)}.part'  # another process or thread may write the same file
    try:
        with open(unfinished, 'xb') as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
    with contextlib.suppress(OSError):  # sync the new name; some file systems cannot
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def check_writable(path: str | os.PathLike, new_folder: str | os.PathLike | None = None) -> None:
    """Raise ValueError if `write_atomically` cannot write a file; `new_folder` need not exist yet. Writes nothing."""
    target = Path(os.path.realpath(path))  # of a symbolic link, possibly a broken one
    folder = target.parent
    if len(os.fsencode(target.name)) > MAX_NAME:
        raise ValueError(f'{path} cannot be written: its name must have at most {MAX_NAME} bytes')
    if target.exists() and not target.is_file():
        raise ValueError(f'{path} cannot be written: it exists and is not a file')
    if new_folder is not None and folder == Path(os.path.realpath(new_folder)) and not folder.exists():
        return
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f'{path} cannot be written: {folder} is not a writable folder')


class SameFolder:
    """A folder that is kept open, so that its inode number stays in use, to notice when another has replaced it."""

    def __init__(self, path: str | os.PathLike):
        self.path, self._descriptor = Path(path), os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        weakref.finalize(self, os.close, self._descriptor)

    def check(self) -> None:
        """Raise OSError if the folder was deleted or replaced."""
        if not os.path.samestat(os.stat(self.path), os.fstat(self._descriptor)):
            raise OSError(errno.ESTALE, 'it was replaced by another folder')
