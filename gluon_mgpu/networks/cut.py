"""Cut the graph of a network at its batch norms.

    piece: convolution | norm | piece: batch norm, relu, convolution | norm | piece: batch norm, relu, dense

At each norm, `parallel.sync_batch_norm` combines the statistics of all devices, with which the batch norm at the
beginning of the next piece computes.
"""
from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy

from ..mxnet_setup.compat import gluon, graph_from_json, mx
from .pieces import Piece
from .static import is_prelu
from .tracing import trace_block

TRUE = ('True', '1')  # in a graph of MXNet 1.9, of MXNet 2


class BatchNorm(NamedTuple):
    """A batch norm at which a network is cut.

    The next piece begins with it: it computes ``scale * (X - mean) / sqrt(variance + eps) + shift``. `X`, `gamma` and
    `beta` are names of arrays, `arguments` those of scale, shift, mean and variance.
    """

    X: str
    arguments: list[str]
    gamma: str
    beta: str
    running_mean: gluon.Parameter
    running_var: gluon.Parameter
    axis: int
    eps: float
    momentum: float
    fix_gamma: bool


def cut(block: gluon.HybridBlock, X: Any) -> tuple[list[Piece | BatchNorm], str, str]:
    """Cut an initialized block at its batch norms, except those with ``use_global_stats``.

    It is also cut behind each PReLU, because MXNet writes a wrong gradient of its slope if the graph continues. `X` is
    a batch on one device, to infer shapes. Returns the parts in the order in which they run, and the names of the
    network's input and output.
    """
    graph, (data,) = trace_block(block, (X,))
    content = json.loads(graph.tojson(remove_amp_cast=False))
    params = {param.var().name: param for param in block.collect_params().values()}
    sources = {}  # array -> number of its operator, number of the output

    def array_name(number: int, output: int, *_) -> str:
        if content['nodes'][number]['op'] == 'null':
            return content['nodes'][number]['name']
        sources[f'array_{number}_{output}'] = number, output
        return f'array_{number}_{output}'

    operators: dict[int, dict] = {}  # of the present piece, by number
    parts: list[dict[int, dict] | BatchNorm] = [operators]
    for number, node in enumerate(content['nodes']):
        node['inputs'] = [array_name(*source) for source in node['inputs']]
        if _is_batch_norm(node):
            operators = {}
            parts += [_replace(node, number, params), operators]
        if node['op'] != 'null':
            operators[number] = node
        if is_prelu(node):
            operators = {}
            parts.append(operators)
    result = array_name(*content['heads'][0])
    pieces: list[Piece | BatchNorm] = []
    used = {result}  # by the parts behind
    for part in reversed(parts):
        if isinstance(part, BatchNorm):
            pieces.append(part)
            continue
        outputs = [array for array, (number, _) in sources.items() if number in part and array in used]
        if outputs:
            pieces.append(Piece(_build(part, outputs, sources, content['attrs']), outputs))
        used.update(array for node in part.values() for array in node['inputs'])
    return pieces[::-1], data, result


def _is_batch_norm(node: dict) -> bool:
    return 'batchnorm' in node['op'].lower().replace('_', '') and _settings(node).get('use_global_stats') not in TRUE


def _settings(node: dict) -> dict[str, str]:
    return node.get('attrs', {})  # missing if all are defaults


def _replace(node: dict, number: int, params: dict) -> BatchNorm:
    """Let a batch norm compute with new variables, instead of its parameters and statistics."""
    settings = {'axis': '1', 'eps': '1e-3', 'momentum': '0.9', 'fix_gamma': 'True', **_settings(node)}
    X, *names = node['inputs']
    if node['op'] not in ('BatchNorm', '_npx_batch_norm') or not all(name in params for name in names):
        raise ValueError(f"{node['name']} ({node['op']}): only gluon.nn.BatchNorm can be synchronized over devices; "
                         'use it instead, or train without sync_batch_norm')
    arguments = [f'{kind}_{number}' for kind in ('scale', 'shift', 'mean', 'variance')]
    node['inputs'] = [X, *arguments]
    node['attrs'] = {**_settings(node), 'use_global_stats': 'True', 'fix_gamma': 'False'}
    gamma, beta, running_mean, running_var = names
    return BatchNorm(X, arguments, gamma, beta, params[running_mean], params[running_var], int(settings['axis']),
                     float(settings['eps']),
                     float(numpy.float32(settings['momentum'])),  # as precise as in MXNet's batch norm
                     settings['fix_gamma'] in TRUE)


def _build(operators: dict[int, dict], outputs: list[str], sources: dict, attrs: dict) -> Any:
    """Build the graph of some operators, whose other inputs become variables."""
    nodes: list[dict] = []
    places: dict[Any, int] = {}  # number of an operator, or name of a variable -> its number in the new graph

    def place(array: str) -> list:
        number, output = sources.get(array, (None, 0))
        if number in places:
            return [places[number], output, 0]
        if array not in places:
            places[array] = len(nodes)
            nodes.append({'op': 'null', 'name': array, 'inputs': []})
        return [places[array], 0, 0]

    for number, node in operators.items():
        inputs = [place(array) for array in node['inputs']]
        places[number] = len(nodes)
        nodes.append({**node, 'inputs': inputs})
    heads = [place(array) for array in outputs]
    variables = [i for i, node in enumerate(nodes) if node['op'] == 'null']
    graph = graph_from_json(json.dumps({'nodes': nodes, 'arg_nodes': variables, 'heads': heads, 'attrs': attrs}))
    symbols = [symbol.as_np_ndarray() for symbol in graph]
    return mx.sym.Group(symbols, type(symbols[0]))
