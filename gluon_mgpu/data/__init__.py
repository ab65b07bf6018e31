"""Datasets, found, downloaded or made.

    train_iter, test_iter = load_data('auto', batch_size=256)
    for X, y in train_iter:  # (256, 1, 28, 28), (256,); the last batch is smaller
        ...

Can be imported without MXNet, which is loaded inside the functions that need it.
"""
from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.checks import integer
from .folders import FILES, DownloadError, cache_dir, find, named_folder

if TYPE_CHECKING:
    from .batches import BatchIterator

DATASETS = ('auto', 'fashion-mnist', 'mnist', 'glyphs')


def __getattr__(name: str):
    if name == 'BatchIterator':
        from .batches import BatchIterator
        return BatchIterator
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def load_data(dataset: str, batch_size: int, data_dir: str | os.PathLike | None = None,
              train_size: int | None = None, seed: int = 0, log: Callable[[str], None] = print,
              progress: bool = True, shard: tuple[int, int] = (0, 1)) -> tuple[BatchIterator, BatchIterator]:
    """Load a dataset as iterators over its training and its test rows.

    Parameters
    ----------
    dataset : str
        ``'fashion-mnist'``, ``'mnist'``, ``'glyphs'`` (made here, needs no network), or ``'auto'``:
        Fashion-MNIST if it is there or can be downloaded, else glyphs.
    batch_size : int
        Rows in a batch.
    data_dir : path, optional
        The folder that holds ``fashion-mnist/`` and ``mnist/``, or one of these two folders itself;
        by default what the environment variable GLUON_MGPU_DATA names. Whoever names a folder means
        it: what is missing there is an error, also with 'auto', and is not fetched from elsewhere.
        With neither, files are looked for in the user's cache folder and downloaded there. Glyphs use
        the cache folder only: they are kept there once made, and where there is no home folder to keep
        them in, they are made each time.
    train_size : int, optional
        Use the first `train_size` training rows; by default all.
    seed : int
        Decides the order of the training rows.
    log : callable
        Is told, in one line, that 'auto' means glyphs and why.
    progress : bool
        Show the progress of a download on stderr.
    shard : (rank, size)
        Yield only this shard of each batch, for one of several workers.

    Returns
    -------
    train_iter, test_iter : BatchIterator
        Training rows in a new order each epoch, test rows in the order of the file.

    Raises
    ------
    ValueError
        If an argument is out of range, the dataset can't be had (`DownloadError`), or a file is broken.
    """
    from .batches import BatchIterator
    name, (images, labels), (test_images, test_labels) = _load(dataset, data_dir, log, progress)
    if train_size is not None:
        train_size = integer('train_size', train_size, 1, len(images))
        images, labels = images[:train_size].copy(), labels[:train_size].copy()  # the others are not kept
    train_iter = BatchIterator(images, labels, batch_size, name, True, seed, shard)
    return train_iter, BatchIterator(test_images, test_labels, batch_size, name, shard=shard)


def load_data_fashion_mnist(batch_size: int,
                            resize: int | None = None) -> tuple[BatchIterator, BatchIterator]:
    """Load Fashion-MNIST; the same as ``load_data('fashion-mnist', batch_size)``.

    Source: D2L 23.7, ``load_data_fashion_mnist``. Here `resize` takes no other size than 28, that of
    the images, which is what both chapters train on; anything else is a ValueError.
    """
    if resize not in (None, 28):
        raise ValueError(f'resize {resize!r}: images are 28x28 here, as in both chapters; leave it out')
    return load_data('fashion-mnist', batch_size)


def _load(dataset, data_dir, log, progress) -> tuple[str, tuple, tuple]:
    """The dataset's name and its (images, labels) to train on and to test on."""
    if dataset not in DATASETS:
        raise ValueError(f'dataset {dataset!r}: one of {", ".join(DATASETS)} expected')
    if data_dir == '':
        raise ValueError("data_dir '' is empty: name a folder (is a shell variable unset?), or leave data_dir out")
    if dataset == 'auto':
        try:
            return _load('fashion-mnist', data_dir, log, progress)
        except DownloadError as error:
            log(f'the dataset is glyphs, not fashion-mnist: {error}')
    from . import idx
    if dataset in ('auto', 'glyphs'):
        return 'glyphs', *_glyphs()
    folder = _folder(dataset, data_dir or os.environ.get('GLUON_MGPU_DATA'), progress)
    train_images, train_labels, test_images, test_labels = (find(folder, name) or folder / name for name in FILES)
    return dataset, idx.read_pair(train_images, train_labels), idx.read_pair(test_images, test_labels)


def _glyphs() -> tuple[tuple, tuple]:
    from . import glyphs
    try:
        folder = cache_dir()
    except DownloadError:
        folder = None  # glyphs need none: they are made each time
    return glyphs.load(folder)


def _folder(dataset: str, data_dir: str | os.PathLike | None, progress: bool) -> Path:
    """The folder that holds the four files of `dataset`, downloaded if need be."""
    if data_dir:
        return named_folder(dataset, data_dir)
    from . import download
    folder = cache_dir() / dataset
    download.download(dataset, folder, progress)
    return folder
