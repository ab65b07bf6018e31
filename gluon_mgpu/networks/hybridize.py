"""A network as one operator with memory of its own: what ``net.hybridize()`` is for, done once for each shape.

    fast = hybridized(net)      # a Gluon block, which stays as it is
    fast = hybridized(lenet)    # a function of arrays

Called as written, a network hands every operator to the engine on its own, each from Python and each with
freshly allocated results. Hybridized, it is traced once, as a graph of symbols, and handed over whole; the
graph's memory is laid out on each device at the first call and used again at every later one. The mathematics is
the same.
"""
from __future__ import annotations

import functools
import types
from collections import OrderedDict
from collections.abc import Callable
from operator import is_
from typing import Any

from ..mxnet_setup.compat import Context, autograd, cached_op, gluon, npx, trace_block
from .graph import fence, flatten, trace_function

# Operators kept for each network. Training and evaluation, each with full batches and a smaller last one, each
# split unevenly, need eight.
MOST_OPERATORS = 8


def hybridized(network: Callable) -> Callable:
    """Return a callable that computes what `network` computes, as one operator; `network` stays as it is.

    The network is traced at the first call: what is changed in it later (a layer added, another activation)
    is not seen, so make another callable then. Parameters may change at any time, also their dtype.

    Parameters
    ----------
    network : gluon.HybridBlock or callable
        A block that takes one array or several and returns one; its parameters must be initialized, if only
        for shapes that are not known yet. Or a function of arrays and lists of arrays that returns one array;
        its body calls nothing but functions of ``mxnet.np`` and ``mxnet.npx``, by whatever names its module
        has for these two, and methods of arrays. It asks no array for its shape (``-1`` stands for the
        number of rows in a reshape) and is called with lists of the same length each time.

    Returns
    -------
    callable
        With the same arguments, differentiable in each of them and, for a block, in its parameters. All arrays
        must be on one device. It does not wait, but for batch norm's running statistics at the first call
        after training. (Whoever reads these by hand calls ``npx.waitall()`` first: MXNet does not wait for them.)
        For each combination of shapes, dtypes, recording and training mode it keeps an operator with memory of
        its own, at most `MOST_OPERATORS`: those used last. That of a block has the block's `collect_params`.

    Raises
    ------
    ValueError
        If `network` is a block that is not a HybridBlock, or a callable that is not a plain function. At the first
        call, if it cannot be traced.
    """
    if isinstance(network, gluon.HybridBlock):
        return _HybridizedBlock(network)
    if not isinstance(network, types.FunctionType):  # another callable has no code that can run with symbols
        raise ValueError(f'{type(network).__name__} is neither a gluon.HybridBlock nor a function of arrays, and '
                         'cannot be traced: make it a HybridBlock, or call it as it is')
    operators = _Operators(lambda args: (*trace_function(network, args), []), network.__name__)

    @functools.wraps(network)
    def fast(*args):
        return operators.get(args)(*flatten(args))

    return fast


def unwrapped(net: Any) -> Any:
    """Return the block that `hybridized` was given, if `net` is what it returned for a block; else `net` itself."""
    return net.block if isinstance(net, _HybridizedBlock) else net


class _HybridizedBlock:
    """What `hybridized` returns for a block: it hands over the parameters of the device that the arrays are on."""

    def __init__(self, block: gluon.HybridBlock):
        self.block = block
        self._begin()

    def _begin(self) -> None:
        self._operators = _Operators(self._trace, type(self.block).__name__)
        self._params: list = []  # those that the graph takes, in its order
        self._laid_out_for: dict[Context, list] = {}  # the parameters there, then the gradients
        self._statistics_may_change = False

    def __repr__(self) -> str:
        return f'hybridized({self.block!r})'

    def collect_params(self, *args):
        """Return the parameters of the block, as ``block.collect_params`` does."""
        return self.block.collect_params(*args)

    def __call__(self, *args):
        operator, device = self._operators.get(args), args[0].ctx
        arrays = self._laid_out_for.get(device, [])
        if not arrays or not self._still(arrays, device):
            now = [p.data(device) for p in self._params]
            now += [p.grad(device) for p in self._params if p.grad_req != 'null']
            arrays = self._laid_out_for.setdefault(device, now)
            if not _same(arrays, now):
                # The parameters were cast or initialized anew. MXNet would go on writing gradients where the old ones
                # were, and the graph may hold old dtypes: begin anew
                self._begin()
                return self(*args)
        self._wait_for_statistics()
        return operator(*args, *arrays[:len(self._params)])

    def _still(self, arrays: list, device) -> bool:
        """Whether these are the parameters on a device and their gradients. `Parameter.data` takes 2 us for each."""
        try:
            number = self._params[0].list_ctx().index(device)
            return _same(arrays, [p._data[number] for p in self._params] +
                         [p._grad[number] for p in self._params if p._grad is not None])
        except (IndexError, RuntimeError, TypeError, ValueError):  # on others now, or on none: MXNet shall say it
            return False

    def _wait_for_statistics(self) -> None:
        """Wait, at the first call after training, for batch norm's running statistics.

        The backward pass of a graph with memory of its own changes them without telling the engine, which would
        let this call go ahead.
        """
        if autograd.is_recording():
            self._statistics_may_change = any(p.grad_req == 'null' for p in self._params)
        elif self._statistics_may_change:
            npx.waitall()
            self._statistics_may_change = False

    def _trace(self, args) -> tuple:
        with autograd.pause():
            graph, names = trace_block(self.block, args)
        params = {p.var().name: p for p in self.block.collect_params().values()}
        used = [name for name in graph.list_inputs() if name in params]
        self._params = [params[name] for name in used]
        return graph, names, used


class _Operators:
    """The operators of one network, by what decides how their memory is laid out; at most `MOST_OPERATORS`.

    Parameters
    ----------
    trace : callable
        Takes the arguments of a call and returns the graph, the names in it of the arrays among them, and
        the names of its parameters: arrays that are the same at every call.
    name : str
        The network's name in errors.
    """

    def __init__(self, trace: Callable, name: str):
        self._trace, self._name = trace, name
        self._traced: tuple = ()
        self._operators: OrderedDict[tuple, Callable] = OrderedDict()

    def get(self, args) -> Callable:
        """Return the operator for a call with these arguments."""
        key = (autograd.is_recording(), autograd.is_training(), *map(_signature, args))
        operator = self._operators.pop(key, None)
        if operator is None:
            graph, names, params = self._traced = self._traced or self._try_to_trace(args)
            if len(self._operators) == MOST_OPERATORS:
                self._operators.popitem(last=False)  # used longest ago: its memory is free for the next
            operator = cached_op(fence(graph, names), [*names, *params], params)
        self._operators[key] = operator
        return operator

    def _try_to_trace(self, args) -> tuple:
        try:
            return self._trace(args)
        except (AttributeError, NotImplementedError, TypeError) as error:  # it does what symbols cannot do
            raise ValueError(f'{self._name} cannot be traced ({error}): call it without hybridized()') from error


def _signature(arg) -> tuple:
    """Shape and dtype of an array, or of those in a list. To ask eight arrays for both takes 45 us."""
    if isinstance(arg, list):
        return getattr(arg, 'signature', None) or tuple(map(_signature, arg))
    return arg.shape, arg.dtype


def _same(arrays: list, others: list) -> bool:
    return len(arrays) == len(others) and all(map(is_, arrays, others))
