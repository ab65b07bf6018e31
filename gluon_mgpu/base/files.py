"""Reading files that somebody else may have made, atomic writing, and folders that cannot be replaced unnoticed."""
from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import weakref
from pathlib import Path
from typing import Any, BinaryIO

MAX_NAME = 241  # bytes: 255 on all common file systems, less those that are added for an unfinished file
UNFINISHED = r'\.[0-9a-f]{8}\.part'  # the end of the name of a file that is being written
MAX_TEXT, LARGEST = 2**24, 2**36  # bytes of config.json or history.csv; of any file


def open_file(path: str | os.PathLike, limit: int = LARGEST) -> BinaryIO:
    """Open a regular file of at most `limit` bytes; OSError for others, before anything is read. Never waits."""
    # Without O_NONBLOCK, opening a FIFO would wait for a writer. Not os.stat before, because the file may be replaced
    file = open(path, 'rb', opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115, returned
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size <= limit:
        return file
    file.close()
    raise (OSError(errno.EFBIG, f'larger than {limit:,} bytes', os.fspath(path)) if stat.S_ISREG(status.st_mode) else
           OSError(errno.EINVAL, 'not a regular file', os.fspath(path)))


def read_file(path: str | os.PathLike, limit: int = MAX_TEXT) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; OSError for others."""
    with open_file(path, limit) as file:
        return file.read(limit)  # not more, because files in /proc have no size


class SameFolder(os.PathLike):
    """A folder that is kept open, to notice when another has replaced it; ``folder / name`` is a file in it.

    `write_atomically` writes such a file into this very folder, and never through a link.
    """

    def __init__(self, path: str | os.PathLike):
        self.path, self.descriptor = Path(path), os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self.close = weakref.finalize(self, os.close, self.descriptor)

    def __fspath__(self) -> str:
        return str(self.path)

    __str__ = __fspath__

    def __reduce__(self) -> tuple:  # for other workers, possibly on another machine
        return Path, (str(self.path),)

    def __truediv__(self, name: str) -> FileInFolder:
        file = FileInFolder(self.path / name)
        file.folder = self
        return file

    def check(self) -> None:
        """Raise OSError if the folder was deleted or replaced."""
        if not os.path.samestat(os.stat(self.path), os.fstat(self.descriptor)):
            raise OSError(errno.ESTALE, 'it was replaced by another folder')


class FileInFolder(type(Path())):  # type: ignore[misc]
    """Path of a file in a `SameFolder`."""

    folder: SameFolder | None = None


def same_folder(path: str | os.PathLike) -> SameFolder:
    """Return a `SameFolder` as it is, and open another folder."""
    return path if isinstance(path, SameFolder) else SameFolder(path)


def beside(path: str | os.PathLike, name: str = '') -> FileInFolder:
    """Return `path`, or the file `name` beside it, as a file in an open `SameFolder`, possibly made by somebody else.

    It is for names that the user has not given: `write_atomically` does not follow a link there.
    """
    return same_folder(getattr(path, 'folder', None) or Path(path).parent) / (name or Path(path).name)


def write_atomically(path: str | os.PathLike, content: bytes | memoryview) -> None:
    """Write a file, with the mode of the one that it replaces. After a crash, the old or the new one is complete.

    If `path` is a link, its target is written, except in a `SameFolder`. An OSError names `path`.
    """
    # The content goes to another file, which is synced to disk and renamed. If writing fails, the old file stays
    try:
        folder = getattr(path, 'folder', None)
        if folder:
            folder.check()
            _write(Path(path).name, content, folder.descriptor)
        else:
            _write(os.path.realpath(path), content, None)
    except OSError as error:
        error.filename = os.fspath(path)  # a full disk names no file, and other errors name the unfinished file
        raise


def _write(path: str, content: bytes | memoryview, folder: int | None) -> None:
    """Write a file, with a path relative to the open `folder`, if any."""
    old = _status(path, folder)
    if old and not (stat.S_ISREG(old.st_mode) or stat.S_ISDIR(old.st_mode)):  # renaming would replace it
        raise OSError(errno.EINVAL, 'a link, which is not followed' if stat.S_ISLNK(old.st_mode) else
                      'not a regular file', path)
    unfinished = f'{path}.{secrets.token_hex(4)}.part'  # another process or thread may write the same file
    try:
        with open(unfinished, 'xb', opener=lambda name, flags: os.open(name, flags, 0o666, dir_fd=folder)) as file:
            if old:
                with contextlib.suppress(OSError):  # some file systems have no modes
                    os.fchmod(file.fileno(), old.st_mode & 0o777)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished, dir_fd=folder)
        raise
    with contextlib.suppress(OSError):  # sync the new name; some file systems cannot
        descriptor = os.open(os.path.dirname(path) or '.', os.O_RDONLY, dir_fd=folder)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _status(path: str, folder: int | None) -> Any:
    with contextlib.suppress(FileNotFoundError):
        return os.stat(path, dir_fd=folder, follow_symlinks=False)
    return None


def check_writable(path: str | os.PathLike, new_folder: str | os.PathLike | None = None,
                   source: str | os.PathLike | None = None) -> None:
    """Raise ValueError if `write_atomically` cannot write a file, or would replace `source`. Writes nothing.

    `new_folder` may be missing: it is created later.
    """
    if getattr(path, 'folder', None) and os.path.islink(path):
        raise ValueError(f'{path} cannot be written: it is a link; remove it, or name a file with --out')
    target = Path(os.path.realpath(path))  # of a symbolic link, possibly a broken one
    if source is not None and target == Path(os.path.realpath(source)):
        raise ValueError(f'{path} cannot be written: it is the file to read; name another one with --out')
    folder = target.parent
    if len(os.fsencode(target.name)) > MAX_NAME:
        raise ValueError(f'{path} cannot be written: its name must have at most {MAX_NAME} bytes')
    if target.exists() and not target.is_file():
        raise ValueError(f'{path} cannot be written: it exists and is not a file')
    if new_folder is not None and folder == Path(os.path.realpath(new_folder)) and not folder.exists():
        return
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f'{path} cannot be written: {folder} is not a writable folder')
