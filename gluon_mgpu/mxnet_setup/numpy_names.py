"""Names that MXNet reads and newer versions of NumPy lack, and its numbers written as NumPy 1 does."""
from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

MODULES = ('mxnet._ctypes.ndarray', 'mxnet._ctypes.symbol', 'mxnet.symbol.symbol')  # write parameters as text


class Name(NamedTuple):
    """A name that MXNet reads from NumPy, the version that lost it, and what it stood for, as a function of NumPy."""

    name: str
    gone: tuple[int, int]
    value: Callable[[ModuleType], Any]


def _moved(numpy: ModuleType) -> Callable:
    def moved(*args, **kwargs):
        raise RuntimeError('NumPy 1.20 moved this function to the package numpy_financial')
    return moved


NAMES = (
    Name('bool', (1, 20), lambda numpy: bool),  # deprecated in 1.20, gone in 1.24, numpy.bool_ since 2.0
    Name('NaN', (2, 0), lambda numpy: numpy.nan),
    Name('NAN', (2, 0), lambda numpy: numpy.nan),
    Name('Inf', (2, 0), lambda numpy: numpy.inf),
    Name('PINF', (2, 0), lambda numpy: numpy.inf),
    Name('NINF', (2, 0), lambda numpy: -numpy.inf),
    Name('PZERO', (2, 0), lambda numpy: 0.0),
    Name('NZERO', (2, 0), lambda numpy: -0.0),
    Name('alltrue', (2, 0), lambda numpy: numpy.all),
    Name('sometrue', (2, 0), lambda numpy: numpy.any),
    Name('product', (2, 0), lambda numpy: numpy.prod),
    Name('round_', (2, 0), lambda numpy: numpy.round),
    Name('msort', (2, 0), lambda numpy: lambda a: numpy.sort(a, axis=0)),
    Name('in1d', (2, 4), lambda numpy: lambda a, *args, **kwargs: numpy.isin(numpy.ravel(a), *args, **kwargs)),
    Name('trapz', (2, 4), lambda numpy: numpy.trapezoid),
    Name('compat', (2, 0), lambda numpy: SimpleNamespace(basestring=str)),
    *(Name(name, (2, 0), _moved) for name in ('mirr', 'npv', 'pmt', 'ppmt', 'pv', 'rate')),  # raise since 1.20
)


def supply(numpy: ModuleType) -> list[str]:
    """Define `NAMES` that this NumPy lacks; return those."""
    missing = [name for name in NAMES if _version(numpy) >= name.gone and name.name not in vars(numpy)]
    for name in missing:
        setattr(numpy, name.name, name.value(numpy))
    return [name.name for name in missing]


def write_plain_numbers(numpy: ModuleType) -> None:
    """Make MXNet write operator parameters as with NumPy 1.

    MXNet passes them as text, and NumPy 2 writes scalars in lists as ``[0, np.int64(2)]``, which MXNet cannot read.
    """
    if _version(numpy) < (2, 0):
        return

    def plain(value):
        if isinstance(value, (list, tuple)):
            values = map(plain, value)
            return list(values) if isinstance(value, list) else tuple(values)
        if isinstance(value, numpy.floating):
            return float(str(value))  # item() would write a float32 of 0.1 as 0.10000000149011612
        return value.item() if isinstance(value, numpy.generic) else value

    class IsString(type):
        def __instancecheck__(cls, value):
            return isinstance(value, str)

    class Text(metaclass=IsString):
        """`str` for MXNet's modules."""

        def __new__(cls, value=''):
            text = str(value)
            return str(plain(value)) if 'np.' in text and isinstance(value, (list, tuple)) else text

    for module in filter(None, map(sys.modules.get, MODULES)):
        vars(module)['str'] = Text


def _version(numpy: ModuleType) -> tuple[int, ...]:
    return tuple(map(int, numpy.__version__.split('.')[:2]))
