"""Pieces of a network, which `cut` makes: each runs as one operator on each device, forwards and backwards."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..mxnet_setup.compat import _new_alloc_handle, add, autograd
from .static import cached_op
from .tracing import leaves

Backward = Callable[[list], None]  # takes a dict of gradients by name for each device


class Piece:
    """A part of a network without batch norms that need other devices.

    Each call allocates memory. If it were kept, as in `hybridized`, the other pieces could not use it.
    """

    def __init__(self, graph: Any, outputs: list[str]):
        self._inputs, self._outputs = graph.list_inputs(), outputs
        self._operator = cached_op(graph, self._inputs, None)

    def run(self, arrays_on: list[dict[str, Any]], trained: set[str]) -> Backward:
        """Compute on each device: read the inputs from its dict of arrays by name, and store the outputs there.

        `trained` has the names of the arrays that need gradients; if an input does, the outputs are added. Returns the
        backward pass, which removes the gradients of the outputs and adds those of the inputs.
        """
        needed = trained.intersection(self._inputs)
        inputs_on = [{name: as_input(arrays[name]) if name in needed else arrays[name].detach()
                      for name in self._inputs} for arrays in arrays_on]
        outputs_on = [leaves(self._operator(*inputs.values())) for inputs in inputs_on]
        for arrays, outputs in zip(arrays_on, outputs_on):
            arrays.update((name, array.detach()) for name, array in zip(self._outputs, outputs))
        if not needed:  # all layers up to here are frozen
            return lambda gradients_on: None
        trained.update(self._outputs)

        def backward(gradients_on: list[dict]) -> None:
            for inputs, outputs, gradients in zip(inputs_on, outputs_on, gradients_on):
                autograd.backward(outputs, [gradients.pop(name) for name in self._outputs])
                for name, array in inputs.items():
                    add_gradient(gradients, name, array.grad)

        return backward


def add_gradient(gradients: dict, name: str, gradient: Any) -> None:
    """Add a gradient, or None, to the one of the same name."""
    if gradient is not None:
        gradients[name] = add(gradients[name], gradient) if name in gradients else gradient


def as_input(array: Any) -> Any:
    """Return an array as the start of a new graph for autograd; the memory of its `grad` is allocated when written."""
    result = array.detach()
    gradient = type(array)(_new_alloc_handle(array.shape, array.ctx, True, array.dtype))
    autograd.mark_variables([result], [gradient])
    return result
