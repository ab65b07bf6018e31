"""Algorithms for allreduce: give every device the sum of the arrays on all devices.

Each takes a list of arrays, one per device, with the same shape and dtype. It replaces each array by the sum, in place
and without blocking, and returns the `Traffic`. The sums of two algorithms differ by rounding, but all devices always
get the same bits, because the sum of each element is completed on one device and copied from there.
"""
from __future__ import annotations

from collections.abc import Callable

from .chunks import halving_doubling, ring
from .whole_arrays import kvstore, star, tree

ALGORITHMS = {'star': star, 'ring': ring, 'tree': tree, 'halving-doubling': halving_doubling, 'kvstore': kvstore}


def allreduce_algorithm(algorithm: Callable | str) -> Callable:
    """Return one of `ALGORITHMS` by its name; return a function as it is."""
    if callable(algorithm):
        return algorithm
    if algorithm not in list(ALGORITHMS):
        raise ValueError(f'allreduce {algorithm!r}: must be {", ".join(ALGORITHMS)} or a function of a list of arrays')
    return ALGORITHMS[algorithm]
