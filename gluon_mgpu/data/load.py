"""Loading of a dataset by its name."""
from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ..base.arguments import integer
from .folders import FILES, DownloadError, cache_dir, find, named_folder

KNOWN_IMAGES = {  # MD5 of the uncompressed file: dataset, part
    'f4a8712d7a061bf5bd6d2ca38dc4d50a': ('fashion-mnist', 'train'),
    '8181f5470baa50b63fa0f6fddb340f0a': ('fashion-mnist', 't10k'),
    '6bbc9ace898e44ae57da46a324031adb': ('mnist', 'train'),
    '2646ac647ad5339dbf082846283269ea': ('mnist', 't10k'),
}
DATASETS = ('auto', 'fashion-mnist', 'mnist', 'glyphs')


def load_data(dataset: str, batch_size: int, data_dir: str | os.PathLike | None = None,
              train_size: int | None = None, seed: int = 0, log: Callable[[str], None] = print,
              progress: bool = True, shard: tuple[int, int] = (0, 1),
              test_size: int | None = None, name: Callable[[str], str] = str,
              validation_size: int | None = None) -> tuple:
    """Return `BatchIterator`s over the training rows (shuffled each epoch) and the test rows (in order) of a dataset.

    With a `validation_size`, it is three iterators: the second is over the validation rows, in order. Raises ValueError
    for an argument out of range, a damaged file or an unavailable dataset.

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
    found, (images, labels), (test_images, test_labels) = _load(dataset, data_dir, log, progress, name)
    images, labels = _first(name('train_size'), train_size, images, labels)
    test_images, test_labels = _first(name('test_size'), test_size, test_images, test_labels)
    held_out = 0 if validation_size is None else integer(name('validation_size'), validation_size, minimum=1)
    if held_out >= len(images):
        raise ValueError(f'{name("validation_size")} {held_out}: must be less than the {len(images)} training images')
    begin = len(images) - held_out
    train_iter = BatchIterator(images[:begin], labels[:begin], batch_size, found, shuffle=True, seed=seed, shard=shard)
    test_iter = BatchIterator(test_images, test_labels, batch_size, found, shard=shard)
    if not held_out:
        return train_iter, test_iter
    return train_iter, BatchIterator(images[begin:], labels[begin:], batch_size, found, shard=shard), test_iter


def _first(name: str, size: int | None, images, labels) -> tuple:
    rows = slice(None if size is None else integer(name, size, minimum=1, maximum=len(images)))
    return images[rows], labels[rows]


def load_data_fashion_mnist(batch_size: int) -> tuple:
    """Return iterators over Fashion-MNIST, 28x28 pixels. Source: D2L 23.7, ``load_data_fashion_mnist``."""
    return load_data('fashion-mnist', batch_size)


def _load(dataset, data_dir, log, progress, name) -> tuple[str, tuple, tuple]:
    """Return the dataset's name, (images, labels) for training and (images, labels) for testing."""
    if dataset not in DATASETS:
        raise ValueError(f'dataset {dataset!r}: must be one of {", ".join(DATASETS)}')
    if dataset == 'auto':
        try:
            return _load('fashion-mnist', data_dir, log, progress, name)
        except DownloadError as error:
            log(f"{error}; training on the built-in dataset 'glyphs' instead")
    if dataset in ('auto', 'glyphs'):
        from . import glyphs
        return 'glyphs', *glyphs.load(cache_dir())
    if data_dir is not None:
        folder = named_folder(dataset, data_dir, name('data_dir'))
    elif from_environment := os.environ.get('GLUON_MGPU_DATA'):
        folder = named_folder(dataset, from_environment, 'GLUON_MGPU_DATA')
    else:
        from . import download
        folder = cache_dir() / dataset
        download.download(dataset, folder, progress)
    return dataset, _read(dataset, 'train', folder), _read(dataset, 't10k', folder)


def _read(dataset: str, part: str, folder: Path) -> tuple:
    """Return the images and labels of a part in `folder`; ValueError if the images are known as those of another."""
    from . import idx
    paths = [find(folder, name) or folder / name for name in FILES if name.startswith(part)]
    images, labels = idx.read_pair(*paths)
    known = KNOWN_IMAGES.get(idx.md5(images), (dataset, part))
    if known != (dataset, part):
        raise ValueError(f'{paths[0]}: these are the {known[1]} images of {known[0]}; put each file into the folder '
                         'of its dataset, under its own name')
    return images, labels
