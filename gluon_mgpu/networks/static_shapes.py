"""A network with an operator of Gluon's for each shape, so that memory does not grow when shapes change."""
from __future__ import annotations

from collections import OrderedDict
from contextvars import copy_context
from typing import Any

from ..base.nested import leaves
from ..mxnet_setup.compat import autograd, gluon, layers_of, npx
from .hybridized import MAX_OPERATORS, with_copies
from .side_by_side import lay_side_by_side


class StaticSequential(gluon.nn.HybridSequential):
    """``gluon.nn.HybridSequential`` that keeps an operator for each shape and mode after `hybridize`.

    After ``hybridize(static_alloc=True, static_shape=True)``, Gluon has a single operator. MXNet prepares it again at
    each change between training and evaluation or to another shape, such as that of a smaller last batch, and its first
    layer again for each new input. Each time it takes other temporary memory, and the memory of the process grows over
    many epochs. Therefore this network also works on a copy of its input.

    A call in another mode than the one before waits for all devices: MXNet's engine does not know that the backward
    pass of an operator with static shapes writes batch norm's running statistics, which another operator may read.

    With ``static_shape``, call the network only once before each backward pass. Two calls in one loss can give wrong
    gradients: with Gluon's own operator, if other losses have a single call; with this class, also if the two calls
    have different shapes, each of which had a loss of its own before. The first time that two calls share a loss, they
    may update the running statistics in either order. If you need two calls, leave out ``static_shape``.
    """

    _cached_graph: tuple  # Gluon's: the inputs and the graph of the last trace, () before

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._operators: OrderedDict[tuple, Any] = OrderedDict()
        self._mode: tuple | None = None  # of the last call

    def _is_static(self) -> bool:
        # Not after optimize_for, which changes the graph whenever Gluon builds an operator
        return bool(dict(self._flags).get('static_shape')) and not self._backend

    def _get_graph(self, *args: Any) -> tuple:
        found = super()._get_graph(*args)
        if not self._is_static():
            return found
        self._cached_graph = ()  # trace again for each operator, because layers may depend on the number of rows
        context = copy_context()
        context.run(lay_side_by_side, len(args[0]))
        inputs, graph = context.run(super()._get_graph, *args)
        self._cached_graph = found  # which net.export writes
        return inputs, with_copies(graph, [symbol.name for symbol in inputs])

    def _clear_cached_op(self) -> None:
        # Gluon calls this after hybridize(), cast(), or when a layer is added: its operator is no longer valid
        super()._clear_cached_op()
        self._operators = OrderedDict()

    def _call_cached_op(self, *args: Any) -> Any:
        if not self._is_static():
            return super()._call_cached_op(*args)
        mode = autograd.is_recording(), autograd.is_training()
        if mode != self._mode:
            npx.waitall()
            self._mode = mode
        key = *mode, *[(array.shape, array.dtype) for array in leaves(args)]
        self._cached_op: Any = self._operators.pop(key, None)
        result = super()._call_cached_op(*args)  # builds an operator if there is none
        self._operators[key] = self._cached_op
        if len(self._operators) > MAX_OPERATORS:
            self._operators.popitem(last=False)
        return result


def forget_operators(net: Any) -> None:
    """Let a network build its operators anew; those of static shapes keep arrays of before ``net.initialize``."""
    for layer in layers_of(net):
        if isinstance(layer, gluon.HybridBlock):
            layer._clear_cached_op()
