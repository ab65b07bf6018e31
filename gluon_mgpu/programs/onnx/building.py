"""An ONNX graph under construction, and what converters share. Needs onnx."""
import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy
from onnx import NodeProto, helper, numpy_helper

from ...networks.graph_operators import Operator
from .graph import Array

Converters = dict[str, Callable[..., Any]]  # by the kind of operation
END = 2**31 - 1  # of a slice: after the last element


def require(supported: object, reason: str) -> None:
    """Raise NotImplementedError, with the reason in words."""
    if not supported:
        raise NotImplementedError(reason)


def require_fixed(*arrays: Array, axes: Any) -> None:
    """Raise NotImplementedError if some axis of an array depends on the batch."""
    require(all(array.shape[axis] == array.other[axis] for array in arrays for axis in axes),
            'its sizes depend on the batch')


def by_name(*converters: Callable) -> Converters:
    """Return converters by the operators that they are named after, such as `_rnn` for rnn."""
    return {converter.__name__.strip('_'): converter for converter in converters}


def as_list(setting: Any) -> list:
    """Return a setting as a list, also if it is a single number."""
    return [*setting] if type(setting) in (list, tuple) else [setting]


def call(converter: Callable, g: Any, op: Operator) -> Any:
    """Call a converter with what it names of the operator and its settings."""
    names = inspect.signature(converter).parameters
    first = [g, op] if 'op' in names else [g]
    return converter(*first, *op.inputs, **{name: value for name, value in op.settings.items() if name in names})


class Builder:
    """An ONNX graph under construction. ``g.Conv(X, W, group=2)`` appends an ONNX operator to `nodes`.

    Inputs are arrays of the network, results of other operators, or constants: numbers, lists, and NumPy arrays.
    Numbers with a fraction become `float_dtype`. Names begin with `place`, a layer. `batch_axis` is that of `first`.
    """

    def __init__(self, first: Array, batch_axis: int):
        self.nodes: list[NodeProto] = []
        self._first, self._batch_axis, self.place, self.float_dtype = first, batch_axis, 'input', 'float32'

    def __getattr__(self, operator: str) -> Callable[..., Any]:
        return functools.partial(self.add, operator)

    def add(self, operator: str, *inputs: Any, results: int = 0, **settings: Any) -> Any:
        """Append an operator; return the name of its result, or a list of names if `results` is given."""
        input_names = [*map(self.name, inputs)]
        name = f'{self.place}/{operator}_{len(self.nodes)}'
        names = [f'{name}_{i}' for i in range(results)] or [name]
        self.nodes.append(helper.make_node(operator, input_names, names, name, **settings))
        return names if results else name

    def name(self, X: Any) -> str:
        """Return the name of an array, which is appended if it is a constant."""
        if isinstance(X, str):
            return X
        if isinstance(X, Array):
            return X.name
        values = numpy.asarray(X)
        if values.dtype == 'float64' and not isinstance(X, numpy.ndarray):
            values = values.astype(self.float_dtype if values.size else 'int64')  # [] is a shape
        return self.add('Constant', value=numpy_helper.from_array(values))

    def cast(self, X: Any, dtype: str, own: str = '') -> Any:
        """Convert to a dtype, if necessary; `own` is that of a result, which is only a name."""
        return X if dtype == (own or getattr(X, 'dtype', '')) else self.Cast(
            X, to=helper.np_dtype_to_tensor_dtype(numpy.dtype(dtype)))

    def reshape(self, X: Any, array: Array) -> str:
        """Reshape to the shape of an array."""
        sizes = [size if size == other else -1 for size, other in zip(array.shape, array.other)]
        return self.Reshape(X, sizes if sizes.count(-1) < 2 else self.shape(array))

    def shape(self, array: Array) -> Any:
        """Return the shape of an array; sizes that depend on the batch are proportional to it."""
        if array.shape == array.other:
            return [*array.shape]
        rows, other_rows = (shape[self._batch_axis] for shape in (self._first.shape, self._first.other))
        sizes, others = numpy.array([array.shape, array.other])
        is_fixed = sizes == others
        require((is_fixed | (sizes * other_rows == others * rows)).all(), 'a size is not proportional to the batch')
        batch = self.Gather(self.Shape(self._first), self._batch_axis)
        return self.Where(is_fixed, sizes, self.Div(self.Mul(batch, sizes), rows))

    def swap(self, X: Any, rank: int, first: int, second: int) -> Any:
        """Swap two axes, of which both may be the same."""
        order = [*range(rank)]
        order[first], order[second] = order[second], order[first]
        return X if order == [*range(rank)] else self.Transpose(X, perm=order)

    def indices(self, X: Any, array: Array, axis: int, mode: str = 'clip') -> str:
        """Return indices along an axis of an array; those beyond its ends become the first or last, or wrap around."""
        X, size = self.cast(X, 'int64'), self.Gather(self.Shape(array), axis)
        return self.Mod(X, size) if mode == 'wrap' else self.Clip(X, 0, self.Sub(size, 1))

    def before(self, X: Array, length: Array, axis: int, missing: list[int]) -> str:
        """Return a mask, true before `length` along an axis; `missing` are the axes that `length` does not have."""
        require_fixed(X, axes=[axis])
        positions = numpy.arange(X.shape[axis]).reshape(-1, *[1] * (X.rank - 1 - axis % X.rank))
        return self.Less(positions, self.Unsqueeze(self.cast(length, 'int64'), missing))
