"""Batches cut from arrays in memory.

    for X, y in BatchIterator(images, labels, 256, 'mnist'):  # (256, 1, 28, 28), (256,)
        ...
"""
from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy

from ..checks import integer
from ..mxnet_setup.compat import empty_with_view, np
from .parts import part as part_of


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
    part : (int, int)
        (i, k): yield part i of k of each batch, for worker i of k: the rows that `split_and_load` would give to
        device i of k, maybe none. Of rows that are not shuffled, the others are not kept.

    Attributes
    ----------
    epoch : int
        The number of iterations begun. Can be set: a resumed run sets it to the epochs already done.
    num_rows : int
        Rows in the dataset, in all parts.
    digest : str
        Tells this dataset from others, whichever part is taken.
    batch_size, dataset, part
        As given.

    Raises
    ------
    ValueError
        If `batch_size` or `seed` is out of range.
    """

    def __init__(self, images: numpy.ndarray, labels: numpy.ndarray, batch_size: int, dataset: str,
                 shuffle: bool = False, seed: int = 0, part: tuple[int, int] = (0, 1)) -> None:
        self.batch_size = integer('batch_size', batch_size, 1)
        self.dataset = dataset
        self.num_rows = len(images)
        self.epoch = 0
        self.part = part
        self.digest = _digest(images, labels)
        self._shuffle, self._seed = shuffle, integer('seed', seed, 0)
        self._kept = None  # all rows, or the numbers of those that are
        if not shuffle and part != (0, 1):
            self._kept = numpy.concatenate(list(self._parts(numpy.arange(self.num_rows))))
            images, labels = images[self._kept], labels[self._kept]
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return -(-self.num_rows // self.batch_size)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        order = numpy.arange(self.num_rows)
        if self._shuffle:
            order = numpy.random.default_rng((self._seed, self.epoch)).permutation(order)
        self.epoch += 1
        return map(self._batch, self._parts(order))

    def _parts(self, order: numpy.ndarray) -> Iterator[numpy.ndarray]:
        """Of each batch, the rows that are in this part."""
        for start in range(0, self.num_rows, self.batch_size):
            batch = order[start:start + self.batch_size]
            yield batch[part_of(len(batch), *self.part)]

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


def _digest(images: numpy.ndarray, labels: numpy.ndarray) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in (images, labels):
        digest.update(repr(array.shape).encode())
        digest.update(numpy.ascontiguousarray(array).data)
    return digest.hexdigest()
