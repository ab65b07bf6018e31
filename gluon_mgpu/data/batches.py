"""Batches cut from arrays in memory.

    for X, y in BatchIterator(images, labels, 256, 'mnist'):  # (256, 1, 28, 28), (256,)
        ...
"""
from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy

from ..base.checks import integer
from ..mxnet_setup.compat import empty_with_view, np, num_outputs
from .shards import shard_rows


class BatchIterator:
    """The rows of a dataset, batch by batch; can be iterated any number of times.

    Each iteration yields ``(X, y)``: float32 (b, 1, 28, 28) in [0, 1] and int32 (b,), arrays of their
    own on ``cpu(0)``. The last batch may be smaller; nothing is dropped. Never waits for the devices,
    so that batches can be computed while the next are cut.

    Source: D2L 23.7, ``load_data_fashion_mnist``, which returns a DataLoader. Here the order of the
    rows depends on nothing but the seed and the epoch, and no row is handled on its own.

    Parameters
    ----------
    images, labels : numpy.ndarray
        uint8 (n, 28, 28) and integers (n,).
    batch_size : int
        Rows in a batch.
    dataset : str
        The name of the dataset, for logs and pictures.
    shuffle : bool
        Whether each iteration takes the rows in a new order.
    seed : int
        Decides these orders, together with `epoch`; 0 or more.
    shard : (rank, size)
        Yield this shard of each batch: the rows that `split_and_load` would give to
        device i of k, possibly none. Of rows that are not shuffled, the others are not kept.

    Attributes
    ----------
    epoch : int
        The number of iterations begun. Can be set: a resumed run sets it to the epochs already done.
    num_rows : int
        Rows in the dataset, in all shards.
    num_classes : int
        One more than the largest label in all shards.
    digest : str
        Tells this dataset from others, whichever shard is taken.
    batch_size, dataset, shard
        As given.

    Raises
    ------
    ValueError
        If `batch_size` or `seed` is out of range, the arrays have other dtypes or shapes, or a label is negative.
    """

    def __init__(self, images: numpy.ndarray, labels: numpy.ndarray, batch_size: int, dataset: str,
                 shuffle: bool = False, seed: int = 0, shard: tuple[int, int] = (0, 1)) -> None:
        self.batch_size = integer('batch_size', batch_size, 1)
        self.dataset = dataset
        _check_arrays(images, labels)
        self.num_rows = len(images)
        self.num_classes = int(labels.max()) + 1 if len(labels) else 0
        self.epoch = 0
        self.shard = shard
        self.digest = _digest(images, labels)
        self._shuffle, self._seed = shuffle, integer('seed', seed, 0)
        self._kept = None  # all rows, or the numbers of those that are
        if not shuffle and shard != (0, 1):
            self._kept = numpy.concatenate(list(self._shards(numpy.arange(self.num_rows))))
            images, labels = images[self._kept], labels[self._kept]
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return -(-self.num_rows // self.batch_size)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        order = numpy.arange(self.num_rows)
        if self._shuffle:
            order = numpy.random.default_rng((self._seed, self.epoch)).permutation(order)
        self.epoch += 1
        return map(self._batch, self._shards(order))

    def _shards(self, order: numpy.ndarray) -> Iterator[numpy.ndarray]:
        """Yield the rows of each batch that are in this shard."""
        for start in range(0, self.num_rows, self.batch_size):
            batch = order[start:start + self.batch_size]
            yield batch[shard_rows(len(batch), *self.shard)]

    def _batch(self, rows: numpy.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shape = (len(rows), 1, *self._images.shape[1:])
        if not len(rows):
            return np.empty(shape), np.empty(0, dtype='int32')
        if self._kept is not None:
            rows = numpy.searchsorted(self._kept, rows)
        X, X_view = empty_with_view(shape, 'float32')
        y, y_view = empty_with_view((len(rows),), 'int32')
        numpy.divide(self._images[rows, None], numpy.float32(255), out=X_view)
        y_view[:] = self._labels[rows]
        return X, y


def check_data(data: tuple, batch_size: int, net: Any = None) -> tuple:
    """Return `data` if a network with `net`'s outputs can be trained on it.

    The labels of a `BatchIterator`, or of a list of batches, are looked at once; those of another iterable are not.
    MXNet takes the last class for all labels above it, and the first one for those below zero.

    Parameters
    ----------
    data : (train_iter, test_iter)
        Iterables of (X, y).
    batch_size : int
        The number that every update is divided by.
    net : gluon.HybridBlock, optional
        By default a network of ten classes. It is left as it is.

    Raises
    ------
    ValueError
        If `data` is no pair, a `BatchIterator` to train on has another batch size, or labels are outside the classes.
    """
    try:
        train_iter, test_iter = data
    except (TypeError, ValueError):
        raise ValueError(f'data of type {type(data).__name__}: a pair (train_iter, test_iter) expected') from None
    if isinstance(train_iter, BatchIterator) and train_iter.batch_size != batch_size:
        raise ValueError(f'batch_size {batch_size}, but the training data has batches of {train_iter.batch_size} rows: '
                         'give both the same number, since every update is divided by batch_size')
    for name, batches in (('training', train_iter), ('test', test_iter)):
        shape, lowest, highest = _shape_and_labels(batches)
        num_classes = 10 if net is None or not shape else num_outputs(net, shape)
        if num_classes is not None and (lowest < 0 or highest >= num_classes):
            raise ValueError(f'the {name} labels are from {lowest} to {highest}, but the network has {num_classes} '
                             f'outputs: labels from 0 to {num_classes - 1} expected')
    return train_iter, test_iter


def _shape_and_labels(batches: Any) -> tuple[tuple, int, int]:
    """The shape of one row as a batch, the smallest and the largest label; (), 0, -1 if they cannot be looked at."""
    if isinstance(batches, BatchIterator):
        return (1, 1, *batches._images.shape[1:]), 0, batches.num_classes - 1
    if not isinstance(batches, (list, tuple)) or not sum(y.size for _, y in batches):
        return (), 0, -1
    labels = numpy.concatenate([(y if isinstance(y, numpy.ndarray) else y.asnumpy()).ravel() for _, y in batches])
    return (1, *batches[0][0].shape[1:]), int(labels.min()), int(labels.max())


def _check_arrays(images: numpy.ndarray, labels: numpy.ndarray) -> None:
    if not isinstance(images, numpy.ndarray) or images.dtype != 'uint8' or images.ndim != 3:
        raise ValueError(f'images: {_kind(images)}; a numpy.ndarray (n, height, width) of uint8, 0 to 255, expected')
    if not isinstance(labels, numpy.ndarray) or labels.dtype.kind not in 'iu' or labels.ndim != 1:
        raise ValueError(f'labels: {_kind(labels)}; a numpy.ndarray (n,) of integers expected')
    if len(images) != len(labels):
        raise ValueError(f'{len(images)} images and {len(labels)} labels: there must be one label for each image')
    if len(labels) and labels.min() < 0:
        raise ValueError(f'label {labels.min()}: labels from 0 expected')


def _kind(array: Any) -> str:
    return f'{type(array).__name__} {getattr(array, "shape", "")} of {getattr(array, "dtype", "no dtype")}'


def _digest(images: numpy.ndarray, labels: numpy.ndarray) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in (images, labels):
        digest.update(repr(array.shape).encode())
        digest.update(numpy.ascontiguousarray(array).data)
    return digest.hexdigest()
