"""Names that MXNet reads from NumPy and newer versions lack, and NumPy's numbers as text that MXNet can read."""
import sys
from abc import ABC
from types import ModuleType, SimpleNamespace
from typing import Any

MODULES = ('mxnet._ctypes.ndarray', 'mxnet._ctypes.symbol', 'mxnet.symbol.symbol')  # write parameters as text


def replacements(numpy: ModuleType) -> dict[str, Any]:
    """Return the names that MXNet reads and some versions of NumPy lack, with what they stood for."""
    return {
        # Missing in NumPy 1.24 to 1.26. NumPy 2 defines it again, as another type, which is not replaced
        'bool': bool,
        # Gone since NumPy 2.0
        'NaN': numpy.nan, 'NAN': numpy.nan, 'Inf': numpy.inf, 'PINF': numpy.inf, 'NINF': -numpy.inf,
        'PZERO': 0.0, 'NZERO': -0.0, 'alltrue': numpy.all, 'sometrue': numpy.any, 'product': numpy.prod,
        'round_': numpy.round, 'msort': lambda a: numpy.sort(a, axis=0),
        'compat': SimpleNamespace(basestring=str),
        # Functions that NumPy 1.20 moved to another package
        **dict.fromkeys(('mirr', 'npv', 'pmt', 'ppmt', 'pv', 'rate')),
        # Gone since NumPy 2.4
        'in1d': lambda a, *args, **kwargs: numpy.isin(numpy.ravel(a), *args, **kwargs),
        'trapz': getattr(numpy, 'trapezoid', None),  # NumPy 1 lacks it, but has trapz
    }


def supply(numpy: ModuleType) -> list[str]:
    """Define the names in `replacements` that this NumPy lacks; return those."""
    # NumPy 1.20 to 1.26 has its own error for the financial functions
    own = {*vars(numpy), *getattr(numpy, '__expired_functions__', ())}
    missing = {name: value for name, value in replacements(numpy).items() if name not in own}
    vars(numpy).update(missing)
    return [*missing]


def write_plain_numbers(numpy: ModuleType) -> None:
    """Make MXNet write operator parameters, which are text, as with NumPy 1: it cannot read ``[0, np.int64(2)]``."""
    if numpy.__version__.startswith('1.'):
        return

    class Text(ABC):  # noqa: B024, for `register`
        """`str` for MXNet's modules."""

        def __new__(cls, value=''):
            text = str(value)
            if 'np.' in text:
                with numpy.printoptions(legacy='1.25'):
                    text = str(value)
            return text

    Text.register(str)  # for isinstance
    for module in filter(None, map(sys.modules.get, MODULES)):
        vars(module)['str'] = Text  # MXNet calls str() on each value, and has no other place to change that
