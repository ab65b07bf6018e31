"""A network in prediction mode: its results, its graph and its parameters, whether it is a block or a function."""
from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Sequence
from typing import Any

import numpy

from ..mxnet_setup.compat import MXNET_MAJOR, autograd, children, gluon, graph_from_json, mx, np
from ..networks.graph import Graph, operations, refill, semantics_of, trace
from ..networks.hybridize import unwrapped
from ..networks.precision import Cast
from ..networks.tracing import leaves
from ..training.parameters import by_name, check_initialized

ERRORS = (AssertionError, AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError,
          ValueError, mx.base.NotImplementedForSymbol)  # of a network that gets symbols or arrays of other shapes


class Network:
    """A network as a function of its `inputs`, a list of arrays.

    Parameters
    ----------
    net : gluon.HybridBlock or function
        An initialized block, or a function that `hybridized` accepts.
    examples : sequence
        Arguments of `net`. Lists in the arguments of a function are parameters; `param_names` are their names.
    """

    def __init__(self, net: Any, examples: Sequence, param_names: Sequence[str] = ()):
        self._net = inspect.unwrap(unwrapped(net))
        self._is_block = isinstance(self._net, gluon.HybridBlock)
        if self._is_block:
            check_initialized(self._net)
        elif not isinstance(self._net, types.FunctionType):
            raise ValueError(f'{type(net).__name__} is not a network: must be a gluon.HybridBlock or a function')
        self._name = type(self._net).__name__ if self._is_block else self._net.__name__
        arrays = [_as_array(value) for value in leaves(list(examples))]
        devices = [param.list_ctx()[0] for param in by_name(self._net).values()] if self._is_block else []
        device = (devices or [array.ctx for array in arrays[::-1]])[0]
        self._examples = refill(list(examples), (array.as_in_context(device) for array in arrays))
        self._param_names = param_names
        self.inputs = leaves([x for x in self._examples if not self._is_parameter(x)])
        if not self._is_block:
            self.params()  # checks them before they are used

    def _is_parameter(self, argument: Any) -> bool:
        return not self._is_block and isinstance(argument, list)

    def evaluate(self, batches: list[list], batch_axis: int) -> tuple[list[list[numpy.ndarray]], Graph]:
        """Return the results for two lists of inputs with different batch sizes, and the graph; blocks."""
        try:
            with semantics_of(batches[0][0]), autograd.pause():
                results, graphs, arrays = zip(*map(self._run, batches))
                return results, operations(graphs, arrays, [batch[0].shape[batch_axis] for batch in batches])
        except ERRORS as error:
            shapes = ' or '.join(', '.join(str(array.shape) for array in batch) for batch in batches)
            reason = ' '.join(str(error).split())[:200]
            raise ValueError(f'{self._name} cannot be traced with inputs {shapes}, {reason}: pass examples of its '
                             'inputs and their batch_axis; MXNet must be able to hybridize it') from error

    def _run(self, inputs: list) -> tuple[list[numpy.ndarray], dict, dict]:
        """Return the results for some inputs, the graph as JSON, and the arrays of its variables by name."""
        new = iter(inputs)
        args = [x if self._is_parameter(x) else refill(x, new) for x in self._examples]
        if MXNET_MAJOR >= 2:
            self._net(*args)  # infers shapes
        symbol, variables = trace(self._net, args)
        in_float32 = symbol.tojson(remove_amp_cast=True)
        low_precision = 'amp_cast' in symbol.tojson(remove_amp_cast=False)
        results = [] if low_precision else self._net(*args)
        params = self._params()
        self.variables = [name for name in variables if name not in params]
        arrays = {**dict(zip(variables, leaves(args))), **{variable: array for variable, (_, array) in params.items()}}
        if low_precision:  # its results differ from those of the model, which is in float32
            graph = graph_from_json(in_float32)
            results = mx.nd.CachedOp(graph)(*(arrays[name] for name in graph.list_inputs()))
        return [array.asnumpy() for array in leaves(results)], json.loads(in_float32), arrays

    def params(self) -> dict[str, tuple[str, numpy.ndarray]]:
        """Return the name in the network and the value of each parameter, by its variable in the graph; blocks.

        Raises ValueError unless all are finite and float32.
        """
        copied = {variable: (name, array.asnumpy()) for variable, (name, array) in self._params().items()}
        for name, value in copied.values():
            if value.dtype != 'float32' or not numpy.isfinite(value).all():
                fault = f'is {value.dtype}' if value.dtype != 'float32' else 'contains NaN or infinity'
                raise ValueError(f'{name} {fault}; only finite float32 numbers can be exported')
        return copied

    def _params(self) -> dict[str, tuple[str, Any]]:
        """Return the same with arrays on the first device."""
        if self._is_block:
            casts = [int(name) for name, layer in children(self._net).items() if isinstance(layer, Cast)]

            def without_casts(name: str) -> str:
                """Return the name in a float32 network, '0.weight' for '1.weight'."""
                return re.sub(r'^\d+', lambda found: str(int(found[0]) - sum(i < int(found[0]) for i in casts)), name)

            return {param.var().name: (without_casts(name), param.list_data()[0])
                    for name, param in by_name(self._net).items()}
        found = [(f'{i}_{j}', f'{argument}.{j}', array)
                 for i, (argument, x) in enumerate(zip(inspect.signature(self._net).parameters, self._examples))
                 if self._is_parameter(x) for j, array in enumerate(x)]
        names = self._param_names or [name for _, name, _ in found]
        if len(names) != len(found):
            raise ValueError(f'param_names: has {len(names)} names for {len(found)} arrays in lists')
        return {variable: (name, array) for (variable, _, array), name in zip(found, names)}


def _as_array(value: Any) -> Any:
    if isinstance(value, numpy.ndarray):
        return np.array(value, dtype=value.dtype)
    if not isinstance(value, mx.nd.NDArray):
        raise ValueError(f'{type(value).__name__} among the arguments of the network: must be arrays')
    return value
