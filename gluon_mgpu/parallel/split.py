"""Split arrays over devices.

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
    """Split the rows of an array over devices, as evenly as possible; does not block.

    Source: Gluon's ``gluon.utils.split_and_load``, which D2L 13.5.5 calls. Gluon's function requires that the devices
    divide the rows, or creates empty shards, on which layers fail. It also queues each slice as an operation; here
    slices are views.

    Parameters
    ----------
    data : np.ndarray or numpy.ndarray, (n, ...)
    devices : sequence of k mx.Context

    Returns
    -------
    list of min(k, n) np.ndarray
        Shard i is on ``devices[i]``. 7 rows on 3 devices become 3, 2 and 2 rows; 1 row becomes one shard. The dtype
        stays. A shard on the device of `data` shares its memory, so do not write into it.

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
    """Split the rows of a batch, X and y, over devices; see `split_and_load`.

    Source: D2L 13.5.5, ``split_batch``. Raises ValueError if `X` and `y` have different numbers of rows.
    """
    if len(X) != len(y):
        raise ValueError(f'X has {len(X)} rows and y has {len(y)}: both must have the same number')
    return split_and_load(X, devices), split_and_load(y, devices)


def _from_numpy(array: Any) -> Any:
    """Copy a NumPy array to ``cpu(0)``; return an MXNet array as it is."""
    from ..mxnet_setup.compat import empty_with_view, mx
    if isinstance(array, mx.nd.NDArray):
        return array
    copy, view = empty_with_view(array.shape, array.dtype)
    view[:] = array
    return copy
