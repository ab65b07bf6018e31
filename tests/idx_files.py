"""IDX files for the tests, written without the package's own code."""
import gzip
import struct
from pathlib import Path

import numpy

MAGIC = {1: 2049, 3: 2051}


def idx_bytes(array: numpy.ndarray) -> bytes:
    """Return the content of an uncompressed IDX file."""
    return struct.pack(f'>{1 + array.ndim}I', MAGIC[array.ndim], *array.shape) + array.astype('u1').tobytes()


def dataset(num_train: int = 100, num_test: int = 30, seed: int = 0) -> dict:
    """Return random images and labels: file name -> array, for the four files of a dataset."""
    rng = numpy.random.default_rng(seed)
    return {
        'train-images-idx3-ubyte.gz': rng.integers(0, 256, (num_train, 28, 28)),
        'train-labels-idx1-ubyte.gz': rng.integers(0, 10, num_train),
        't10k-images-idx3-ubyte.gz': rng.integers(0, 256, (num_test, 28, 28)),
        't10k-labels-idx1-ubyte.gz': rng.integers(0, 10, num_test),
    }


def file_contents(arrays: dict) -> dict:
    """Return the compressed content of the four files; equal arrays give equal bytes."""
    return {name: gzip.compress(idx_bytes(array), mtime=0) for name, array in arrays.items()}


def write(folder: Path, arrays: dict) -> dict:
    """Write the four files into `folder`, which is created if it does not exist; return `arrays`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in file_contents(arrays).items():
        (folder / name).write_bytes(content)
    return arrays
