"""Cut the graph of a network into pieces at its batch norms; each piece runs as one operator.

    convolution | batch norm, relu, convolution | batch norm, relu, dense

At each cut, `parallel.sync_batch_norm` combines the statistics of all devices.
"""
from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy

from ..mxnet_setup.compat import autograd, gluon, graph_from_json, mx, trace_block
from .hybridize import HybridizedBlock

TRUE = ('True', '1')  # in a graph of MXNet 1.9, of MXNet 2


class Norm(NamedTuple):
    """A batch norm between two pieces.

    The next piece begins with it: it computes ``scale * (X - mean) / sqrt(variance + eps) + shift``. `X` is the name of
    the array before it, `arguments` are the names of scale, shift, mean and variance.
    """

    X: str
    arguments: list[str]
    gamma: gluon.Parameter
    beta: gluon.Parameter
    running_mean: gluon.Parameter
    running_var: gluon.Parameter
    axis: int
    eps: float
    momentum: float
    fix_gamma: bool


class Piece(HybridizedBlock):
    """A part of a block, hybridized; `norm` is the batch norm after it, or None.

    Its inputs and outputs are not copied as in `hybridized`: with 18 pieces, the copies take longer than they save.
    """

    def __init__(self, block: gluon.HybridBlock, graph: Any, outputs: list[str], norm: Norm | None):
        params = {param.var().name for param in block.collect_params().values()}
        self._inputs = [name for name in graph.list_inputs() if name not in params]
        self._graph, self._outputs, self.norm = graph, outputs, norm
        super().__init__(block)

    def run(self, arrays: dict[str, Any]) -> list:
        """Compute on one device: read the inputs in `arrays`, a dict by name, and store the outputs there.

        Returns the results of the function `statistics` that `cut` got.
        """
        results = self(*(arrays[name] for name in self._inputs))
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        arrays.update(zip(self._outputs, results))
        return results[len(self._outputs):]

    def _trace_graph(self, args) -> tuple:
        return self._graph, self._inputs


def cut(block: gluon.HybridBlock, X: Any, statistics: Callable) -> tuple[list[Piece], str, str]:
    """Cut an initialized block at its batch norms, except those with ``use_global_stats``.

    Parameters
    ----------
    X : np.ndarray
        A batch on one device, to infer shapes.
    statistics : callable
        Maps the input of a batch norm (a symbol) and the `Norm` to a list of symbols, which the piece before it also
        computes.

    Returns
    -------
    pieces : list of Piece
        In the order in which they run.
    data, result : str
        The names of the network's input and output.
    """
    with autograd.pause():
        graph, (data,) = trace_block(block, (X,))
    content = json.loads(graph.tojson(remove_amp_cast=False))
    params = {param.var().name: param for param in block.collect_params().values()}
    sources = {}  # array -> number of its operator, number of the output

    def name(number: int, output: int, *_) -> str:
        if content['nodes'][number]['op'] == 'null':
            return content['nodes'][number]['name']
        sources[f'array_{number}_{output}'] = number, output
        return f'array_{number}_{output}'

    operators: list[dict[int, dict]] = [{}]  # of each piece, by number
    norms: list[Norm | None] = []
    for number, node in enumerate(content['nodes']):
        node['inputs'] = [name(*source) for source in node['inputs']]
        if _is_batch_norm(node):
            norms.append(_replace(node, number, params))
            operators.append({})
        if node['op'] != 'null':
            operators[-1][number] = node
    result = name(*content['heads'][0])
    pieces = []
    for i, (own, norm) in enumerate(zip(operators, [*norms, None])):
        later = [array for piece in operators[i + 1:] for node in piece.values() for array in node['inputs']]
        outputs = [array for array in dict.fromkeys([*later, result]) if sources.get(array, (None,))[0] in own]
        symbols = _symbols(own, [*outputs, *([norm.X] if norm else [])], sources, content['attrs'])
        if norm:
            symbols += statistics(symbols.pop(), norm)
        graph = mx.sym.Group(symbols, type(symbols[0])) if len(symbols) > 1 else symbols[0]
        pieces.append(Piece(block, graph, outputs, norm))
    return pieces, data, result


def _is_batch_norm(node: dict) -> bool:
    return 'batchnorm' in node['op'].lower().replace('_', '') and node['attrs'].get('use_global_stats') not in TRUE


def _replace(node: dict, number: int, params: dict) -> Norm:
    """Give a batch norm other arguments than its parameters and running statistics; return what it was."""
    settings = {'axis': '1', 'eps': '1e-3', 'momentum': '0.9', 'fix_gamma': 'True', **node['attrs']}
    X, *names = node['inputs']
    if node['op'] not in ('BatchNorm', '_npx_batch_norm') or not all(name in params for name in names):
        raise ValueError(f"{node['name']} ({node['op']}): only gluon.nn.BatchNorm can be synchronized over devices; "
                         'use it instead, or train without sync_batch_norm')
    arguments = [f'{kind}_{number}' for kind in ('scale', 'shift', 'mean', 'variance')]
    node['inputs'] = [X, *arguments]
    node['attrs'] = {**node['attrs'], 'use_global_stats': 'True', 'fix_gamma': 'False'}
    gamma, beta, running_mean, running_var = (params[name] for name in names)
    return Norm(X, arguments, gamma, beta, running_mean, running_var, int(settings['axis']), float(settings['eps']),
                float(numpy.float32(settings['momentum'])),  # as precise as in MXNet's batch norm
                settings['fix_gamma'] in TRUE)


def _symbols(operators: dict[int, dict], outputs: list[str], sources: dict, attrs: dict) -> list:
    """Build the graph of some operators, whose other inputs become variables; return its outputs."""
    nodes: list[dict] = []
    places: dict[Any, int] = {}  # variable or operator -> its number in the new graph

    def place(array: str) -> list:
        operator, output = sources.get(array, (array, 0))
        if operator not in places:
            places[array], operator, output = len(nodes), array, 0
            nodes.append({'op': 'null', 'name': array, 'inputs': []})
        return [places[operator], output, 0]

    for number, node in operators.items():
        inputs = [place(array) for array in node['inputs']]
        places[number] = len(nodes)
        nodes.append({**node, 'inputs': inputs})
    heads = [place(array) for array in outputs]
    variables = [i for i, node in enumerate(nodes) if node['op'] == 'null']
    graph = graph_from_json(json.dumps({'nodes': nodes, 'arg_nodes': variables, 'heads': heads, 'attrs': attrs}))
    return [symbol.as_np_ndarray() for symbol in graph]
