"""Checks of numbers that users pass."""
from __future__ import annotations

import math
import operator


def integer(name: str, value: int, least: int, most: int | None = None) -> int:
    """Return `value` as an int; raise ValueError if it is not an integer from `least` to `most`.

    `name` begins the message. NumPy's integers are accepted, floats and text are not.
    """
    rule = f'must be an integer of at least {least}' if most is None else f'must be an integer from {least} to {most}'
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f'{name} {value!r}: {rule}') from None
    if number < least or (most is not None and number > most):
        raise ValueError(f'{name} {number}: {rule}')
    return number


def positive(name: str, value: float | str) -> float:
    """Return `value`, possibly text, as a float; raise ValueError if it is not finite and above 0."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError(f'{name} {value!r}: must be a number above 0')
    return number
