"""The rule that splits rows over devices, workers and ring chunks."""
from ..base.arguments import integer


def shard_rows(n: int, i: int, k: int) -> slice:
    """Return the rows of shard `i` when `n` rows are split into `k` shards.

    The first ``n % k`` shards have one row more: 7 rows in 3 shards are 3, 2 and 2; 1 row is 1, 0 and 0.
    """
    i = integer('shard', i, 0, integer('the number of shards', k, 1) - 1)
    begin, end = (j * (n // k) + min(j, n % k) for j in (i, i + 1))
    return slice(begin, end)
