"""Numbers that people give, checked: what is wrong with one is told in one line."""
from __future__ import annotations

import math
import operator


def integer(name: str, value: int, least: int, most: int | None = None) -> int:
    """Return `value` as an int.

    Parameters
    ----------
    name : str
        What it is called in the error.
    value : int
        An int, or what can be one without loss, such as NumPy's.
    least : int
        The smallest that is allowed.
    most : int, optional
        The largest.

    Raises
    ------
    ValueError
        If it is no integer, less than `least` or more than `most`.
    """
    rule = f'an integer of at least {least}' if most is None else f'an integer from {least} to {most}'
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f'{name} {value!r}: {rule} expected') from None
    if number < least or (most is not None and number > most):
        raise ValueError(f'{name} {number}: {rule} expected')
    return number


def positive(name: str, value: float) -> float:
    """Return `value` as a float.

    Parameters
    ----------
    name : str
        What it is called in the error.
    value : float
        A number, or text that is one.

    Raises
    ------
    ValueError
        If it is no number, or not above zero and finite.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError(f'{name} {value!r}: a number above 0 expected')
    return number
