"""Rows that all contenders train on, loaded once and passed to each in the same file."""
from __future__ import annotations

from pathlib import Path

import numpy

NAMES = ('images', 'labels', 'test_images', 'test_labels')


def load(data_dir: str | None, folder: str) -> tuple:
    """Load Fashion-MNIST from existing files, or glyphs.

    Parameters
    ----------
    data_dir : str or None
        Folder that contains ``fashion-mnist/``, or that folder itself; None for glyphs.
    folder : str
        Where to create glyphs.

    Returns
    -------
    dataset : str
        Its name.
    arrays : tuple of numpy.ndarray
        In the order of `NAMES`: uint8 (n, 28, 28) and integers (n,).
    """
    from gluon_mgpu.data import folders, glyphs, idx  # imported here, because it sets MXNet's environment variables
    if not data_dir:
        train, test = glyphs.load(Path(folder))
        return 'glyphs', (*train, *test)
    source = Path(data_dir).expanduser()
    source = source if source.name == 'fashion-mnist' else source / 'fashion-mnist'
    files = [folders.find(source, name) for name in folders.FILES]
    if None in files:
        raise ValueError(f'{source}: {folders.FILES[files.index(None)]} missing; leave out --data-dir for glyphs')
    return 'fashion-mnist', (*idx.read_pair(*files[:2]), *idx.read_pair(*files[2:]))


def write(arrays: tuple, num_rows: int, folder: str) -> tuple[Path, int]:
    """Write the first `num_rows` training rows and a sixth as many test rows, the ratio of Fashion-MNIST.

    The number of test rows is a multiple of 16, because otherwise `d2l` cannot split the last batch. Return the file
    and the number of training rows, which is smaller than `num_rows` if the dataset has fewer.
    """
    num_rows = min(num_rows, len(arrays[0]))
    num_test_rows = max(num_rows // 6 // 16, 1) * 16
    sizes = (num_rows, num_rows, num_test_rows, num_test_rows)
    path = Path(folder, f'{num_rows}.npz')
    numpy.savez(path, **{name: a[:size] for name, a, size in zip(NAMES, arrays, sizes)})
    return path, num_rows
