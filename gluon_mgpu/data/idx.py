"""Images and labels in IDX format, the format of MNIST and Fashion-MNIST, read and checked.

A file begins with a magic number and one number per dimension, each a big-endian uint32; the bytes of
the array follow. Files come compressed with gzip (``train-images-idx3-ubyte.gz``) or not. What takes
kilobytes compressed may unpack to terabytes: the header is read first, and never more than it promises.
"""
from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import IO, Any

import numpy

IMAGES_MAGIC, LABELS_MAGIC = 2051, 2049  # 0x0803, 0x0801: uint8 in 3 dimensions, in 1
SIDE = 28
MAX_ROWS = 2**30 // SIDE**2  # in a file, which makes 1 GiB of pixels
PIECE = 2**20                # bytes read at once
NUM_CLASSES = 10


def read_images(path: Path) -> numpy.ndarray:
    """Read a file of 28x28 images.

    Parameters
    ----------
    path : Path
        An IDX file, compressed with gzip or not.

    Returns
    -------
    numpy.ndarray
        uint8 (n, 28, 28), n from 1 to `MAX_ROWS`, read-only.

    Raises
    ------
    ValueError
        If the file is anything else; names the file, what was expected and what was found.
    """
    return _read(path, IMAGES_MAGIC, (SIDE, SIDE))


def read_labels(path: Path) -> numpy.ndarray:
    """Read a file of labels.

    Parameters
    ----------
    path : Path
        An IDX file, compressed with gzip or not.

    Returns
    -------
    numpy.ndarray
        int32 (n,), n from 1 to `MAX_ROWS`, each 0 to 9.

    Raises
    ------
    ValueError
        If the file is anything else; names the file, what was expected and what was found.
    """
    labels = _read(path, LABELS_MAGIC, ())
    wrong = numpy.flatnonzero(labels >= NUM_CLASSES)
    if len(wrong):
        raise _broken(path, 'labels 0 to 9', f'{labels[wrong[0]]} in row {wrong[0]}')
    return labels.astype(numpy.int32)


def read_pair(images_path: Path, labels_path: Path) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Read a file of images and the file of their labels, and check that there is one for each.

    Parameters
    ----------
    images_path, labels_path : path-like
        The two files, gzipped or not.

    Returns
    -------
    images, labels : numpy.ndarray
        uint8 (n, 28, 28), read-only, and int32 (n,).

    Raises
    ------
    ValueError
        If either file is broken or they differ in length.
    """
    images, labels = read_images(images_path), read_labels(labels_path)
    if len(images) != len(labels):
        raise _broken(labels_path, f'{len(images)} labels, as many as images in {Path(images_path).name},',
                      str(len(labels)))
    return images, labels


def _read(path: Path, magic: int, row: tuple) -> numpy.ndarray:
    """The rows of a file, each of shape `row`: uint8 (n, *row), read-only."""
    try:
        with open(path, 'rb') as file:
            # By content and not by name: browsers decompress some downloads and keep the name
            compressed = file.peek(2)[:2] == b'\x1f\x8b'
            stream: Any = gzip.GzipFile(fileobj=file) if compressed else file
            header = stream.read(4 * (2 + len(row)))
            num_rows = _num_rows(path, header, magic, row)
            size = num_rows * math.prod(row)
            content = _read_until(stream, size + 1)  # whether it ends there shows only beyond
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _broken(path, 'a whole gzip file', f'a damaged one ({error})') from None
    except OSError as error:
        raise ValueError(f'{path}: cannot be read ({error.strerror}); make it a readable file') from None
    if len(content) != size:
        found = 'more' if len(content) > size else str(len(header) + len(content))
        raise _broken(path, f'{len(header) + size} bytes for {num_rows} rows', found)
    return numpy.frombuffer(memoryview(content).toreadonly(), numpy.uint8).reshape(num_rows, *row)


def _num_rows(path: Path, header: bytes, magic: int, row: tuple) -> int:
    """The number of rows that a header promises, once all of it is checked."""
    size = 4 * (2 + len(row))  # magic number, number of rows, and the shape of one
    if len(header) < size:
        raise _broken(path, f'a header of {size} bytes', f'{len(header)} bytes')
    found, num_rows, *found_row = numpy.frombuffer(header, '>u4').tolist()
    if found != magic:
        raise _broken(path, f'magic number {magic}', str(found))
    if num_rows == 0:
        raise _broken(path, 'at least 1 row', '0')
    if tuple(found_row) != row:
        raise _broken(path, 'images of {}x{} pixels'.format(*row), '{}x{}'.format(*found_row))
    if num_rows > MAX_ROWS:
        raise _broken(path, f'at most {MAX_ROWS} rows', str(num_rows))
    return num_rows


def _read_until(stream: IO[bytes], size: int) -> bytearray:
    """Read `size` bytes, or as many as there are, in pieces: a promise alone takes no memory."""
    content = bytearray()
    while len(content) < size:
        piece = stream.read(min(PIECE, size - len(content)))
        if not piece:
            break
        content += piece
    return content


def _broken(path: Path, expected: str, found: str) -> ValueError:
    path = Path(path)
    return ValueError(f'{path.name} in {path.parent}: {expected} expected, {found} found; '
                      'delete the file or put the real one there')
