"""Cut the graph of a network at its batch norms. Each piece runs as one operator.

    piece: convolution | norm | piece: batch norm, relu, convolution | norm | piece: batch norm, relu, dense

At each `Norm`, `parallel.sync_batch_norm` combines the statistics of all devices, with which the batch norm at the
beginning of the next piece computes.
"""
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy

from ..mxnet_setup.compat import add, as_input, autograd, cached_op, gluon, graph_from_json, mx, trace_block
from .tracing import explain_errors

TRUE = ('True', '1')  # in a graph of MXNet 1.9, of MXNet 2


class Norm(NamedTuple):
    """A batch norm between two pieces.

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


class Piece:
    """A part of a network; `params` are the parameters that no other part uses.

    Each call allocates memory. If it were kept, as in `hybridized`, the other pieces could not use it.
    """

    def __init__(self, graph: Any, outputs: list[str], params: set[str]):
        self._inputs = graph.list_inputs()
        self._operator = cached_op(graph, self._inputs, None)
        self._outputs, self._params = outputs, params

    def run(self, arrays: dict[str, Any]) -> Callable[[dict], None]:
        """Compute on one device: read the inputs in `arrays`, a dict by name, and store the outputs there.

        Returns the backward pass. It writes the gradients of `params`, and replaces the gradients of the outputs, in a
        dict by name, by those of the other inputs.
        """
        inputs = {name: arrays[name] if name in self._params else _detached(arrays[name]) for name in self._inputs}
        results = self._operator(*inputs.values())
        outputs = dict(zip(self._outputs, results if isinstance(results, (list, tuple)) else [results]))
        arrays.update((name, as_input(array)) for name, array in outputs.items())

        def backward(gradients: dict[str, Any]) -> None:
            heads = [gradients.pop(name) for name in outputs]
            if all(array.grad is None for array in inputs.values()):  # all layers up to here are frozen
                return
            autograd.backward(list(outputs.values()), heads)
            for name, array in inputs.items():
                if name not in self._params:
                    accumulate(gradients, name, array.grad, arrays)

        return backward


def accumulate(gradients: dict, name: str, gradient: Any, arrays: dict) -> None:
    """Add a gradient to the one of the same name, if the array needs one."""
    if arrays[name].grad is not None:
        gradients[name] = add(gradients[name], gradient) if name in gradients else gradient


def _detached(array: Any) -> Any:
    return array.detach() if array.grad is None else as_input(array)


def cut(block: gluon.HybridBlock, X: Any) -> tuple[list[Piece | Norm], str, str]:
    """Cut an initialized block at its batch norms, except those with ``use_global_stats``.

    `X` is a batch on one device, to infer shapes. Returns the parts in the order in which they run, and the names of
    the network's input and output.
    """
    with autograd.pause(), explain_errors(type(block).__name__):
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
    norms: list[Norm] = []
    for number, node in enumerate(content['nodes']):
        node['inputs'] = [name(*source) for source in node['inputs']]
        if _is_batch_norm(node):
            norms.append(_replace(node, number, params))
            operators.append({})
        if node['op'] != 'null':
            operators[-1][number] = node
    result = name(*content['heads'][0])
    used = [{array for node in piece.values() for array in node['inputs']} for piece in operators]
    num_uses = Counter(name for names in used for name in names)
    parts: list[Piece | Norm] = []
    for i, own in enumerate(operators):
        outputs = [array for array, (number, _) in sources.items() if number in own
                   and (array == result or any(array in names for names in used[i + 1:]))]
        if outputs:
            symbols = _symbols(own, outputs, sources, content['attrs'])
            parts.append(Piece(mx.sym.Group(symbols, type(symbols[0])), outputs,
                               {name for name in params.keys() & used[i] if num_uses[name] == 1}))
        parts += norms[i:i + 1]
    return parts, data, result


def _is_batch_norm(node: dict) -> bool:
    return 'batchnorm' in node['op'].lower().replace('_', '') and _settings(node).get('use_global_stats') not in TRUE


def _settings(node: dict) -> dict[str, str]:
    return node.get('attrs', {})  # missing if all are defaults


def _replace(node: dict, number: int, params: dict) -> Norm:
    """Let a batch norm compute with new variables, instead of its parameters and statistics; return it as a `Norm`."""
    settings = {'axis': '1', 'eps': '1e-3', 'momentum': '0.9', 'fix_gamma': 'True', **_settings(node)}
    X, *names = node['inputs']
    if node['op'] not in ('BatchNorm', '_npx_batch_norm') or not all(name in params for name in names):
        raise ValueError(f"{node['name']} ({node['op']}): only gluon.nn.BatchNorm can be synchronized over devices; "
                         'use it instead, or train without sync_batch_norm')
    arguments = [f'{kind}_{number}' for kind in ('scale', 'shift', 'mean', 'variance')]
    node['inputs'] = [X, *arguments]
    node['attrs'] = {**_settings(node), 'use_global_stats': 'True', 'fix_gamma': 'False'}
    gamma, beta, running_mean, running_var = names
    return Norm(X, arguments, gamma, beta, params[running_mean], params[running_var], int(settings['axis']),
                float(settings['eps']),
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
