"""A network in prediction mode: its results, its graph and its parameters, whether it is a block or a function."""
from __future__ import annotations

import contextlib
import types
from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy

from ...base.nested import leaves, refill
from ...base.program import reason
from ...mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, make_array, mx, np
from ...networks.hybridized import hybridized
from ...networks.resnet import in_float32
from ...training.parameters import parameters_by_name, plain
from .graph import Graph, check_shapes, describe, semantics_of, trace

# Of a network that gets symbols or arrays of other shapes
ERRORS = AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError


class Network:
    """A network as a function of its `inputs`, a list of arrays.

    `net` and `examples`, its arguments, are as for `to_onnx`: lists in the arguments of a function are parameters.
    """

    def __init__(self, net: Any, examples: Sequence, param_names: Sequence[str]):
        self._net: Any = net.function if isinstance(net, hybridized) else in_float32(plain(net))
        self._is_block = isinstance(self._net, gluon.HybridBlock)
        self.is_graph = isinstance(self._net, gluon.SymbolBlock)
        if not self._is_block and not isinstance(self._net, types.FunctionType):
            raise ValueError(f'{type(net).__name__} cannot be traced: must be a gluon.HybridBlock or a function')
        # All arrays of the arguments, on one device. Those in lists are parameters, if this is a function
        make = np.array if mx.util.is_np_array() else mx.nd.array
        arrays = [make_array(make, array, dtype='float32' if array.dtype == 'float64' else array.dtype)
                  if isinstance(array, numpy.ndarray) else array for array in leaves(list(examples))]
        self._is_input = [self._is_block or not isinstance(x, (list, tuple)) for x in examples for _ in leaves(x)]
        given = [array for array, is_input in zip(arrays, self._is_input) if not is_input]
        if param_names and len(param_names) != len(given):
            raise ValueError(f'param_names: has {len(param_names)} names for {len(given)} arrays in lists')
        self._params = [*parameters_by_name(self._net).values()] if self._is_block else []
        for dtype in {numpy.dtype(param.dtype).name for param in self._params + given} & {'float16', 'float64'}:
            raise ValueError(f'the network has parameters in {dtype}: cast them to float32')
        device = self._params[0].list_ctx()[0] if self._params else arrays[-1].ctx
        self._arrays = [array.as_in_context(device) for array in arrays]
        self.inputs = [*compress(self._arrays, self._is_input)]
        self._examples, self._param_names = list(examples), param_names

    def evaluate(self, batches: list[list], batch_sizes: list[int]) -> tuple[Sequence[list[numpy.ndarray]], Graph]:
        """Return the results for two lists of inputs of these batch sizes, and the graph.

        Sets `variables`, of the inputs, `params`, by variables, and their `names` in the model.
        """
        try:
            with semantics_of(batches[0][0]), autograd.pause():
                results, graphs, arrays = zip(*map(self._run, batches, batch_sizes))
                return results, describe(graphs, arrays, batch_sizes)
        except ERRORS as error:
            why = error.__cause__ if isinstance(error.__cause__, ERRORS) else error  # `explain_errors` has other advice
            advice = 'pass examples of its inputs and their batch_axis; MXNet must be able to hybridize it'
            if self.is_graph:
                advice = 'check the sizes, the order and the batch axis of its inputs, and its parameters'
            elif 'legacy' in str(why):  # of an operator that does not accept an array
                advice = 'pass arrays of mx.nd to a network of mx.nd, and arrays of mx.np to others'
            shapes = ' or '.join(', '.join(str(array.shape) for array in batch) for batch in batches)
            raise ValueError(f'the network cannot be traced with inputs {shapes}, {reason(why)}: {advice}') from error

    def results(self, inputs: list) -> list[numpy.ndarray] | None:
        """Return the results for some inputs, None if MXNet cannot compute them; blocks."""
        with contextlib.suppress(*ERRORS), semantics_of(inputs[0]), autograd.pause():
            return [array.asnumpy() for array in leaves(self._net(*self._nested(inputs)))]
        return None

    def arrays(self, inputs: Sequence) -> dict[str, Any]:
        """Return the arrays of the variables of the graph by name, with some inputs."""
        return {**dict(zip(self.variables, inputs)), **self.params}

    def _nested(self, inputs: list) -> list:
        """Return the arguments of the network, with some inputs."""
        new = iter(inputs)
        args = [next(new) if is_input else array for is_input, array in zip(self._is_input, self._arrays)]
        return refill(self._examples, iter(args))

    def _run(self, inputs: list, batch_size: int) -> tuple[list[numpy.ndarray], Any, dict]:
        """Return the results for some inputs, the graph (a symbol), and the arrays of its variables by name."""
        nested = self._nested(inputs)
        if MXNET_MAJOR < 2 or self.is_graph:  # where shapes that do not fit may end the process
            symbol, variables = trace(self._net, nested)
            shapes = {param.var().name: param.shape for param in self._params if param.shape}
            shapes.update((name, array.shape) for name, array in zip(variables, leaves(nested)))
            check_shapes(symbol, shapes, batch_size)
        results = self._net(*nested)  # before tracing, because on MXNet 2 it infers shapes
        symbol, variables = trace(self._net, nested)
        self.variables = [*compress(variables, self._is_input)]
        # A block knows its parameters, a function got them as arguments
        if self._is_block:
            # The names of parameters_by_name would lack what those of a SymbolBlock have in common. A layer that is
            # not used may have no parameters yet
            used = {*symbol.list_inputs()}
            named = {param.var().name: (name, param) for name, param in parameters_by_name(self._net).items()
                     if param.var().name in used}
            self.params = {variable: param.list_data()[0] for variable, (_, param) in named.items()}
            self.names = {variable: variable if self.is_graph else name for variable, (name, _) in named.items()}
        else:
            self.params = {name: array for name, array in zip(variables, self._arrays) if name not in self.variables}
            self.names = dict(zip(self.params, self._param_names or self.params))
        return [array.asnumpy() for array in leaves(results)], symbol, self.arrays(inputs)


def batch_axes(batch_axis: int | Sequence[int | None], inputs: Sequence) -> tuple[list, int]:
    """Return the axis of the batch of each input, None without a batch, and the number of the first input with one."""
    axes: list[Any] = [*batch_axis] if isinstance(batch_axis, (list, tuple)) else [batch_axis] * len(inputs)
    first = next((number for number, axis in enumerate(axes) if axis is not None), -1)
    if first < 0 or len(axes) != len(inputs) or not all(
            axis is None or axis in range(array.ndim) for axis, array in zip(axes, inputs)):
        raise ValueError(f'batch_axis {batch_axis}: must be an axis of each of {len(inputs)} inputs, or None for some '
                         'of them')
    return axes, first
