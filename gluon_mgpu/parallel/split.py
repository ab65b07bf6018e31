"""Split arrays over devices."""
from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy

from ..base.arguments import positive
from ..data.shards import shard_rows
from ..devices.lists import check_devices, check_list, check_omp_threads
from ..mxnet_setup.compat import Context, empty_with_view, mx


def split_and_load(data: Any, devices: Sequence[Context], shares: Sequence[float] | None = None) -> list[Any]:
    """Split the rows of an array over devices, as evenly as possible or by `shares`; does not block.

    Source: Gluon's ``gluon.utils.split_and_load``, which D2L 13.5.5 calls. Gluon's function raises an error if the
    number of rows is not a multiple of the number of devices, or creates empty shards, on which layers fail. It also
    queues each slice as an operation; here slices are views. Raises ValueError if there are no devices or one is
    missing, if OMP_NUM_THREADS would make several CPU contexts hang (`check_omp_threads`), and for invalid shares or
    `data`.

    Parameters
    ----------
    data : np.ndarray or numpy.ndarray, (n, ...)
    devices : sequence of k mx.Context
    shares : sequence of k numbers above 0, optional
        The speeds of the devices: with ``[3, 1]``, the first gets three rows for each row of the second.

    Returns
    -------
    list of min(k, n) np.ndarray
        Shard i is on ``devices[i]``. 7 rows on 3 devices become 3, 2 and 2 rows; 1 row becomes one shard, whatever
        the shares. The dtype stays. A shard on the device of `data` shares its memory, so do not write into it.
    """
    check_rows(data)
    if isinstance(devices, str) or not isinstance(devices, Sequence):
        check_list(devices)  # raises an error
    n, k = len(data), min(len(data), len(devices))
    if not devices:
        raise ValueError(f'cannot split {n} rows over 0 devices: name at least one')
    if k > 1:
        check_omp_threads(devices)
    data = _from_numpy(data) if isinstance(data, numpy.ndarray) else data.as_np_ndarray()
    rows = _rows(n, k, None if shares is None else check_shares(shares, devices)[:k])
    try:
        return [data[rows[i]].as_in_ctx(device) for i, device in enumerate(devices[:k])]
    except (mx.MXNetError, TypeError):
        check_devices(devices)  # says which one is missing or no device
        raise


def split_batch(X: Any, y: Any, devices: Sequence[Context]) -> tuple[list[Any], list[Any]]:
    """Split the rows of a batch, X and y, over devices, by the shares of `Devices` if they have any.

    Source: D2L 13.5.5, ``split_batch``. Raises ValueError if `X` and `y` have different numbers of rows.
    """
    check_rows(X, y)
    shares = getattr(devices, 'shares', None)
    return split_and_load(X, devices, shares), split_and_load(y, devices, shares)


def check_rows(X: Any, y: Any = None) -> None:
    """Raise ValueError if `X` or `y` is no array with rows, or if they have different numbers of rows."""
    for data in (X,) if y is None else (X, y):
        if not isinstance(data, (numpy.ndarray, mx.nd.NDArray)) or not data.shape:  # or a single number
            raise ValueError(f'cannot split a {type(data).__name__}: pass an array (n, ...) of mxnet.np or NumPy')
    if y is not None and len(X) != len(y):
        raise ValueError(f'X has {len(X)} rows and y has {len(y)}: both must have the same number')


def check_shares(shares: Sequence[float] | str, devices: Sequence[Context]) -> tuple[float, ...]:
    """Return shares, possibly text such as ``'3,1'``, as numbers.

    Raises ValueError unless there is one for each device, in a definite order, and all are above 0.
    """
    if isinstance(shares, (Set, Mapping, bytes)):
        raise ValueError(f'shares {shares!r}: must be a list of numbers, in the order of the devices')
    numbers: Any = shares.split(',') if isinstance(shares, str) else shares if hasattr(shares, '__len__') else [shares]
    if len(numbers) != len(devices):
        raise ValueError(f'shares {",".join(map(str, numbers))}: must be one number for each of {list(devices)}')
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


def _from_numpy(array: numpy.ndarray) -> Any:
    """Copy an array to ``cpu(0)``."""
    copy, view = empty_with_view(array.shape, array.dtype)
    view[:] = array
    return copy
