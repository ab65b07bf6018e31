"""A network with an operator of Gluon's for each shape, so that other shapes take no more memory in each epoch."""
from __future__ import annotations

from collections import OrderedDict
from typing import Any

from ..base.nested import leaves
from ..mxnet_setup.compat import autograd, gluon, npx

MAX_OPERATORS = 16  # those used last, for full and last batches, devices with other shares, training and evaluation


class StaticSequential(gluon.nn.HybridSequential):
    """``gluon.nn.HybridSequential`` that keeps an operator for each shape and mode if its shapes are static.

    After ``hybridize(static_alloc=True, static_shape=True)``, Gluon has a single operator. It prepares that again at
    each change between training and evaluation or to another shape, such as that of a smaller last batch. MXNet then
    gives it other scratch memory, and the memory of the process grows over many epochs. All else is Gluon's.

    A call in another mode than the one before waits for all devices: MXNet's engine does not know that the backward
    pass of an operator with static shapes writes batch norm's running statistics, which another operator may read.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._operators: OrderedDict[tuple, Any] = OrderedDict()
        self._mode: tuple | None = None  # of the last call

    def _clear_cached_op(self) -> None:
        # Gluon calls this after hybridize(), cast() or another layer, because its operator is no longer valid
        super()._clear_cached_op()
        self._operators = OrderedDict()

    def _call_cached_op(self, *args: Any) -> Any:
        if not dict(self._flags).get('static_shape') or self._backend:  # optimize_for changes the graph at each build
            return super()._call_cached_op(*args)
        mode = autograd.is_recording(), autograd.is_training()
        if mode != self._mode:
            npx.waitall()
            self._mode = mode
        key = *mode, *[(array.shape, array.dtype) for array in leaves(args)]
        self._cached_op = self._operators.pop(key, None)
        result = super()._call_cached_op(*args)  # builds an operator if there is none
        self._operators[key] = self._cached_op   # the one used last
        if len(self._operators) > MAX_OPERATORS:
            self._operators.popitem(last=False)
        return result
