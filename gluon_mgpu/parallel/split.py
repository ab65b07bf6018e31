"""Split arrays over devices."""
from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy

from ..base.arguments import positive
from ..base.nested import leaves, refill
from ..base.text import counted
from ..data.shards import shard_rows
from ..devices.lists import check_devices, check_list, check_omp_threads
from ..mxnet_setup.compat import Context, empty_with_view, mx
from ..mxnet_setup.runtime import omp_threads

CSR, ROW_SPARSE = mx.nd.sparse.CSRNDArray, mx.nd.sparse.RowSparseNDArray


def split_and_load(data: Any, devices: Sequence[Context], shares: Sequence[float] | None = None) -> list[Any]:
    """Split the rows of arrays over devices, as evenly as possible or by `shares`; does not block.

    Source: Gluon's ``gluon.utils.split_and_load``, which D2L 13.5.5 calls. It raises an error if the number of rows is
    not a multiple of the number of devices, or creates empty shards, on which layers fail. Here slices are views, not
    operations.

    Raises ValueError for no or missing devices, CPU contexts that would hang, and invalid shares or `data`.

    Parameters
    ----------
    data : np.ndarray or numpy.ndarray, (n, ...), mx.nd's CSRNDArray, or nested lists and tuples of such arrays
    devices : sequence of k mx.Context
    shares : sequence of k numbers above 0, optional
        The speeds of the devices: with ``[3, 1]``, the first gets three rows for each row of the second.

    Returns
    -------
    list of min(k, n) np.ndarray, or of such lists and tuples as `data`
        Shard i is on ``devices[i]``. 7 rows on 3 devices become 3, 2 and 2 rows; 1 row becomes one shard, whatever
        the shares. The dtype stays. A shard on the device of `data` shares its memory, so do not write into it.
        After ``npx.reset_np()``, the shards are arrays of ``mx.nd``, those of NumPy arrays float32, as with Gluon's.
    """
    n = check_rows(data)
    if isinstance(devices, str) or not isinstance(devices, Sequence):
        devices = check_list(devices)
    k = min(n, len(devices))
    if not devices:
        raise ValueError(f'cannot split {counted(n, "row")} over 0 devices: name at least one')
    if k > 1 and omp_threads() > 1:
        check_omp_threads(devices)
    is_np = mx.util.is_np_array()
    arrays = [_from_numpy(array, array.dtype if is_np else 'float32') if isinstance(array, numpy.ndarray) else
              array if isinstance(array, CSR) else array.as_np_ndarray() for array in leaves(data)]
    rows = _rows(n, k, None if shares is None else check_shares(shares, devices)[:k])
    try:
        shards = [[array[rows[i]].as_in_context(device) if isinstance(array, CSR) else array[rows[i]].as_in_ctx(device)
                   for array in arrays] for i, device in enumerate(devices[:k])]
    except (mx.MXNetError, TypeError):
        check_devices(devices)  # says which one is missing or no device
        raise
    if not is_np:
        shards = [[array.as_nd_ndarray() for array in shard] for shard in shards]
    return [refill(data, iter(shard)) for shard in shards]


def split_batch(X: Any, y: Any, devices: Sequence[Context]) -> tuple[list[Any], list[Any]]:
    """Split the rows of a batch, X and y, over devices, by the shares of `Devices` if they have any.

    `X` and `y` are as for `split_and_load`. Raises ValueError if they have different numbers of rows.

    Source: D2L 13.5.5, ``split_batch``.
    """
    check_rows(X, y)
    shares = getattr(devices, 'shares', None)
    return split_and_load(X, devices, shares), split_and_load(y, devices, shares)


def check_rows(*batch: Any) -> int:
    """Return the number of rows that all arrays of a batch, X or X and y, have; ValueError if they differ."""
    sizes: list[int] = []
    for data in batch:
        arrays = leaves(data)
        if not arrays or not all(isinstance(array, (numpy.ndarray, mx.nd.NDArray)) and array.shape and
                                 not isinstance(array, ROW_SPARSE) for array in arrays):
            if any(isinstance(array, ROW_SPARSE) for array in arrays):
                raise ValueError('cannot split a RowSparseNDArray, whose rows MXNet cannot slice: pass '
                                 "array.tostype('default')")
            raise ValueError(f'cannot split a {type(data).__name__}: pass an array (n, ...) of mxnet.np or NumPy, or '
                             'lists and tuples of such arrays')
        sizes += map(len, arrays)
    if len({*sizes}) > 1:
        raise ValueError(f'arrays of {", ".join(map(str, sizes))} rows: those of a batch must have the same number')
    return sizes[0]


def rows_of(data: Any, rows: slice) -> Any:
    """Return these rows of arrays in nested lists and tuples."""
    return refill(data, (array[rows] for array in leaves(data)))


def check_shares(shares: Sequence[float] | str, devices: Sequence[Context], name: str = 'shares') -> tuple[float, ...]:
    """Return shares, possibly text such as ``'3,1'``, as numbers; ValueError unless all devices have one, above 0."""
    if isinstance(shares, (Set, Mapping, bytes)):
        raise ValueError(f'{name} {shares!r}: must be a list of numbers, in the order of the devices')
    numbers: Any = shares.split(',') if isinstance(shares, str) else shares
    numbers = numbers if hasattr(numbers, '__len__') else [numbers]
    if len(numbers) != len(devices):
        raise ValueError(f'{name} {",".join(map(str, numbers))}: must be one number for each of {list(devices)}')
    return tuple(positive('share', number) for number in numbers)


@lru_cache(maxsize=64)
def _rows(n: int, k: int, shares: tuple[float, ...] | None) -> list[slice]:
    """Return the rows of each device, at least one: as evenly as possible, or by the shares of `k` devices."""
    if shares is None:
        return [shard_rows(n, i, k) for i in range(k)]
    sizes = [1] * k
    for _ in range(n - k):  # each further row goes to the device that would finish it first
        sizes[min(range(len(shares)), key=lambda i: (sizes[i] + 1) / shares[i])] += 1
    return [slice(end - size, end) for end, size in zip(accumulate(sizes), sizes)]


def _from_numpy(array: numpy.ndarray, dtype: Any) -> Any:
    copy, view = empty_with_view(array.shape, dtype)
    view[:] = array
    return copy
