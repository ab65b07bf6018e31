"""The graph of a network in prediction mode: its operators, with the shapes and dtypes of their arrays."""
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy

from ...base.nested import leaves, refill
from ...mxnet_setup.compat import MXNET_MAJOR, gluon, mx, np
from ...networks.graph_operators import NUMPY, Operator, build, operators_of
from ...networks.tracing import graph_of, trace_deferred, trace_function, variables_for


class Array(NamedTuple):
    """An array in a graph. `shape` is for one batch size, `other` for another: sizes that differ depend on it."""

    name: str
    shape: tuple
    other: tuple
    dtype: str
    internal: str  # its name in MXNet's get_internals()

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def sizes(self, batch: Any) -> list:
        """Return the shape with `batch` instead of the sizes that depend on the batch."""
        return [size if size == other else batch for size, other in zip(self.shape, self.other)]


class Graph(NamedTuple):
    """A network: its inputs and parameters by name, its operators, of arrays, in order of running, and its outputs."""

    variables: dict[str, Array]
    operators: list[Operator]
    outputs: list[Array]


@contextlib.contextmanager
def semantics_of(array: Any) -> Iterator[None]:
    """Use the semantics of ``mx.nd`` in this thread if `array` is one of its arrays; MXNet 2 has no such networks."""
    if MXNET_MAJOR >= 2 or isinstance(array, np.ndarray):
        yield
        return
    numpy_shapes = mx.util.is_np_shape()
    try:
        with mx.util.np_array(False), mx.util.np_shape(False):
            yield
    finally:
        if numpy_shapes:
            mx.util.set_np_shape(2)  # again in all threads


def trace(net: Callable, args: list) -> tuple[Any, list[str]]:
    """Return the graph of a network that has been called, a symbol, and the names of its variables for `args`."""
    if isinstance(net, gluon.SymbolBlock):
        inputs, graph = net._cached_graph
        return graph, [symbol.name for symbol in inputs]
    if not isinstance(net, gluon.HybridBlock):
        return trace_function(net, args)[:2]
    arrays = leaves(args)
    names = [f'data{i}' for i in range(len(arrays))] if len(arrays) > 1 else ['data']  # as in files of net.export
    symbols = [variables_for(array, name) for array, name in zip(arrays, names)]
    if MXNET_MAJOR >= 2:
        return trace_deferred(net, args, symbols)[0], names
    return graph_of(net(*refill(args, iter(symbols)))), names


def describe(graphs: Sequence[Any], arrays: Sequence[dict[str, Any]], batch_sizes: Sequence[int]) -> Graph:
    """Describe a network. `graphs` is its graph, a symbol, `arrays` those of its variables, for two batch sizes."""
    (operators, outputs), (others, _) = map(operators_of, graphs)
    if [operator.node['op'] for operator in operators] != [operator.node['op'] for operator in others]:
        raise ValueError('its operators depend on the batch size')
    first = _infer(operators, outputs, arrays[0], batch_sizes[0])
    other = _infer(others, outputs, arrays[1], batch_sizes[1])
    found = {name: array._replace(other=other[name].shape) for name, array in first.items()}
    computed = {name for operator in operators for name in operator.outputs.values()}
    variables = {name: array for name, array in found.items() if name not in computed}
    with_arrays = [Operator(node, [found[name] for name in inputs],
                            {number: found[name] for number, name in sorted(results.items())})
                   for node, inputs, results in operators]
    return Graph(variables, with_arrays, [found[name] for name in outputs])


def _infer(operators: list[Operator], outputs: list[str], arrays: dict[str, Any], batch_size: int) -> dict[str, Array]:
    """Return each array in a graph that is used, by name, for one batch size."""
    for node, *_ in operators:
        if node['op'] == '_zeros':  # a recurrent layer's initial state, in which MXNet 1.9 leaves out the batch size
            node['attrs']['shape'] = node['attrs']['shape'].replace(' 0,', f' {batch_size},')
    # MXNet infers what a graph returns, so take one that returns each of these arrays
    used = [*dict.fromkeys([name for operator in operators for name in operator.inputs] + outputs)]
    symbol = build(operators, used, NUMPY)
    if missing := [name for name in symbol.list_inputs() if name not in arrays]:
        raise ValueError(f'its parameter {missing[0]} is unknown: make each layer an attribute of its block')
    known = {name: arrays[name] for name in symbol.list_arguments()}
    shapes = symbol.infer_shape_partial(**{name: array.shape for name, array in known.items()})[1]
    # MXNet infers other shapes for the inputs of np.concatenate(axis=None) than they have
    shapes = [known[name].shape if name in known else shape for name, shape in zip(used, shapes)]
    dtypes = symbol.infer_type_partial(**{name: array.dtype for name, array in known.items()})[1]
    dtypes = [numpy.dtype(dtype).name for dtype in dtypes]
    if MXNET_MAJOR < 2:
        dtypes = _without_float64(operators, known, dict(zip(used, dtypes)))
    return dict(zip(used, map(Array, used, shapes, shapes, dtypes, symbol.list_outputs())))


def _without_float64(operators: list[Operator], variables: dict[str, Any], dtypes: dict[str, str]) -> list[str]:
    """Return the dtypes, with float32 for a float64 that no array or setting has: MXNet infers it for bool * 2.0."""
    exact = {name for name, array in variables.items() if array.dtype == numpy.float64}
    for operator in operators:
        if operator.settings.get('dtype') == 'float64' or exact & {*operator.inputs}:
            exact.update(name for name in operator.outputs.values() if dtypes.get(name) == 'float64')
    return [dtype if name in exact else dtype.replace('float64', 'float32') for name, dtype in dtypes.items()]
