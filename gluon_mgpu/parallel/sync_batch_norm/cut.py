"""Cut the graph of a network at its batch norms, where `norm` combines the statistics of all devices.

    piece: convolution | norm | piece: batch norm, relu, convolution | norm | piece: batch norm, relu, dense
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy

from ...base.nested import leaves
from ...mxnet_setup.compat import _new_alloc_handle, add, autograd, cached_op, gluon
from ...networks.graph_operators import NUMPY, Operator, build, operators_of
from ...networks.tracing import trace_block

Backward = Callable[[list], None]  # takes a dict of gradients by name for each device


class CutBatchNorm(NamedTuple):
    """A batch norm at which a network is cut; the next piece begins with its formula.

    `arguments`: the names of scale, shift, mean and variance in ``scale * (X - mean) / sqrt(variance + eps) + shift``.
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


def cut(block: gluon.HybridBlock, args: tuple) -> tuple[list[Piece | CutBatchNorm], list[str], list[str], Any]:
    """Cut an initialized block at its batch norms, except those with ``use_global_stats``, and behind each PReLU.

    `args` are inputs on one device, to infer shapes. Returns the parts in the order in which they run, the names of the
    network's inputs and outputs, and the lists of its result, as from `trace_block`.
    """
    graph, inputs, lists, params = trace_block(block, args)
    for param in params.values():
        if param._grad_stype != 'default' and param.grad_req != 'null':
            raise ValueError(f'{param.name} has {param._grad_stype} gradients, which cannot be passed through '
                             'synchronized batch norm: create its layer with sparse_grad=False')
    operators, results = operators_of(graph)
    pieces: list[Piece | CutBatchNorm] = []
    used = set(results)  # arrays that the parts behind, or the caller, read
    for part in reversed(_split(operators, params)):
        if isinstance(part, CutBatchNorm):
            pieces.append(part)
            continue
        outputs = [array for operator in part for array in operator.outputs.values() if array in used]
        if outputs:
            pieces.append(Piece(part, outputs))
        used.update(array for operator in part for array in operator.inputs)
    return pieces[::-1], inputs, results, lists


def _split(operators: list[Operator], params: dict) -> list[list[Operator] | CutBatchNorm]:
    """Return the operators of each piece, and the batch norms between pieces."""
    piece: list[Operator] = []
    parts: list[list[Operator] | CutBatchNorm] = [piece]
    for operator in operators:
        if _is_batch_norm(operator):
            norm, operator = _separate(operator, len(parts), params)
            piece = []
            parts += [norm, piece]
        piece.append(operator)
        if operator.settings.get('act_type') == 'prelu':  # the gradient of its slope is wrong if operators follow
            piece = []
            parts.append(piece)
    return parts


def _is_batch_norm(operator: Operator) -> bool:
    return 'batchnorm' in operator.kind and not operator.settings.get('use_global_stats')


def _separate(operator: Operator, number: int, params: dict) -> tuple[CutBatchNorm, Operator]:
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
    return (CutBatchNorm(X, arguments, gamma, beta, params[running_mean], params[running_var], settings['axis'],
                      settings['eps'], momentum, bool(settings['fix_gamma'])),
            Operator(node, [X, *arguments], outputs))


class Piece:
    """A part of a network without batch norms that need other devices; it runs as one operator on each device."""
    # Without static_alloc: its memory would stay reserved for this piece, and the others could not use it

    def __init__(self, operators: list[Operator], outputs: list[str]):
        graph = build(operators, outputs, NUMPY)
        self._inputs = graph.list_inputs()
        # By default, MXNet runs graphs of at most two operators one by one, and does not record all their outputs
        self._operator = cached_op(graph, [('inline_limit', 0)])
        self._allocate = any(operator.kind == 'deconvolution' for operator in operators)
        # MXNet's elemwise_add, of mx.nd, fails in the backward pass if one operand needs no gradient
        self._added = {name for operator in operators if operator.kind == 'elemwiseadd' for name in operator.inputs}
        sources: dict[str, set[str]] = {}  # the inputs from which each array is computed
        for _, inputs, results in operators:
            of_operator = set().union(*(sources.get(name, {name}) for name in inputs))
            sources.update(dict.fromkeys(results.values(), of_operator))
        self._sources = {name: sources[name] for name in outputs}

    def run(self, arrays_on: list[dict[str, Any]], trained: set[str]) -> Backward:
        """Compute on each device: read the inputs from its dict of arrays by name, and store the outputs there.

        `trained` has the names of the arrays that need gradients; outputs computed from them are added. Returns the
        backward pass, which removes the gradients of these outputs and adds those of the inputs.
        """
        # 1. The inputs. The graph that autograd records begins anew at those that need gradients: `backward` ends there
        needed = [name for name in self._inputs if name in trained]
        attached = {*needed, *self._added} if needed else set()
        inputs_on = [{name: as_input(arrays[name], self._allocate) if name in attached else arrays[name].detach()
                      for name in self._inputs} for arrays in arrays_on]
        # 2. The outputs, which the next parts use as constants
        outputs_on = [dict(zip(self._sources, leaves(self._operator(*inputs.values())))) for inputs in inputs_on]
        for arrays, outputs in zip(arrays_on, outputs_on):
            arrays.update((name, array.detach()) for name, array in outputs.items())
        # 3. Those that need gradients; none if all layers up to here are frozen
        names = [name for name, sources in self._sources.items() if not sources.isdisjoint(trained)]
        trained.update(names)

        def backward(gradients_on: list[dict]) -> None:
            for inputs, outputs, gradients in zip(inputs_on, outputs_on, gradients_on):
                autograd.backward([outputs[name] for name in names], [gradients.pop(name) for name in names])
                for name in needed:
                    add_gradient(gradients, name, inputs[name].grad)

        return backward if needed else lambda gradients_on: None


def add_gradient(gradients: dict, name: str, gradient: Any) -> None:
    """Add a gradient to the one of the same name, if there is one."""
    gradients[name] = add(gradients[name], gradient) if name in gradients else gradient


def as_input(array: Any, allocate: bool = False) -> Any:
    """Return an array as the start of a new graph for autograd; its `grad` gets memory when it is first written.

    With `allocate`, it gets it at once.
    """
    result = array.detach()
    if allocate:  # oneDNN's transposed convolution crashes without it
        result.attach_grad()
    else:
        gradient = type(array)(_new_alloc_handle(array.shape, array.ctx, True, array.dtype))
        autograd.mark_variables([result], [gradient])
    return result
