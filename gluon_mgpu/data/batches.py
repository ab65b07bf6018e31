"""Batches of images and labels from arrays in memory."""
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy

from ..base.arguments import integer
from ..base.program import InputError
from ..base.text import counted, described
from ..mxnet_setup.compat import MXNET_MAJOR, empty_with_view, gluon, mx, np, of_semantics
from .shards import shard_rows


class BatchIterator:
    """Iterator over the batches of a dataset; each ``for`` loop over it is one epoch.

    Yields ``(X, y)``: float32 (b, 1, height, width) in [0, 1] and int32 (b,), new arrays on ``cpu(0)``. The last batch
    may be smaller; no row is dropped. Never blocks, so that devices compute while the next batch is prepared.

    `images` are uint8 (n, height, width), `labels` integers (n,). With a `shard` (rank, size), it yields only the rows
    that `split_and_load` would move to device ``rank`` of ``size``. A `Run` sets ``epoch``, the number of epochs
    started: with the seed, it decides the order. Source: D2L 23.7, ``load_data_fashion_mnist``, with a DataLoader.
    """

    def __init__(self, images: numpy.ndarray, labels: numpy.ndarray, batch_size: int, dataset: str,
                 shuffle: bool = False, seed: int = 0, shard: tuple[int, int] = (0, 1)) -> None:
        if images.dtype != 'uint8' or images.ndim != 3:
            raise ValueError(f'images must be uint8 (n, height, width), not {images.dtype} {images.shape}')
        if labels.dtype.kind not in 'iu' or labels.shape != images.shape[:1] or labels.min(initial=0) < 0:
            raise ValueError(f'labels must be integers of at least 0, one for each of {len(images)} images')
        self.batch_size = integer('batch_size', batch_size, minimum=1)
        self.dataset, self.shard = dataset, tuple(shard)
        shard_rows(0, *self.shard)  # raises for one that cannot be
        self.epoch, self.num_rows = 0, len(images)
        digest = hashlib.blake2b(digest_size=16)
        for array in (images, labels):
            digest.update(repr(array.shape).encode())
            digest.update(numpy.ascontiguousarray(array).data)
        self.digest = digest.hexdigest()
        self._shuffle, self._seed = shuffle, integer('seed', seed, minimum=0)
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return -(-self.num_rows // self.batch_size)  # rounded up

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        order = numpy.arange(self.num_rows)
        if self._shuffle:
            order = numpy.random.default_rng((self._seed, self.epoch)).permutation(order)
        self.epoch += 1
        return (self._batch(order[start:start + self.batch_size]) for start in range(0, self.num_rows, self.batch_size))

    def _batch(self, rows: numpy.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = rows[shard_rows(len(rows), *self.shard)]
        X, X_view = empty_with_view((len(rows), 1, *self._images.shape[1:]), 'float32')
        y, y_view = empty_with_view((len(rows),), 'int32')
        numpy.divide(self._images[rows, None], numpy.float32(255), out=X_view)
        y_view[:] = self._labels[rows]
        return X, y


def check_training_data(data: tuple, batch_size: int, net: Any = None,
                        allgather: Callable = lambda value: [value]) -> tuple:
    """Return `data`, a pair of iterables over (X, y), if `net` (default: ten outputs) can be trained on it.

    Raises ValueError for what MXNet would silently take for something else: labels that are not classes of `net`, and
    another batch size than that of the data. `allgather` exchanges the sizes of several workers' shards.
    """
    if not _is_pair(data) or any(hasattr(each, 'shape') for each in data):
        raise ValueError(f'data is {described(data)}: must be a pair of iterables over (X, y), such as (train_iter, '
                         'test_iter), or (train_iter, validation_iter) of load_data with a validation_size')
    train_iter, test_iter = data
    for name, batches in (('training', train_iter), ('test', test_iter)):
        for X, y in map(as_pair, _in_memory(batches)):
            _check_labels(name, y, 10 if net is None else num_outputs(net, X))
    _check_batch_size(train_iter, batch_size, allgather)
    return train_iter, test_iter


def as_pair(batch: Any) -> Any:
    """Return a batch (X, y); raise ValueError for another one, as that of a DataLoader of three arrays."""
    if not _is_pair(batch):
        raise ValueError(f'the batches have {described(batch)} instead of a pair (X, y): pass a list such as [(X, y)], '
                         'or a DataLoader of pairs; several inputs are one tuple X')
    return batch


def _is_pair(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2


def num_outputs(block: gluon.HybridBlock, X: Any) -> int | None:
    """Return how many numbers a block, possibly not initialized, returns for each row of `X`; None if unknown."""
    try:
        shape = (1, *X.shape[1:])
        if MXNET_MAJOR < 2:
            graph = block(of_semantics(mx.sym.var('data')))
            return graph.infer_shape_partial(data=shape)[1][0][-1]  # infer_shape would print its errors
        device = next(iter(block.collect_params().values())).list_ctx()[0]
        return block(np.zeros(shape, ctx=device)).shape[-1]
    except Exception:  # a faulty block: training will report it
        return None


def _in_memory(batches: Any) -> Iterable:
    """Return what can be checked without reading: a list of batches, or all rows of other data as one batch."""
    if isinstance(batches, (list, tuple)):
        return batches
    if isinstance(batches, BatchIterator):
        return [(batches._images[:, None], batches._labels)]
    # A DataLoader of arrays, of which another function than one of MXNet's may make other labels
    dataset: Any = getattr(batches, '_dataset', None)
    is_plain = isinstance(dataset, gluon.data.ArrayDataset) and batches._batchify_fn.__module__.startswith('mxnet.')
    return [dataset._data] if is_plain else []


def _check_labels(name: str, y: Any, num_classes: int | None) -> None:
    labels = y.asnumpy() if hasattr(y, 'asnumpy') else numpy.asarray(y)
    if not labels.size:
        return
    lowest, highest = labels.min(), labels.max()
    if num_classes is not None and not 0 <= lowest <= highest < num_classes:  # also NaN
        raise ValueError(f'the {name} labels are from {lowest:g} to {highest:g}, but the network has '
                         f'{counted(num_classes, "output")}: labels must be from 0 to {num_classes - 1}')
    if labels.size != len(labels) or (labels % 1).any():
        raise ValueError(f'the {name} labels {labels.dtype} {labels.shape}: must be class numbers (n,), as integers')


def _check_batch_size(train_iter: Any, batch_size: int, allgather: Callable) -> None:
    rows_of_all = allgather(_rows_of_batch(train_iter, batch_size))
    if None not in rows_of_all and (rows := sum(rows_of_all)) != batch_size:
        together = ' over all workers' if len(rows_of_all) > 1 else ''
        raise InputError(f'batch_size {batch_size}, but the training data has batches of {rows} rows{together}: use '
                         'the same number, because every update is divided by batch_size')


def _rows_of_batch(batches: Any, batch_size: int) -> int | None:
    """Return how many rows of each batch, except a smaller last or only one, this worker has; None if unknown."""
    if isinstance(batches, BatchIterator):
        return len(range(batches.batch_size)[shard_rows(batches.batch_size, *batches.shard)])
    if isinstance(batches, gluon.data.DataLoader):
        return getattr(batches._batch_sampler, '_batch_size', None)
    if not isinstance(batches, (list, tuple)):
        return None
    rows = max((len(y) for _, y in batches), default=0)
    return rows if len(batches) > 1 or rows > batch_size else None
