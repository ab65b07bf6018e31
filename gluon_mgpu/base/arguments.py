"""Checks of numbers and texts that users pass."""
import math
import operator
import os
import sys
from collections.abc import Callable
from typing import Any

SMALLEST, LARGEST = 2.0**-126, (2 - 2**-23) * 2.0**127  # of float32 above 0, with full precision
LARGEST_INTEGER = 2**31 - 1  # more digits overflow in MXNet and NumPy


def integer(name: str, value: Any, minimum: int, maximum: int = LARGEST_INTEGER) -> int:
    """Return an integer, also one of NumPy, as an int; raise ValueError, with `name`, for others and out of range."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not minimum <= number <= maximum:
        has_maximum = maximum < LARGEST_INTEGER or (number or 0) > maximum
        limits = f'from {minimum} to {maximum}' if has_maximum else f'of at least {minimum}'
        raise ValueError(f'{name} {value!r}: must be an integer {limits}')
    return number


def is_number(value: object) -> bool:
    """Return True for a finite number, no bool; of a file that somebody may have changed."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_count(value: object) -> bool:
    """Return True for an int from 0 to `LARGEST_INTEGER`; of a file that somebody may have changed."""
    return isinstance(value, int) and is_number(value) and 0 <= value <= LARGEST_INTEGER


def check_entries(name: str, record: Any, types: dict[str, Any]) -> None:
    """Raise ValueError, with `name`, unless `record`, from a file, is a dict with entries of these types."""
    for entry, kind in types.items():
        if not isinstance(record, dict) or not isinstance(record.get(entry), kind):
            raise ValueError(f'{entry} of its {name} is missing or malformed')


def not_empty(name: str, value: str) -> str:
    """Return `value`; raise ValueError if it is no text or '', which an unset shell variable gives."""
    if not isinstance(value, str) or not value:
        raise ValueError(f'{name} {value!r}: must be text that is not empty; give a value or leave the flag out')
    return value


def full_path(name: str, value: str | os.PathLike) -> str:
    """Return a path with the home folder for ``~``, which shells do not expand after ``=``; ValueError if empty."""
    return os.path.expanduser(not_empty(name, os.fspath(value) if isinstance(value, os.PathLike) else value))


def existing_folder(name: str, value: str | os.PathLike) -> str:
    """Return the path of a folder, with the home folder for ``~``; raise ValueError for others."""
    path = full_path(name, value)
    if not os.path.isdir(path):
        raise ValueError(f'{name} {path}: must be an existing folder')
    return path


def at_least_0(name: str, value: float, below: float = math.inf) -> float:
    """Return `value` as a float; raise ValueError if it is no number of at least 0 and less than `below`."""
    return _number(name, value, lambda number: 0 <= number < below,
                   'of at least 0' + (f' and less than {below:g}' if below < math.inf else ''))


def positive(name: str, value: float) -> float:
    """Return `value` as a float; raise ValueError if it is no number above 0 and in the range of float32."""
    return _number(name, value, lambda number: number > 0, 'above 0')


def _number(name: str, value: float, is_valid: Callable[[float], bool], rule: str) -> float:
    is_no_number = isinstance(value, (bool, str)) or str(getattr(value, 'dtype', '')) == 'bool'
    try:
        number = math.nan if is_no_number else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not is_valid(number) or number == math.inf:
        raise ValueError(f'{name} {value!r}: must be a number {rule}')
    if number and not SMALLEST <= number <= LARGEST:  # MXNet cannot read it
        raise ValueError(f'{name} {value!r}: must be in the range of float32, {SMALLEST:.2g} to {LARGEST:.2g}')
    return number
