"""The graph of a network in prediction mode: its operators, with the shapes and dtypes of their arrays."""
import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy

from ...base.nested import leaves, refill
from ...mxnet_setup.compat import MXNET_MAJOR, autograd, cached_op, gluon, mx, nd_semantics, np
from ...networks.graph_operators import NUMPY, Operator, build, operators_of
from ...networks.tracing import graph_of, is_legacy, trace_deferred, trace_function, variables_for


class Array(NamedTuple):
    """An array in a graph. `shape` is for one batch size, `other` for another: sizes that differ depend on it."""

    name: str
    shape: tuple
    other: tuple
    dtype: str
    value: numpy.ndarray | None = None  # if it is the same for all inputs

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)


class Graph(NamedTuple):
    """A network: its arrays by name, its operators in order of running, and the names of its outputs."""

    arrays: dict[str, Array]
    operators: list[Operator]
    outputs: list[str]

    def has_nan(self, known: dict[str, Any]) -> bool:
        """Return whether MXNet computes NaN on the way from the arrays of the variables, by name."""
        return any(numpy.isnan(array.asnumpy()).any() for array in _compute(self.operators, known).values())


def semantics_of(array: Any) -> contextlib.AbstractContextManager:
    """Return the context of ``mx.nd``'s semantics, in this thread, if `array` is one of its arrays."""
    return contextlib.nullcontext() if isinstance(array, np.ndarray) else nd_semantics()


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
    (operators, outputs), (others, _) = map(_operators, graphs, batch_sizes)
    if [op.node['op'] for op in operators] != [op.node['op'] for op in others]:
        raise ValueError('its operators depend on the batch size')
    first, second = map(_compute, (operators, others), arrays)
    free = {name for op in operators if not op.inputs or op.kind in ('arangelike', 'multiboxprior')
            for name in op.outputs.values()}  # such as arange; random numbers differ
    found = {}
    for name, one in first.items():
        other = second[name]
        is_constant = name in free and numpy.array_equal(one.asnumpy(), other.asnumpy())
        found[name] = Array(name, one.shape, other.shape, numpy.dtype(one.dtype).name,
                            one.asnumpy() if is_constant else None)
    return Graph(found, operators, outputs)


def check_shapes(graph: Any, shapes: dict[str, tuple], batch_size: int) -> None:
    """Raise an error if the shapes of variables do not fit: at some operators, MXNet's process would end.

    A reshape of MXNet 1.9 reads and writes beyond its array if the sizes do not divide.
    """
    operators, outputs = _operators(graph, batch_size)
    reshapes = [op for op in operators if op.node['op'] == 'Reshape']
    names = [name for op in reshapes for name in (op.inputs[0], op.output)]
    symbol = build(operators, names + outputs, NUMPY)  # MXNet infers what a graph returns
    known = {name: shapes[name] for name in symbol.list_arguments() if name in shapes}
    found = [math.prod(shape or [0]) for shape in symbol.infer_shape_partial(**known)[1]]
    for op, old, new in zip(reshapes, found[::2], found[1::2]):
        if min(old, new) > 0 and old != new:
            raise ValueError(f'{op.node["name"]} cannot reshape {old} numbers to {new}')


def _operators(graph: Any, batch_size: int) -> tuple[list[Operator], list[str]]:
    """Return the operators of a graph and the names of its outputs, see `operators_of`."""
    operators, outputs = operators_of(graph)
    for op in operators:
        if op.node['op'] == '_zeros':  # a recurrent layer's initial state, in which MXNet 1.9 leaves out the batch size
            attrs = op.node['attrs']
            attrs['shape'] = attrs['shape'].replace(' 0,', f' {batch_size},')
    return operators, outputs


def _compute(operators: list[Operator], known: dict[str, Any]) -> dict[str, Any]:
    """Return all arrays by name that operators, of names, compute from others."""
    names, first = [name for op in operators for name in op.outputs.values()], next(iter(known.values()))
    if not names:
        return known
    with semantics_of(first), autograd.pause():
        symbol = build(operators, names, mx.sym.Symbol if is_legacy(first) else NUMPY)
        if missing := [name for name in symbol.list_inputs() if name not in known]:
            raise ValueError(f'its parameter {missing[0]} is unknown: make each layer an attribute of its block')
        results = cached_op(symbol, [])(*(known[name] for name in symbol.list_inputs()))
        return {**known, **dict(zip(names, leaves(results)))}
