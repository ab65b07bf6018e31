"""An ONNX graph under construction. Needs onnx."""
from __future__ import annotations

from typing import Any

import numpy
from onnx import NodeProto, helper, numpy_helper

from ..networks.graph import Array


def tensor_type(dtype: str) -> int:
    """Return ONNX's number of a dtype."""
    return helper.np_dtype_to_tensor_dtype(numpy.dtype(dtype))


class Builder:
    """Appends ONNX operators to `nodes`. Arrays are given and returned by name; `dtypes` has those of the network."""

    def __init__(self, image: str, batch_axis: int, batch_size: int):
        self.nodes: list[NodeProto] = []
        self.dtypes: dict[str, str] = {}
        self._batch = image, batch_axis, batch_size

    def add(self, operator: str, *inputs: str, outputs: int = 0, **settings) -> Any:
        """Append an operator; return the name of its result, or a list of names if `outputs` is given."""
        name = f'{operator}_{len(self.nodes)}'
        names = [f'{name}_{i}' for i in range(outputs)] or [name]
        self.nodes.append(helper.make_node(operator, inputs, names, name, **settings))
        return names if outputs else name

    def constant(self, values: Any, dtype: str = 'float32') -> str:
        """Append an array of these values."""
        return self.add('Constant', value=numpy_helper.from_array(numpy.asarray(values, dtype)))

    def integers(self, *values: int) -> str:
        """Append an array of integers, such as axes."""
        return self.constant(values, 'int64')

    def cast(self, X: str, dtype: str) -> str:
        """Convert to a dtype."""
        return X if self.dtypes.get(X) == dtype else self.add('Cast', X, to=tensor_type(dtype))

    def reshape(self, X: str, *sizes: int) -> str:
        """Reshape; a size of 0 stays, and -1 is computed."""
        return self.add('Reshape', X, self.integers(*sizes))

    def reshape_like(self, X: str, array: Array) -> str:
        """Reshape to the shape of an array."""
        sizes = array.sizes(-1)
        return self.reshape(X, *sizes) if sizes.count(-1) < 2 else self.add('Reshape', X, self.shape(array))

    def shape(self, array: Array) -> str:
        """Return the shape of an array; sizes that depend on the batch are multiples of it."""
        if array.shape == array.other:
            return self.integers(*array.shape)
        image, axis, batch_size = self._batch
        batch = self.slice(self.add('Shape', image), 0, axis, axis + 1)
        return self.add('Concat', *(self.integers(size) if size == other else
                                    self.add('Mul', batch, self.integers(size // batch_size))
                                    for size, other in zip(array.shape, array.other)), axis=0)

    def slice(self, X: str, axis: int, start: int, end: int, step: int = 1) -> str:
        """Return a part along an axis."""
        return self.add('Slice', X, *(self.integers(value) for value in (start, end, axis, step)))

    def swap(self, X: str, rank: int, first: int, second: int) -> str:
        """Swap two axes, of which both may be the same."""
        if first == second:
            return X
        order = [*range(rank)]
        order[first], order[second] = order[second], order[first]
        return self.add('Transpose', X, perm=order)

    def scale(self, X: str, gamma: str, beta: str, num_axes: int) -> str:
        """Return ``X * gamma + beta``, where `num_axes` follow the axis of gamma and beta."""
        gamma, beta = (self.reshape(array, -1, *[1] * num_axes) for array in (gamma, beta))
        return self.add('Add', self.add('Mul', X, gamma), beta)

    def indices(self, X: str, array: Array, axis: int) -> str:
        """Return indices along an axis of an array; those beyond its ends become the first or last, as in MXNet."""
        last = self.constant(array.shape[axis] - 1, 'int64')
        return self.add('Clip', self.cast(X, 'int64'), self.constant(0, 'int64'), last)
