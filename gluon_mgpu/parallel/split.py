"""Split arrays over devices."""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy

from ..base.nested import leaves, refill
from ..base.text import counted
from ..data.shards import shard_rows
from ..devices.lists import check_omp_threads
from ..mxnet_setup.compat import Context, empty_with_view, mx
from ..mxnet_setup.runtime import omp_threads


def split_and_load(data: Any, ctx_list: Sequence[Context], batch_axis: int = 0, even_split: bool = False) -> list[Any]:
    """Split the rows of arrays over devices, as evenly as possible; does not block.

    Source: Gluon's ``gluon.utils.split_and_load``, which D2L 13.5.5 calls. Its default is ``even_split=True``; without,
    it creates empty shards of a small batch, on which layers fail. Here slices are views, not operations.

    Raises ValueError for no devices, CPU contexts that would hang, arrays with different numbers of rows, and with
    `even_split` if the number of rows is not a multiple of the number of devices.

    Parameters
    ----------
    data : np.ndarray or numpy.ndarray, (n, ...), mx.nd's CSRNDArray, or nested lists and tuples of such arrays
    ctx_list : sequence of k mx.Context
    batch_axis : int
        The axis of the n rows; -1 is the last axis of each array.

    Returns
    -------
    list of min(k, n) np.ndarray, or of such lists and tuples as `data`
        Shard i is on ``ctx_list[i]``. 7 rows on 3 devices become 3, 2 and 2 rows; 1 row becomes one shard. The dtype
        stays. A shard on the device of `data` shares its memory, so do not write into it. After ``npx.reset_np()``, the
        shards are arrays of ``mx.nd``, those of NumPy arrays float32, as with Gluon's.
    """
    n, devices = num_rows(data, batch_axis=batch_axis), list(ctx_list)
    if not devices or (even_split and n % len(devices)):
        raise ValueError(f'cannot split {counted(n, "row")} over {counted(len(devices), "device")}'
                         + (' evenly: leave even_split out' if devices else ': name at least one'))
    k = min(n, len(devices))
    if k > 1 and omp_threads() > 1:
        check_omp_threads(devices)
    shards = [_array_shards(array, batch_axis % array.ndim, _rows(n, k), devices) for array in leaves(data)]
    return [refill(data, iter(on_device)) for on_device in zip(*shards)]  # None stays in it


def split_batch(X: Any, y: Any, devices: Sequence[Context]) -> tuple[list[Any], list[Any]]:
    """Split the rows of a batch, X and y, over devices; see `split_and_load`.

    Raises ValueError if they have different numbers of rows.

    Source: D2L 13.5.5, ``split_batch``.
    """
    num_rows(X, y)  # raises an error if they differ
    return split_and_load(X, devices), split_and_load(y, devices)


def num_rows(*batch: Any, batch_axis: int = 0) -> int:
    """Return the number of rows that all arrays of a batch, X or X and y, have; ValueError if they differ."""
    sizes = set()
    for data in batch:
        if data is None:  # as a missing input of a network
            continue
        if isinstance(data, (list, tuple)):
            if leaves(data):
                sizes.add(num_rows(*data, batch_axis=batch_axis))
        elif not -data.ndim <= batch_axis < data.ndim:
            raise ValueError(f'batch_axis {batch_axis}: an array of the shape {data.shape} has no such axis; name one '
                             'that all arrays have')
        else:
            sizes.add(data.shape[batch_axis])
    if len(sizes) != 1:
        raise ValueError(f'arrays of {", ".join(map(str, sorted(sizes))) or "no"} rows: those of a batch must have '
                         'the same number')
    return sizes.pop()


def rows_of(data: Any, rows: slice) -> Any:
    """Return these rows of arrays in nested lists and tuples."""
    return refill(data, (array[rows] for array in leaves(data)))


@lru_cache(maxsize=64)
def _rows(n: int, k: int) -> list[slice]:
    """Return the rows of each of `k` devices, as evenly as possible."""
    return [shard_rows(n, i, k) for i in range(k)]


def _array_shards(data: Any, axis: int, rows_on: list, devices: list) -> list:
    """Return the part of an array on each of the first devices."""
    if isinstance(data, mx.nd.sparse.CSRNDArray):
        if not axis:
            return [data[rows].as_in_context(device) for rows, device in zip(rows_on, devices)]
        data = data.tostype('default')  # because MXNet slices only the rows of CSR arrays
    is_np = mx.util.is_np_array()
    if isinstance(data, numpy.ndarray):
        array, view = empty_with_view(data.shape, data.dtype if is_np else 'float32')
        view[:] = data
    else:
        array = data.as_np_ndarray()
    indices = [(slice(None),) * axis + (rows,) for rows in rows_on] if axis else rows_on
    shards = [array[index].as_in_ctx(device) for index, device in zip(indices, devices)]
    return shards if is_np else [shard.as_nd_ndarray() for shard in shards]
