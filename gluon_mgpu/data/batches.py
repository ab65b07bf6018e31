"""Batches of images and labels from arrays in memory."""
import hashlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy

from ..base.arguments import integer
from ..base.program import InputError
from ..base.text import counted, described
from ..mxnet_setup.compat import MXNET_MAJOR, empty_with_view, gluon, mx, np
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
        _check_arrays(images, labels)
        self.batch_size = integer('batch_size', batch_size, minimum=1)
        rank, size = shard[0], integer('size', shard[1], minimum=1)
        self.dataset, self.shard = dataset, (integer('rank', rank, 0, size - 1), size)
        self.epoch, self.num_rows = 0, len(images)
        self.num_classes = int(labels.max()) + 1 if len(labels) else 0
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


def check_data(data: tuple, batch_size: int, net: Any = None, allgather: Callable = lambda value: [value],
               image: tuple = ()) -> tuple:
    """Return `data`, a pair of iterables over (X, y), if `net` (default: ten outputs) can be trained on it.

    Raises ValueError for another batch size than that of the data, another shape than `image`, and labels outside the
    classes of `net`, which MXNet would treat as others. `allgather` exchanges the sizes of several workers' shards.
    """
    try:
        train_iter, test_iter = data
    except (TypeError, ValueError):
        found = f'{type(data).__name__} of {len(data)}' if hasattr(data, '__len__') else type(data).__name__
        raise ValueError(f'data must be a pair (train_iter, test_iter), not {found}') from None
    for name, batches in (('training', train_iter), ('test', test_iter)):
        check_batches(batches)
        arrays = _arrays(batches)
        for batch in arrays:
            _check_batch(name, batch, net, image)
        shape, lowest, highest = _shape_and_labels(batches, arrays)
        num_classes = 10 if net is None or not shape else num_outputs(net, shape)
        if num_classes is not None and (lowest < 0 or highest >= num_classes):
            raise ValueError(f'the {name} labels are from {lowest} to {highest}, but the network has '
                             f'{counted(num_classes, "output")}: labels must be from 0 to {num_classes - 1}')
    is_only = isinstance(train_iter, (list, tuple)) and len(train_iter) == 1  # like a last one, it may be smaller
    rows_of_all, are_only = zip(*allgather((_batch_size(train_iter), is_only)))
    rows = None if None in rows_of_all else sum(rows_of_all)
    if rows is not None and (rows > batch_size or (rows < batch_size and not all(are_only))):
        together = ' over all workers' if len(rows_of_all) > 1 else ''
        raise InputError(f'batch_size {batch_size}, but the training data has batches of {rows} rows{together}: use '
                         'the same number, because every update is divided by batch_size')
    return train_iter, test_iter


def check_batches(batches: Any, as_pairs: bool = False) -> None:
    """Raise ValueError for what has no batches, and for MXNet's older iterators, whose batches can have rows twice.

    With `as_pairs`, also for a list of anything but pairs (X, y), such as (X, y) itself.
    """
    if isinstance(batches, (str, dict)) or not (hasattr(batches, '__iter__') or hasattr(batches, '__getitem__')):
        raise ValueError(f'{batches!r} has no batches: pass a list of pairs (X, y), a DataLoader or the like')
    if isinstance(batches, (numpy.ndarray, mx.nd.NDArray)):
        raise ValueError(f'{described(batches)} is no list of batches: pass pairs, such as [(X, y)], a DataLoader or '
                         'the like')
    for batch in batches if as_pairs and isinstance(batches, (list, tuple)) else ():
        as_pair(batch)
    if isinstance(batches, mx.io.DataIter):
        raise ValueError(f'{type(batches).__name__} yields no pairs (X, y): pass gluon.data.DataLoader('
                         'gluon.data.ArrayDataset(X, y), batch_size) instead')


def as_pair(batch: Any) -> Any:
    """Return a batch (X, y); raise ValueError for another one, as that of a DataLoader of three arrays."""
    if not isinstance(batch, (list, tuple)) or len(batch) != 2:
        raise ValueError(f'the batches have {described(batch)} instead of a pair (X, y): pass a list such as [(X, y)]; '
                         'several inputs are one tuple X')
    return batch


def num_outputs(block: gluon.HybridBlock, shape: tuple) -> int | None:
    """Return how many numbers a block, possibly not initialized, returns per row of a batch of this shape, or None."""
    try:
        if MXNET_MAJOR < 2:
            data = mx.sym.var('data')
            graph = block(data.as_np_ndarray() if mx.util.is_np_array() else data)
            return graph.infer_shape_partial(data=shape)[1][0][-1]  # infer_shape would print its errors
        device = next(iter(block.collect_params().values())).list_ctx()[0]
        return block(np.zeros(shape, ctx=device)).shape[-1]
    except Exception:  # a faulty block: training will report it
        return None


