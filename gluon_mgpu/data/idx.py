"""Reader for IDX files, the format of MNIST and Fashion-MNIST, possibly compressed with gzip.

A file has a magic number, the size of each dimension (big-endian uint32) and the bytes of the array. A few compressed
kilobytes can unpack to terabytes, so at most one byte more is unpacked than the header announces.
"""
import gzip
import hashlib
import math
import zlib
from pathlib import Path
from typing import Any

import numpy

from ..base.files import open_file

SIDE = 28
MAX_ROWS = 2**30 // SIDE**2  # 1 GiB of pixels
NUM_CLASSES = 10


def read_pair(images_path: Path, labels_path: Path) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Return the images, uint8 (n, 28, 28), read-only, and labels, int32 (n,); ValueError if a file is damaged."""
    images, labels = read_rows(images_path, (SIDE, SIDE)), read_labels(labels_path)
    if len(images) != len(labels):
        raise _damaged(labels_path, f'{len(labels)} labels for {len(images)} images in {Path(images_path).name}')
    return images, labels


def read_labels(path: Path) -> numpy.ndarray:
    """Return the labels in an IDX file: int32 (n,), from 0 to 9. Raises ValueError if the file is damaged."""
    labels = read_rows(path, ())
    if labels.max() >= NUM_CLASSES:
        raise _damaged(path, f'label {labels.max()}, and only 0 to 9 are classes')
    return labels.astype(numpy.int32)


def read_rows(path: Path, row: tuple) -> numpy.ndarray:
    """Return the rows of an IDX file, each of shape `row`: uint8 (n, *row), read-only; ValueError if it is damaged."""
    try:
        with open_file(path) as file:
            # Content and not name, because browsers decompress some downloads and keep the name
            compressed = file.read(2) == b'\x1f\x8b'
            file.seek(0)
            stream: Any = gzip.GzipFile(fileobj=file) if compressed else file
            magic, num_rows, *found_row = (int.from_bytes(stream.read(4), 'big') for _ in range(2 + len(row)))
            if (magic, *found_row) != (0x0800 + 1 + len(row), *row) or not 1 <= num_rows <= MAX_ROWS:
                raise _damaged(path, f'a header of {[magic, num_rows, *found_row]}')
            size = num_rows * math.prod(row)
            content = stream.read(size + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, str(error)) from None
    if len(content) != size:
        raise _damaged(path, f'{"fewer" if len(content) < size else "more"} bytes than its {num_rows} rows')
    return numpy.frombuffer(content, numpy.uint8).reshape(num_rows, *row)


def md5(images: numpy.ndarray) -> str:
    """Return the MD5 of an uncompressed IDX file with these images."""
    header = numpy.array([0x0800 + images.ndim, *images.shape], '>u4')
    digest = hashlib.md5(header.tobytes(), usedforsecurity=False)
    digest.update(images.data)
    return digest.hexdigest()


def _damaged(path: Path, problem: str) -> ValueError:
    path = Path(path)
    return ValueError(f'{path.name} in {path.parent} is damaged ({problem}); delete it or replace it with the original')
