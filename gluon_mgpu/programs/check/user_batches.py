"""Batches of a check, cut from the user's."""
from collections.abc import Iterable
from itertools import repeat
from typing import Any

import numpy

from ...base.nested import leaves, refill
from ...base.text import counted, described


def cut(batches: Iterable, k: int) -> tuple[list, Any]:
    """Return batches, each a list of arrays, and the nested lists that they are in, (X, y)."""
    # Even, uneven, even, fewer rows than devices, a short last one, a single row
    sizes = (4 * k, 3 * k + 1, 4 * k, k - 1, 2 * k + 1, 1)
    read: list = []
    rows = 0
    if isinstance(batches, (list, tuple)):
        [*map(_arrays, batches)]  # all, because X of (X, y) may be a pair, and enough for the check
    for batch in batches:
        arrays = _arrays(batch)
        read.append([a.asnumpy() if hasattr(a, 'asnumpy') else a for a in arrays])
        rows += len(arrays[0])
        if rows >= sum(sizes):
            break
    if not read:
        raise ValueError('batches is empty: pass a list such as [(X, y)], not an iterator that has been read')
    if rows < sizes[0]:
        raise ValueError(f'batches with {counted(rows, "row")} in all: {k} devices need at least {sizes[0]}')
    repeated = [numpy.resize(numpy.concatenate(parts), (sum(sizes), *parts[0].shape[1:])) for parts in zip(*read)]
    return [*zip(*(numpy.split(array, numpy.cumsum(sizes)[:-1]) for array in repeated))], refill(batch, repeat(True))


def _arrays(batch: Any) -> list:
    arrays = leaves(batch)
    lengths = {getattr(array, 'shape', ())[:1] for array in arrays}
    if not isinstance(batch, (list, tuple)) or len(batch) != 2 or len(lengths) != 1 or () in lengths:
        raise ValueError(f'batches has {described(batch)} instead of a pair (X, y): pass a list such as [(X, y)], of '
                         'arrays, or tuples of arrays, with the same number of rows')
    return arrays
