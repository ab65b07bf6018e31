"""The one rule by which rows are split over devices, workers and ring chunks."""
from __future__ import annotations


def shard_rows(n: int, i: int, k: int) -> slice:
    """Return which of `n` rows are shard `i` of `k`: as even as possible, the first shards a row longer.

    7 rows in 3 shards are 3, 2 and 2; 1 row in 3 shards is 1, 0 and 0.
    """
    # n = k * (n // k) + n % k: the first n % k shards have one row more
    begin, end = (j * (n // k) + min(j, n % k) for j in (i, i + 1))
    return slice(begin, end)
