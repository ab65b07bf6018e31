"""The rows that all contenders train on: loaded once, handed to each of them in the same file."""
from __future__ import annotations

from pathlib import Path

import numpy

NAMES = ('images', 'labels', 'test_images', 'test_labels')


def load(data_dir: str | None, folder: str) -> tuple:
    """Fashion-MNIST from files that are there, or glyphs.

    Parameters
    ----------
    data_dir : str or None
        Holds ``fashion-mnist/``, or is that folder; None for glyphs.
    folder : str
        Where to make glyphs.

    Returns
    -------
    dataset : str
        Its name.
    arrays : tuple of numpy.ndarray
        As `NAMES` says: uint8 (n, 28, 28) and integers (n,).
    """
    from gluon_mgpu.data import folders, glyphs, idx  # here, since it sets MXNet's environment
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
    """Write the first `num_rows` training rows, and a sixth of that to test on, as in all of Fashion-MNIST.

    The number of test rows is a multiple of 16, since `d2l` can't split the last batch over its devices otherwise.
    Returns the file and the number of training rows, which is smaller than asked for if there are no more.
    """
    num_rows = min(num_rows, len(arrays[0]))
    num_test_rows = max(num_rows // 6 // 16, 1) * 16
    sizes = (num_rows, num_rows, num_test_rows, num_test_rows)
    path = Path(folder, f'{num_rows}.npz')
    numpy.savez(path, **{name: a[:size] for name, a, size in zip(NAMES, arrays, sizes)})
    return path, num_rows
