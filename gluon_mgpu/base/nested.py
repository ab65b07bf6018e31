"""Nested lists and tuples."""
from collections.abc import Iterator
from typing import Any


def leaves(values: Any) -> list:
    """Return what is in nested lists and tuples, in order, without None."""
    if isinstance(values, (list, tuple)):
        return [leaf for value in values for leaf in leaves(value)]
    return [] if values is None else [values]


def refill(values: Any, new: Iterator) -> Any:
    """Return a copy of nested lists, tuples and named tuples: the items of `new` replace all but None, in order."""
    if not isinstance(values, (list, tuple)):
        return None if values is None else next(new)
    make = getattr(type(values), '_make', tuple if isinstance(values, tuple) else list)
    return make([refill(value, new) for value in values])
