"""Reader for IDX files, the format of MNIST and Fashion-MNIST, possibly compressed with gzip.

A file has a magic number, the size of each dimension (big-endian uint32) and the bytes of the array. A few compressed
kilobytes can unpack to terabytes, so at most one piece more is unpacked than the header announces.
"""
import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy

from ..base.files import open_file

SIDE = 28
MAX_ROWS = 2**30 // SIDE**2  # 1 GiB of pixels
MAX_SIZE = 2**31             # bytes of a file
PIECE = 2**20                # bytes per read, so that a wrong header allocates no memory
NUM_CLASSES = 10


def read_images(path: Path) -> numpy.ndarray:
    """Return the images in an IDX file: uint8 (n, 28, 28), read-only. Raises ValueError if the file is damaged."""
    return _read(path, (SIDE, SIDE))


def read_labels(path: Path) -> numpy.ndarray:
    """Return the labels in an IDX file: int32 (n,), from 0 to 9. Raises ValueError if the file is damaged."""
    labels = _read(path, ())
    wrong = numpy.flatnonzero(labels >= NUM_CLASSES)
    if len(wrong):
        raise _damaged(path, 'labels 0 to 9', f'{labels[wrong[0]]} in row {wrong[0]}')
    return labels.astype(numpy.int32)


def read_pair(images_path: Path, labels_path: Path) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Return the images and labels in two files; raises ValueError if the files differ in length or are damaged."""
    images, labels = read_images(images_path), read_labels(labels_path)
    if len(images) != len(labels):
        raise _damaged(labels_path, f'{len(images)} labels for the images in {Path(images_path).name}', len(labels))
    return images, labels


def _read(path: Path, row: tuple) -> numpy.ndarray:
    """Return the rows of a file, each of shape `row`: uint8 (n, *row), read-only."""
    content = bytearray()
    try:
        with open_file(path, MAX_SIZE) as file:
            # Content and not name, because browsers decompress some downloads and keep the name
            compressed = file.read(2) == b'\x1f\x8b'
            file.seek(0)
            stream: Any = gzip.GzipFile(fileobj=file) if compressed else file
            header = stream.read(4 * (2 + len(row)))  # magic number, number of rows, shape of a row
            num_rows = _num_rows(path, header, row)
            size = num_rows * math.prod(row)
            while len(content) <= size and (piece := stream.read(PIECE)):
                content += piece
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise _damaged(path, 'a complete gzip file', 'a damaged one') from None
    except OSError as error:
        raise ValueError(f'{path}: cannot be read ({error.strerror}); make it a readable file') from None
    if len(content) != size:
        found = 'more' if len(content) > size else len(header) + len(content)
        raise _damaged(path, f'{len(header) + size} bytes for {num_rows} rows', found)
    return numpy.frombuffer(memoryview(content).toreadonly(), numpy.uint8).reshape(num_rows, *row)


def _num_rows(path: Path, header: bytes, row: tuple) -> int:
    magic = 0x0800 + 1 + len(row)  # uint8, and the number of dimensions
    size = 4 * (2 + len(row))
    if len(header) < size:
        raise _damaged(path, f'a header of {size} bytes', f'{len(header)} bytes')
    found, num_rows, *found_row = numpy.frombuffer(header, '>u4').tolist()
    if found != magic:
        raise _damaged(path, f'magic number {magic}', found)
    if tuple(found_row) != row:
        raise _damaged(path, 'images of {}x{} pixels'.format(*row), '{}x{}'.format(*found_row))
    if not 1 <= num_rows <= MAX_ROWS:
        raise _damaged(path, f'1 to {MAX_ROWS} rows', num_rows)
    return num_rows


def _damaged(path: Path, expected: str, found: object) -> ValueError:
    path = Path(path)
    return ValueError(f'{path.name} in {path.parent}: expected {expected}, found {found}; '
                      'delete the file or replace it with the original')
