"""Images and labels in IDX format, the format of MNIST and Fashion-MNIST, read and checked.

A file begins with a magic number and one number a dimension, each a big-endian uint32; the bytes of
the array follow. Files come compressed with gzip (``train-images-idx3-ubyte.gz``) or not.
"""
from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy

IMAGES_MAGIC, LABELS_MAGIC = 2051, 2049  # 0x0803, 0x0801: uint8 in 3 dimensions, in 1
SIDE = 28
NUM_CLASSES = 10
FILES = ('train-images-idx3-ubyte.gz', 'train-labels-idx1-ubyte.gz',
         't10k-images-idx3-ubyte.gz', 't10k-labels-idx1-ubyte.gz')  # a whole dataset


def find(folder: Path, name: str) -> Path | None:
    """Find one of `FILES` in `folder`, there as ``name`` or without its ``.gz``; None if missing."""
    paths = (Path(folder) / name, Path(folder) / name[:-len('.gz')])
    return next((path for path in paths if path.exists()), None)


def read_images(path: Path) -> numpy.ndarray:
    """Read a file of 28x28 images.

    Parameters
    ----------
    path : Path
        An IDX file, compressed with gzip or not.

    Returns
    -------
    numpy.ndarray
        uint8 (n, 28, 28), n at least 1, read-only.

    Raises
    ------
    ValueError
        If the file is anything else; names the file, what was expected and what was found.
    """
    shape, pixels = _read(path, IMAGES_MAGIC, ndim=3)
    if shape[1:] != (SIDE, SIDE):
        raise _broken(path, f'images of {SIDE}x{SIDE} pixels', '{}x{}'.format(*shape[1:]))
    return pixels.reshape(shape)


def read_labels(path: Path) -> numpy.ndarray:
    """Read a file of labels.

    Parameters
    ----------
    path : Path
        An IDX file, compressed with gzip or not.

    Returns
    -------
    numpy.ndarray
        int32 (n,), n at least 1, each 0 to 9.

    Raises
    ------
    ValueError
        If the file is anything else; names the file, what was expected and what was found.
    """
    _, labels = _read(path, LABELS_MAGIC, ndim=1)
    wrong = numpy.flatnonzero(labels >= NUM_CLASSES)
    if len(wrong):
        raise _broken(path, 'labels 0 to 9', f'{labels[wrong[0]]} in row {wrong[0]}')
    return labels.astype(numpy.int32)


def read_pair(images_path: Path, labels_path: Path) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Read a file of images and the file of their labels, and check that there is one for each.

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


def _read(path: Path, magic: int, ndim: int) -> tuple[tuple, numpy.ndarray]:
    """The shape that the header promises and the bytes that follow it, just as many."""
    content = _decompressed(path)
    header = 4 * (1 + ndim)
    if len(content) < header:
        raise _broken(path, f'a header of {header} bytes', f'{len(content)} bytes')
    found, *shape = numpy.frombuffer(content, '>u4', 1 + ndim).tolist()
    if found != magic:
        raise _broken(path, f'magic number {magic}', str(found))
    if shape[0] == 0:
        raise _broken(path, 'at least 1 row', '0')
    size = header + math.prod(shape)
    if len(content) != size:
        raise _broken(path, f'{size} bytes for {shape[0]} rows', str(len(content)))
    return tuple(shape), numpy.frombuffer(content, numpy.uint8, offset=header)


def _decompressed(path: Path) -> bytes:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f'{path}: cannot be read ({error.strerror}); make it a readable file') from None
    try:
        # By content and not by name: browsers decompress some downloads and keep the name
        return gzip.decompress(content) if content.startswith(b'\x1f\x8b') else content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _broken(path, 'a whole gzip file', f'a damaged one ({error})') from None


def _broken(path: Path, expected: str, found: str) -> ValueError:
    path = Path(path)
    return ValueError(f'{path.name} in {path.parent}: {expected} expected, {found} found; '
                      'delete the file or put the real one there')
