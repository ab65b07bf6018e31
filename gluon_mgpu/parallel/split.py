"""Rows spread over devices.

    X_shards = split_and_load(X, devices)                # one array
    X_shards, y_shards = split_batch(X, y, devices)      # a batch
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..data.shards import shard_rows
from ..devices.lists import check_omp_threads

if TYPE_CHECKING:
    from mxnet.context import Context


def split_and_load(data: Any, devices: Sequence[Context]) -> list[Any]:
    """Split the rows of an array over devices, as evenly as possible.

    Source: Gluon's ``gluon.utils.split_and_load``, which D2L 13.5.5 calls. That one takes only batches that
    divide by the number of devices, or gives some of them empty shards, on which layers fail. There the slices are
    operations, queued on the device of `data`; here they are views, and only the copies to other devices are
    queued.

    Parameters
    ----------
    data : np.ndarray or numpy.ndarray, (n, ...)
    devices : sequence of k mx.Context

    Returns
    -------
    list of min(k, n) np.ndarray
        Shard i is on ``devices[i]``. 7 rows on 3 devices are 3, 2 and 2; 1 row on 3 devices is one shard, so
        that ``zip(shards, devices)`` leaves the other devices out; no rows are no shards. The dtype stays. A shard
        on the device of `data` shares its memory, so don't write into it. Does not wait.

    Raises
    ------
    ValueError
        If there are no devices, or several CPU contexts would hang (`check_omp_threads`).
    """
    n, k = len(data), min(len(data), len(devices))
    if not devices:
        raise ValueError(f'cannot split {n} rows over 0 devices: name at least one')
    if k > 1:
        check_omp_threads(devices)
    data = _from_numpy(data) if n else data
    return [data[shard_rows(n, i, k)].as_in_ctx(device) for i, device in enumerate(devices[:k])]


def split_batch(X: Any, y: Any, devices: Sequence[Context]) -> tuple[list[Any], list[Any]]:
    """Split the rows of a batch over devices: two calls of `split_and_load`.

    Source: D2L 13.5.5, ``split_batch``.

    Parameters
    ----------
    X, y : np.ndarray or numpy.ndarray, (n, ...) and (n, ...)
    devices : sequence of k mx.Context

    Returns
    -------
    X_shards, y_shards : lists of min(k, n) np.ndarray
        Shard i of both is on ``devices[i]``. Does not wait.

    Raises
    ------
    ValueError
        If `X` and `y` differ in rows, and as `split_and_load` does.
    """
    if len(X) != len(y):
        raise ValueError(f'X has {len(X)} rows and y has {len(y)}: they must have equally many')
    return split_and_load(X, devices), split_and_load(y, devices)


def _from_numpy(array: Any) -> Any:
    from ..mxnet_setup.compat import empty_with_view, mx
    if isinstance(array, mx.nd.NDArray):
        return array
    copy, view = empty_with_view(array.shape, array.dtype)
    view[:] = array
    return copy
