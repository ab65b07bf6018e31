"""How rows are shared out, over devices or workers."""
from __future__ import annotations


def part(n: int, i: int, k: int) -> slice:
    """Return which of `n` rows are part `i` of `k`: as even as possible, the first ones a row longer.

    7 rows in 3 parts are 3, 2 and 2; 1 row in 3 parts is 1, 0 and 0.
    """
    # n = k * (n // k) + n % k: the first n % k parts have one row more
    begin, end = (j * (n // k) + min(j, n % k) for j in (i, i + 1))
    return slice(begin, end)
