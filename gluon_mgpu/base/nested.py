"""Nested lists and tuples."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def leaves(values: Any) -> list:
    """Return what is in nested lists and tuples, in order, without None."""
    if isinstance(values, (list, tuple)):
        return [leaf for value in values for leaf in leaves(value)]
    return [] if values is None else [values]


def refill(values: Any, new: Iterator) -> Any:
    """Return the same nested lists and tuples, and None in them, with the items of `new` instead of all else."""
    if not isinstance(values, (list, tuple)):
        return None if values is None else next(new)
    filled = [refill(value, new) for value in values]
    return tuple(filled) if isinstance(values, tuple) else filled