def _check_batch(name: str, batch: Any, net: Any, image: tuple) -> None:
    """Raise ValueError for a batch that is no pair of arrays, has NaN, or does not fit the chapter's network."""
    is_pair = isinstance(batch, (list, tuple)) and len(batch) == 2
    if not is_pair or not all(isinstance(array, (numpy.ndarray, mx.nd.NDArray)) for array in batch):
        raise ValueError(f'the {name} data has {described(batch)} instead of a pair (X, y) of arrays: pass a list such '
                         'as [(X, y)]')
    if name == 'test' and batch[1].size != len(batch[1]):  # in training, labels may be probabilities
        raise ValueError(f'the test labels have the shape {batch[1].shape}: must be class numbers (n,), with which '
                         'predictions are compared')
    X = batch[0]
    if isinstance(X, mx.nd.NDArray):  # of a sparse one, the numbers that it has
        X = X.as_np_ndarray() if X.stype == 'default' else X.data.as_np_ndarray()
    dtype = numpy.dtype(X.dtype)
    if net is None and dtype != 'float32':
        raise ValueError(f"the {name} images are {dtype}: must be float32, such as X.astype('float32')")
    if net is None and image and batch[0].shape[1:] != image:
        raise ValueError(f'the {name} images have the shape {batch[0].shape}: must be (n, '
                         f'{", ".join(map(str, image))})')
    if dtype in ('float32', 'float64') and X.size and not numpy.isfinite(float(X.sum())):
        raise ValueError(f'the {name} images contain NaN or infinity: remove these values')


def _batch_size(batches: Any) -> int | None:
    """Return how many rows of each batch, except a smaller last one, this worker has; None if unknown."""
    if isinstance(batches, BatchIterator):
        return len(range(batches.batch_size)[shard_rows(batches.batch_size, *batches.shard)])
    if isinstance(batches, gluon.data.DataLoader):
        return getattr(batches._batch_sampler, '_batch_size', None)
    return max(len(y) for _, y in batches) if isinstance(batches, (list, tuple)) and batches else None


def _arrays(batches: Any) -> Sequence:
    """Return a list of batches as it is, and all rows of a DataLoader of arrays in memory as one batch; or ()."""
    if isinstance(batches, (list, tuple)):
        return batches
    dataset: Any = getattr(batches, '_dataset', None)
    stack = getattr(batches, '_batchify_fn', None)  # by default a function or, in MXNet 2, a Stack
    is_default = re.match('default_(mp_)?batchify_fn|Stack$', getattr(stack, '__name__', type(stack).__name__))
    # In memory: not numpy.memmap, which is a subclass
    in_memory = isinstance(dataset, gluon.data.ArrayDataset) and all(
        type(array) is numpy.ndarray or isinstance(array, mx.nd.NDArray) for array in dataset._data)
    return [dataset._data] if is_default and in_memory else ()


def _shape_and_labels(batches: Any, arrays: Sequence) -> tuple[tuple, int, int]:
    """Return the shape of a batch of one row and the smallest and largest label; (), 0, -1 if unknown."""
    if isinstance(batches, BatchIterator):
        return (1, 1, *batches._images.shape[1:]), 0, batches.num_classes - 1
    if not sum(y.size for _, y in arrays):
        return (), 0, -1
    labels = numpy.concatenate([(y if isinstance(y, numpy.ndarray) else y.asnumpy()).ravel() for _, y in arrays])
    if not numpy.isfinite(labels).all():
        raise ValueError('a label is NaN or infinite: labels must be class numbers')
    if labels.dtype == bool or (all(y.size == len(y) for _, y in arrays) and (labels % 1).any()):
        raise ValueError(f'labels such as {labels[numpy.argmax(labels % 1)]}: must be class numbers, as integers')
    return (1, *arrays[0][0].shape[1:]), math.floor(labels.min()), int(labels.max())


def _check_arrays(images: numpy.ndarray, labels: numpy.ndarray) -> None:
    if not isinstance(images, numpy.ndarray) or images.dtype != 'uint8' or images.ndim != 3:
        raise ValueError(f'images must be a NumPy array of uint8 (n, height, width), not {_describe(images)}')
    if not isinstance(labels, numpy.ndarray) or labels.dtype.kind not in 'iu' or labels.ndim != 1:
        raise ValueError(f'labels must be a NumPy array of integers (n,), not {_describe(labels)}')
    if len(images) != len(labels):
        raise ValueError(f'{counted(len(images), "image")} and {counted(len(labels), "label")}: each image '
                         'needs one label')
    if len(labels) and labels.min() < 0:
        raise ValueError(f'label {labels.min()}: must be at least 0')


def _describe(array: Any) -> str:
    return f'{array.dtype} {array.shape}' if isinstance(array, numpy.ndarray) else type(array).__name__
