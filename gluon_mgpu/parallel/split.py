"""Rows spread over devices.

    X_shards = split_and_load(X, devices)                # one array
    X_shards, y_shards = split_batch(X, y, devices)      # a batch
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
        With n at least 1.
    devices : sequence of k mx.Context

    Returns
    -------
    list of min(k, n) np.ndarray
        Shard i is on ``devices[i]``. 7 rows on 3 devices are 3, 2 and 2; 1 row on 3 devices is one shard, so
        that ``zip(shards, devices)`` leaves the other devices out. The dtype stays. A shard on the device of
        `data` shares its memory, so don't write into it. Does not wait.

    Raises
    ------
    ValueError
        If there are no rows or no devices, or several CPU contexts would hang (`check_omp_threads`).
    """
    n, k = len(data), min(len(data), len(devices))
    if k == 0:
        raise ValueError(f'cannot split {n} rows over {len(devices)} devices: both must be at least 1')
    if k > 1:
        check_omp_threads(devices)
    data = _from_numpy(data)
    # n = k * (n // k) + n % k: the first n % k shards have one row more
    ends = [i * (n // k) + min(i, n % k) for i in range(k + 1)]
    return [data[a:b].as_in_ctx(device) for a, b, device in zip(ends, ends[1:], devices)]


def split_batch(X: Any, y: Any, devices: Sequence[Context]) -> tuple[list[Any], list[Any]]:
    """Split the rows of a batch over devices: two calls of `split_and_load`.

    Source: D2L 13.5.5, ``split_batch``.

    Parameters
    ----------
    X, y : np.ndarray or numpy.ndarray, (n, ...) and (n, ...)
        With n at least 1.
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
