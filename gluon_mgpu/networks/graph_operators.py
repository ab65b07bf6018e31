"""Operators of a graph of symbols, as a list that can be changed."""
import ast
import re
from math import inf, nan
from typing import Any, NamedTuple

from ..mxnet_setup.compat import MXNET_MAJOR, graph_from_json, graph_to_json, mx

NUMPY = type(mx.sym.var('x').as_np_ndarray())  # the kind of a graph that returns arrays of mx.np


class Operator(NamedTuple):
    """An operator: its node in MXNet's JSON format, its inputs and used outputs by name (arrays in a `graph.Graph`)."""

    node: dict[str, Any]
    inputs: list[Any]
    outputs: dict[int, Any]

    @property
    def kind(self) -> str:
        """The name in lower case, without prefix and underscores: batchnorm for ``_npx_batch_norm``."""
        return re.sub('^_(npi_|npx_|np_|contrib_)?', '', self.node['op']).replace('_', '').lower()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings in the node, parsed, without those that are None or ``()``."""
        values = {name: _parse(text) for name, text in self.node.get('attrs', {}).items()}
        return {name: value for name, value in values.items() if value not in (None, ())}

    @property
    def output(self) -> Any:
        """The first output that is used."""
        return next(iter(self.outputs.values()))

    @property
    def dtype(self) -> str:
        """The dtype of that output, an array of a `graph.Graph`."""
        return self.output.dtype


def _parse(setting: str) -> Any:
    words = {'inf': inf, '-inf': -inf, 'nan': nan, 'true': True, 'false': False}
    try:
        return ast.literal_eval(re.sub('(?<=[0-9])L', '', setting))  # (2L, 2L) in files of Python 2
    except (SyntaxError, ValueError):
        return words.get(setting.lower(), setting)  # MXNet.jl and the Scala front end write false


def operators_of(graph: Any) -> tuple[list[Operator], list[str]]:
    """Return the operators of a graph (a symbol), in the order in which they run, and the names of its outputs."""
    content = graph_to_json(graph)
    nodes = content['nodes']
    if MXNET_MAJOR < 2:  # there, only symbols have it: integers times 1.5 would be float64
        for node in nodes:
            node.get('attrs', {}).pop('is_int', None)
    outputs: list[dict[int, str]] = [{} for _ in nodes]  # filled when later nodes, or the graph, name their inputs

    def array_name(number: int, output: int, *_) -> str:
        if nodes[number]['op'] == 'null':
            return nodes[number]['name']
        return outputs[number].setdefault(output, f'array_{number}_{output}')

    operators = [Operator(node, [array_name(*source) for source in node['inputs']], found)
                 for node, found in zip(nodes, outputs) if node['op'] != 'null']
    return operators, [array_name(*head) for head in content['heads']]


def build(operators: list[Operator], outputs: list[str], kind: type) -> Any:
    """Return the graph of some operators, of the `kind` of symbol given; inputs that none computes become variables."""
    nodes: list[dict] = []
    places: dict[str, list[int]] = {}  # of arrays: number of the node, number of its output, version

    def place(array: str) -> list[int]:
        if array not in places:
            places[array] = [len(nodes), 0, 0]
            nodes.append({'op': 'null', 'name': array, 'inputs': []})
        return places[array]

    for node, inputs, results in operators:
        node = {**node, 'inputs': [place(array) for array in inputs]}
        places.update((array, [len(nodes), output, 0]) for output, array in results.items())
        nodes.append(node)
    heads = [place(array) for array in outputs]
    variables = [i for i, node in enumerate(nodes) if node['op'] == 'null']
    attrs = graph_to_json(mx.sym.var('x'))['attrs']  # the version of MXNet
    graph = graph_from_json({'nodes': nodes, 'arg_nodes': variables, 'heads': heads, 'attrs': attrs})
    return mx.sym.Group(list(graph), kind)
