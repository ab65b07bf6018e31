"""Functions of arrays as one operator, like a network after ``net.hybridize(static_alloc=True, static_shape=True)``."""
from __future__ import annotations

import functools
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from ..base.nested import leaves, refill
from ..mxnet_setup.compat import autograd, cached_op, mx
from .tracing import trace_function

MAX_OPERATORS = 16  # of a function or network: the most recently used, because each keeps memory


class hybridized:  # noqa: N801, a decorator
    """A function of arrays as one operator, with memory that is allocated once for each shape; does not block.

    The function is traced: called with symbols instead of arrays, once for each shape and dtype of its arguments, in
    training and in evaluation. So it must be pure, as for ``jax.jit``: its results depend on its arguments only, and it
    has no effects. Whatever else it reads stays as it was when it was traced, a ``print`` is run only then, and
    modes of autograd that it sets are ignored. Raises ValueError at a call that cannot be traced, such
    as that of an ``autograd.Function`` in training.

    Parameters
    ----------
    function : function
        Takes arrays, None, and nested lists of them, by position, all on one device, and returns arrays or lists of
        arrays. It may only call functions of ``mxnet.np`` and ``mxnet.npx`` and methods of arrays. It must not ask for
        shapes (use ``-1`` in a reshape).
    """

    def __init__(self, function: Callable):
        if isinstance(function, hybridized):
            function = function.function  # a cell of a notebook may run twice
        if not isinstance(function, types.FunctionType):
            raise ValueError(f'{type(function).__name__} is no function of arrays: call net.hybridize() for a network')
        functools.update_wrapper(self, function)
        self.function: Callable = function
        self._operators: OrderedDict[tuple, Callable] = OrderedDict()

    def __call__(self, *args: Any) -> Any:
        key = autograd.is_recording(), autograd.is_training(), _describe(args)
        operator = self._operators.pop(key, None) or _operator(self.function, args)
        self._operators[key] = operator
        if len(self._operators) > MAX_OPERATORS:
            self._operators.popitem(last=False)
        return operator(leaves(args))


def _describe(value: Any) -> Any:
    """Return the lists of an argument, with the shape and dtype of each array."""
    if isinstance(value, (list, tuple)):
        return type(value), *map(_describe, value)
    return value if value is None else (type(value), value.shape, value.dtype)


def _operator(function: Callable, args: tuple) -> Callable[[list], Any]:
    """Trace a function; return an operator that takes the arrays in such arguments."""
    graph, names, lists = trace_function(function, args)
    inputs = graph.list_inputs()
    # Copies of the outputs as well: they would be new arrays in each call
    outputs = mx.sym.Group([_copy(output) for output in graph.as_nd_ndarray()], type(graph))
    run = cached_op(with_copies(outputs, inputs), [
        ('static_alloc', True), ('static_shape', True), ('data_indices', [*range(len(inputs))]), ('param_indices', [])])
    order = [names.index(name) for name in inputs]
    if lists is True:
        return lambda arrays: run(*[arrays[i] for i in order])
    return lambda arrays: refill(lists, iter(leaves(run(*[arrays[i] for i in order]))))


def with_copies(graph: Any, inputs: Iterable[str]) -> Any:
    """Return a graph that works on copies of these inputs.

    Operators with static memory must see the same arrays in each call. The caller's differ, so the engine would prepare
    the operators that use them again in each call, with other temporary memory.
    """
    copies = {name: _copy(mx.sym.var(name)) for name in inputs}
    return mx.sym.Group([*graph.as_nd_ndarray()(**copies)], type(graph))


def _copy(symbol: Any) -> Any:
    """Copy by an operator that needs no temporary memory, unlike ``identity``, and whose gradient needs none."""
    return mx.sym.npx.reshape(symbol.as_np_ndarray(), (-4,)).as_nd_ndarray()  # -4: keep all dimensions
