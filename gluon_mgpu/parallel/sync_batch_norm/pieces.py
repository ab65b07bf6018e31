"""Pieces of a network, which `cut` makes: each runs as one operator on each device, forwards and backwards."""
from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from typing import Any

from ...base.nested import leaves
from ...mxnet_setup.compat import _new_alloc_handle, add, autograd
from ...networks.hybridize.graph_operators import NUMPY, Operator, build
from ...networks.hybridize.static import cached_op

Backward = Callable[[list], None]  # takes a dict of gradients by name for each device


class Piece:
    """A part of a network without batch norms that need other devices.

    Each call allocates memory. If it were kept, as in `hybridized`, the other pieces could not use it.
    """

    def __init__(self, operators: list[Operator], outputs: list[str]):
        graph = build(operators, outputs, NUMPY)
        self._inputs = graph.list_inputs()
        self._operator = cached_op(graph, self._inputs, None)
        self._allocate = any(operator.kind == 'deconvolution' for operator in operators)
        sources: dict[str, set[str]] = {}  # the inputs from which each array is computed
        for _, inputs, results in operators:
            of_operator = set().union(*(sources.get(name, {name}) for name in inputs))
            sources.update(dict.fromkeys(results.values(), of_operator))
        self._sources = {name: sources[name] for name in outputs}

    def run(self, arrays_on: list[dict[str, Any]], trained: set[str]) -> Backward:
        """Compute on each device: read the inputs from its dict of arrays by name, and store the outputs there.

        `trained` has the names of the arrays that need gradients; the outputs that are computed from them are added.
        Returns the backward pass, which removes the gradients of these outputs and adds those of the inputs.
        """
        needed = trained.intersection(self._inputs)
        inputs_on = [{name: as_input(arrays[name], self._allocate) if name in needed else arrays[name].detach()
                      for name in self._inputs} for arrays in arrays_on]
        outputs_on = [leaves(self._operator(*inputs.values())) for inputs in inputs_on]
        for arrays, outputs in zip(arrays_on, outputs_on):
            arrays.update((name, array.detach()) for name, array in zip(self._sources, outputs))
        if not needed:  # all layers up to here are frozen
            return lambda gradients_on: None
        is_trained = [not trained.isdisjoint(sources) for sources in self._sources.values()]
        names = list(compress(self._sources, is_trained))
        trained.update(names)

        def backward(gradients_on: list[dict]) -> None:
            for inputs, outputs, gradients in zip(inputs_on, outputs_on, gradients_on):
                autograd.backward(list(compress(outputs, is_trained)), [gradients.pop(name) for name in names])
                for name, array in inputs.items():
                    add_gradient(gradients, name, array.grad)

        return backward


def add_gradient(gradients: dict, name: str, gradient: Any) -> None:
    """Add a gradient, or None, to the one of the same name."""
    if gradient is not None:
        gradients[name] = add(gradients[name], gradient) if name in gradients else gradient


def as_input(array: Any, allocate: bool = False) -> Any:
    """Return an array as the start of a new graph for autograd.

    The memory of its `grad` is allocated when it is written, or now: oneDNN's transposed convolution crashes otherwise.
    """
    result = array.detach()
    if allocate:
        result.attach_grad()
    else:
        gradient = type(array)(_new_alloc_handle(array.shape, array.ctx, True, array.dtype))
        autograd.mark_variables([result], [gradient])
    return result
