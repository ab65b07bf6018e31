"""Reading files that somebody else may have made, and atomic writing."""
from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

UNFINISHED = r'\.[0-9a-f]{8}\.part'  # the end of the name of a file that is being written
LARGEST = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // 2  # bytes of any file: half of the memory


def open_file(path: str | os.PathLike) -> BinaryIO:
    """Open a regular file of at most `LARGEST` bytes; OSError for others, before anything is read. Never waits."""
    # Without O_NONBLOCK, opening a FIFO would wait for a writer. Not os.stat before, because the file may be replaced
    file = open(path, 'rb', opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115, returned
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size <= LARGEST:
        return file
    file.close()
    raise (OSError(errno.EFBIG, f'larger than {LARGEST:,} bytes', os.fspath(path)) if stat.S_ISREG(status.st_mode) else
           OSError(errno.EINVAL, 'not a regular file', os.fspath(path)))


def read_file(path: str | os.PathLike) -> bytes:
    """Return the content of a regular file of at most `LARGEST` bytes; OSError for others."""
    with open_file(path) as file:
        return file.read()


def write_atomically(path: str | os.PathLike, content: bytes | memoryview) -> None:
    """Write a file, with the mode of the one that it replaces. After a crash, the old or the new one is complete.

    A link is replaced, not followed. An OSError names `path`; what is no file, such as ``/dev/null``, is not replaced.
    """
    # The content goes to another file, which is synced to disk and renamed. If writing fails, the old file stays
    unfinished = f'{os.fspath(path)}.{secrets.token_hex(4)}.part'  # another process may write the same file
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise OSError(errno.EINVAL, 'not a regular file')
        with open(unfinished, 'xb') as file:
            with contextlib.suppress(OSError):  # there is no old file, or the file system has no modes
                shutil.copymode(path, unfinished)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        if isinstance(error, OSError):
            error.filename = os.fspath(path)  # a full disk names no file, and other errors name the unfinished file
        raise
    with contextlib.suppress(OSError):  # sync the new name; some file systems cannot
        folder = os.open(Path(path).parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
