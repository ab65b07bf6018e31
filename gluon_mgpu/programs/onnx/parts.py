"""Parts of a network that sorts, for a comparison: each runtime has an order of its own for numbers that are equal."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy

from ...base.nested import leaves
from ...mxnet_setup.compat import MXNET_MAJOR, autograd, mx
from ...networks.graph_operators import NUMPY, Operator, build, operators_of
from ...networks.tracing import is_legacy
from .comparison import Example, array_like
from .graph import Array, Graph, semantics_of
from .network import Network

SORTING = 'topk', 'sort', 'argsort', 'boxnms'


def sorting(operators: list[Operator]) -> list[Operator]:
    """Return the operators that sort."""
    return [op for op in operators if op.kind in SORTING]


def parts_of(graph: Graph, network: Network, examples: Sequence[Example]) -> Iterator[tuple[Graph, list[Example]]]:
    """Yield the parts of a network that sorts, with the inputs that each gets, and the results of MXNet.

    The first part is all that does not sort. It gets what the sorting operators return, and has the numbers that they
    sort as further results. The others are the sorting operators, each for numbers of which none are equal.
    """
    ops = sorting(graph.operators)
    made = _by_name(array for op in ops for array in op.outputs.values())
    outputs = [*graph.outputs, *(op.inputs[0] for op in ops)]
    rest = Graph({**graph.variables, **made}, [op for op in graph.operators if op not in ops], outputs)
    values = [_values(network, example.inputs, {**made, **_by_name(outputs)}) for example in examples]
    yield rest, [example._replace(inputs=[*example.inputs, *(arrays[name] for name in made)],
                                  results=[arrays[array.name].asnumpy() for array in outputs])
                 for example, arrays in zip(examples, values)]
    for op in ops:
        array, results = op.inputs[0], [*op.outputs.values()]
        inputs = [_without_equal(op, arrays[array.name]) for arrays in values]
        alone = Operator(op.node, [array.name], {number: each.name for number, each in op.outputs.items()})
        yield Graph({**graph.variables, array.name: array}, [op], results), [
            Example([*{**dict(zip(network.variables, example.inputs)), array.name: X}.values()],
                    [Y.asnumpy() for Y in _computed([alone], _by_name(results), {array.name: X}).values()])
            for example, X in zip(examples, inputs)]


def in_columns(part: Graph, ops: list[Operator], *of_outputs: Sequence) -> list[list]:
    """Return names or results of a part, those of boxes once for each column: scores are small beside places."""
    boxes = {op.inputs[0].name for op in ops if op.kind == 'boxnms'}
    return [[column for array, value in zip(part.outputs, values) for column in (
        [value] if array.name not in boxes else [value] * array.shape[-1] if isinstance(value, str) else
        numpy.moveaxis(value, -1, 0))] for values in of_outputs]


def _by_name(arrays: Iterable[Array]) -> dict[str, Array]:
    return {array.name: array for array in arrays}


def _values(network: Network, inputs: Sequence, names: Iterable[str]) -> dict[str, Any]:
    """Return arrays within a network by name."""
    with semantics_of(inputs[0]), autograd.pause():
        _, symbol, arrays = network.run([*inputs])
    return {**arrays, **_computed(operators_of(symbol)[0], [name for name in names if name not in arrays], arrays)}


def _computed(operators: list[Operator], names: Iterable[str], arrays: dict[str, Any]) -> dict[str, Any]:
    """Return arrays by name, computed by operators from other arrays."""
    names, first = [*names], next(iter(arrays.values()))
    with semantics_of(first), autograd.pause():
        symbol = build(operators, names, mx.sym.Symbol if is_legacy(first) else NUMPY)
        device = {} if MXNET_MAJOR < 2 else {'default_ctx': first.ctx}
        results = mx.nd.CachedOp(symbol, [])(*(arrays[name] for name in symbol.list_inputs()), **device)
        return dict(zip(names, leaves(results)))


def _without_equal(op: Operator, array: Any) -> Any:
    """Return an array like the one that is sorted, with other numbers, of which none are equal."""
    X = array.asnumpy()
    sorted_by = X[..., op.settings.get('score_index', 1)] if op.kind == 'boxnms' else X
    numbers = numpy.random.default_rng(0).permutation(sorted_by.size).reshape(sorted_by.shape)
    sorted_by[...] = numbers if X.dtype.kind in 'iu' else (numbers + 1) / numbers.size
    return array_like(array, X)
