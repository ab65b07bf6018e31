"""Names that MXNet reads from NumPy and newer versions lack, and NumPy's numbers as text that MXNet can read."""
from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

MODULES = ('mxnet._ctypes.ndarray', 'mxnet._ctypes.symbol', 'mxnet.symbol.symbol')  # write parameters as text


NAMES: dict[str, Callable[[ModuleType], Any]] = {  # name -> what it stood for, as a function of NumPy
    # Missing in NumPy 1.24 to 1.26. NumPy 2 defines it again, as another type, which is not replaced
    'bool': lambda numpy: bool,
    # Gone since NumPy 2.0
    'NaN': lambda numpy: numpy.nan,
    'NAN': lambda numpy: numpy.nan,
    'Inf': lambda numpy: numpy.inf,
    'PINF': lambda numpy: numpy.inf,
    'NINF': lambda numpy: -numpy.inf,
    'PZERO': lambda numpy: 0.0,
    'NZERO': lambda numpy: -0.0,
    'alltrue': lambda numpy: numpy.all,
    'sometrue': lambda numpy: numpy.any,
    'product': lambda numpy: numpy.prod,
    'round_': lambda numpy: numpy.round,
    'msort': lambda numpy: lambda a: numpy.sort(a, axis=0),
    'compat': lambda numpy: SimpleNamespace(basestring=str),
    # Functions that NumPy 1.20 moved to another package
    **dict.fromkeys(('mirr', 'npv', 'pmt', 'ppmt', 'pv', 'rate'), lambda numpy: None),
    # Gone since NumPy 2.4
    'in1d': lambda numpy: lambda a, *args, **kwargs: numpy.isin(numpy.ravel(a), *args, **kwargs),
    'trapz': lambda numpy: numpy.trapezoid,
}


def supply(numpy: ModuleType) -> list[str]:
    """Define the `NAMES` that this NumPy lacks; return those."""
    # NumPy 1.20 to 1.26 has its own error for the financial functions
    answered = getattr(numpy, '__expired_functions__', ())
    missing = [name for name in NAMES if name not in vars(numpy) and name not in answered]
    for name in missing:
        setattr(numpy, name, NAMES[name](numpy))
    return missing


def write_plain_numbers(numpy: ModuleType) -> None:
    """Make MXNet write operator parameters as with NumPy 1.

    MXNet passes them as text, and NumPy 2 writes scalars in lists as ``[0, np.int64(2)]``, which MXNet cannot read.
    """
    if numpy.__version__.startswith('1.'):
        return

    class IsString(type):
        def __instancecheck__(cls, value):
            return isinstance(value, str)

    class Text(metaclass=IsString):
        """`str` for MXNet's modules."""

        def __new__(cls, value=''):
            text = str(value)
            if 'np.' in text:
                with numpy.printoptions(legacy='1.25'):
                    text = str(value)
            return text

    for module in filter(None, map(sys.modules.get, MODULES)):
        vars(module)['str'] = Text
