"""Cut the graph of a network at its batch norms, where `parallel.norm` combines the statistics of all devices.

    piece: convolution | norm | piece: batch norm, relu, convolution | norm | piece: batch norm, relu, dense
"""
from __future__ import annotations

from typing import Any, NamedTuple

import numpy

from ...mxnet_setup.compat import gluon
from ...networks.hybridize.graph_operators import Operator, operators_of
from ...networks.hybridize.tracing import trace_block
from .pieces import Piece


class BatchNorm(NamedTuple):
    """A batch norm at which a network is cut.

    The next piece begins with ``scale * (X - mean) / sqrt(variance + eps) + shift``. `X`, `gamma` and `beta` are names
    of arrays, `arguments` those of scale, shift, mean and variance.
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


def cut(block: gluon.HybridBlock, args: tuple) -> tuple[list[Piece | BatchNorm], list[str], list[str], Any]:
    """Cut an initialized block at its batch norms, except those with ``use_global_stats``, and behind each PReLU.

    `args` are the inputs for a batch on one device, to infer shapes. Returns the parts in the order in which they run,
    the names of the network's inputs and outputs, and the lists of its result, as from `trace_block`.
    """
    graph, inputs, lists, params = trace_block(block, args)
    for param in params.values():
        if param._grad_stype != 'default' and param.grad_req != 'null':
            raise ValueError(f'{param.name} has {param._grad_stype} gradients, which cannot be passed through '
                             'synchronized batch norm: create its layer with sparse_grad=False')
    all_operators, results = operators_of(graph)
    operators: list[Operator] = []  # of the present piece
    parts: list[list[Operator] | BatchNorm] = [operators]
    for operator in all_operators:
        if _is_batch_norm(operator):
            norm, operator = _separate(operator, len(parts), params)
            operators = []
            parts += [norm, operators]
        operators.append(operator)
        if operator.is_prelu:
            operators = []
            parts.append(operators)
    pieces: list[Piece | BatchNorm] = []
    used = set(results)  # by the parts behind, or at the end
    for part in reversed(parts):
        if isinstance(part, BatchNorm):
            pieces.append(part)
            continue
        outputs = [array for operator in part for array in operator.outputs.values() if array in used]
        if outputs:
            pieces.append(Piece(part, outputs))
        used.update(array for operator in part for array in operator.inputs)
    return pieces[::-1], inputs, results, lists


def _is_batch_norm(operator: Operator) -> bool:
    return 'batchnorm' in operator.kind and not operator.settings.get('use_global_stats')


def _separate(operator: Operator, number: int, params: dict) -> tuple[BatchNorm, Operator]:
    """Return a batch norm, and its operator with new variables instead of its parameters and statistics."""
    node, (X, *names), outputs = operator
    settings = {'axis': 1, 'eps': 1e-3, 'momentum': 0.9, 'fix_gamma': True, **operator.settings}
    if operator.kind != 'batchnorm' or not all(name in params for name in names):
        raise ValueError(f"{node['name']} ({node['op']}): only gluon.nn.BatchNorm can be synchronized over devices; "
                         'use nn.BatchNorm inside SyncBatchNorm(net), or train without it')
    gamma, beta, running_mean, running_var = names
    arguments = [f'{kind}_{number}' for kind in ('scale', 'shift', 'mean', 'variance')]
    momentum = float(numpy.float32(settings['momentum']))  # as precise as in MXNet's batch norm
    node = {**node, 'attrs': {**node.get('attrs', {}), 'use_global_stats': 'True', 'fix_gamma': 'False'}}
    return (BatchNorm(X, arguments, gamma, beta, params[running_mean], params[running_var], settings['axis'],
                      settings['eps'], momentum, bool(settings['fix_gamma'])),
            Operator(node, [X, *arguments], outputs))
