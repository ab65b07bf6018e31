"""Checks of numbers that users pass."""
from __future__ import annotations

import math
import operator
from collections.abc import Callable


def integer(name: str, value: int, minimum: int, maximum: int | None = None) -> int:
    """Return `value` as an int; raise ValueError if it is not an integer from `minimum` to `maximum`.

    `name` begins the message. NumPy's integers are accepted, floats and text are not.
    """
    rule = 'must be an integer ' + (f'of at least {minimum}' if maximum is None else f'from {minimum} to {maximum}')
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f'{name} {value!r}: {rule}') from None
    if number < minimum or (maximum is not None and number > maximum):
        raise ValueError(f'{name} {number}: {rule}')
    return number


def at_least_0(name: str, value: float | str, below: float = math.inf) -> float:
    """Return `value`, possibly text, as a float; raise ValueError if it is not at least 0 and less than `below`."""
    return _number(name, value, lambda number: 0 <= number < below,
                   'of at least 0' + (f' and less than {below:g}' if below < math.inf else ''))


def positive(name: str, value: float | str) -> float:
    """Return `value`, possibly text, as a float; raise ValueError if it is not finite and above 0."""
    return _number(name, value, lambda number: 0 < number < math.inf, 'above 0')


def _number(name: str, value: float | str, is_valid: Callable[[float], bool], rule: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not is_valid(number):
        raise ValueError(f'{name} {value!r}: must be a number {rule}')
    return number
