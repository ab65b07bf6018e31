"""Loading of a dataset by its name."""
from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..base.arguments import integer
from .folders import FILES, FROM_ENVIRONMENT, DownloadError, cache_dir, find, named_folder

if TYPE_CHECKING:
    from .batches import BatchIterator

DATASETS = ('auto', 'fashion-mnist', 'mnist', 'glyphs')


def load_data(dataset: str, batch_size: int, data_dir: str | os.PathLike | None = None,
              train_size: int | None = None, seed: int = 0, log: Callable[[str], None] = print,
              progress: bool = True, shard: tuple[int, int] = (0, 1),
              test_size: int | None = None, name: Callable[[str], str] = str,
              validation_size: int | None = None) -> tuple[BatchIterator, ...]:
    """Return iterators over the training rows (shuffled each epoch) and the test rows (in order) of a dataset.

    With a `validation_size`, it is three iterators: the second is over the validation rows, in order. Raises ValueError
    for an argument out of range, a damaged file or (`MissingError`) an unavailable dataset.

    Parameters
    ----------
    dataset : str
        ``'fashion-mnist'``, ``'mnist'``, ``'glyphs'`` (generated), or ``'auto'``: Fashion-MNIST, else glyphs.
    data_dir : path, optional
        A folder that contains ``fashion-mnist/`` and ``mnist/``, or is one of them; only this folder is searched. By
        default the environment variable GLUON_MGPU_DATA; if that is not set, the cache folder, with downloads.
    train_size, test_size : int, optional
        Use only the first training or test rows.
    log : callable
        Gets one line if 'auto' chooses glyphs, with the reason.
    progress : bool
        Show the progress of downloads on stderr.
    shard : (rank, size)
        Yield only this shard of each batch, for one of several workers.
    name : callable
        Maps the name of an argument to the one in error messages, such as that of a flag.
    validation_size : int, optional
        Hold out the last training rows, this many.
    """
    from .batches import BatchIterator
    found, (images, labels), (test_images, test_labels) = _load(dataset, data_dir, log, progress)
    images, labels = _first(name('train_size'), train_size, images, labels)
    test_images, test_labels = _first(name('test_size'), test_size, test_images, test_labels)
    held_out = 0 if validation_size is None else integer(name('validation_size'), validation_size, minimum=1)
    if held_out and held_out >= len(images):
        raise ValueError(f'{name("validation_size")} {held_out}: must be less than the {len(images)} training images')
    begin = len(images) - held_out
    train_iter = BatchIterator(images[:begin], labels[:begin], batch_size, found, shuffle=True, seed=seed, shard=shard)
    test_iter = BatchIterator(test_images, test_labels, batch_size, found, shard=shard)
    if not held_out:
        return train_iter, test_iter
    return train_iter, BatchIterator(images[begin:], labels[begin:], batch_size, found, shard=shard), test_iter


def _first(name: str, size: int | None, images, labels) -> tuple:
    if size is None:
        return images, labels
    size = integer(name, size, minimum=1, maximum=len(images))
    return images[:size].copy(), labels[:size].copy()  # frees the other rows


def load_data_fashion_mnist(batch_size: int, resize: int | None = None) -> tuple[BatchIterator, ...]:
    """Return iterators over Fashion-MNIST, 28x28 pixels. Source: D2L 23.7, ``load_data_fashion_mnist``."""
    if resize not in (None, 28):
        raise ValueError(f'resize {resize!r}: images are 28x28, as in both chapters; leave it out')
    return load_data('fashion-mnist', batch_size)


def _load(dataset, data_dir, log, progress) -> tuple[str, tuple, tuple]:
    """Return the dataset's name, (images, labels) for training and (images, labels) for testing."""
    if dataset not in DATASETS:
        raise ValueError(f'dataset {dataset!r}: must be one of {", ".join(DATASETS)}')
    if data_dir == '':
        raise ValueError("data_dir '' is empty: name a folder, or leave data_dir out")
    if dataset == 'auto':
        try:
            return _load('fashion-mnist', data_dir, log, progress)
        except DownloadError as error:
            log(f"{error.args[0]}; training on the built-in dataset 'glyphs' instead. "
                'If you have the files, name a folder that contains fashion-mnist/ with --data-dir.')
            dataset = 'glyphs'
    if dataset == 'glyphs':
        from . import glyphs
        try:
            return 'glyphs', *glyphs.load(cache_dir())
        except DownloadError:  # no home folder: generate them each time
            return 'glyphs', *glyphs.load(None)
    source = '' if data_dir else FROM_ENVIRONMENT
    data_dir = data_dir or os.environ.get('GLUON_MGPU_DATA')
    if data_dir:
        folder = named_folder(dataset, data_dir, source)
    else:
        from . import download
        folder = cache_dir() / dataset
        download.download(dataset, folder, progress)
    from . import idx
    train_images, train_labels, test_images, test_labels = (find(folder, name) or folder / name for name in FILES)
    return dataset, idx.read_pair(train_images, train_labels), idx.read_pair(test_images, test_labels)
