"""Hybridize a network: run it as one operator whose memory is allocated once per shape.

    fast = hybridized(net)      # a Gluon block
    fast = hybridized(lenet)    # a function of arrays

Normally Python starts each operator of a network separately, and each allocates memory for its results. A hybridized
network is traced once as a graph of symbols and then started in one call. Its memory is allocated for each device at
the first call and reused at later calls. The mathematics stays the same. Unlike ``net.hybridize()``, this does not
change the block.
"""
from __future__ import annotations

import functools
import types
from collections.abc import Callable
from operator import is_
from typing import Any

from ..mxnet_setup.compat import Context, autograd, cached_op, gluon, npx, trace_block
from .tracing import explain_errors, flatten, isolate, trace_function

# Each combination of shapes, dtypes, recording and training mode needs an operator with its own memory. Eight are
# enough for training and evaluation, each with full batches and a smaller last one, each split unevenly. With
# `shares` and parts there can be more; then some are created again in each step
MAX_OPERATORS = 8


def hybridized(network: Callable, used_once: bool = False) -> Callable:
    """Return a callable that runs `network` as one operator; `network` itself does not change.

    The network is traced at the first call. Later changes (an added layer, another activation) have no effect.
    Parameters may change at any time, including their dtype. Raises ValueError if `network` is neither a HybridBlock
    nor a function or, at the first call, if it cannot be traced.

    Parameters
    ----------
    network : gluon.HybridBlock or function
        An initialized block, or a function of arrays and lists of arrays; either returns one array. A function may only
        call functions of ``mxnet.np`` and ``mxnet.npx`` and methods of arrays. It must not ask for shapes (use ``-1``
        in a reshape), and each list must have the same length at each call.
    used_once : bool
        Promise, for a block, that the parameters on a device occur once in each backward pass: one call, and nothing
        else such as a penalty on the weights. Their gradients are then written without a copy (ResNet-18 on two CPU
        contexts with 32 rows each: 7 % faster, 180 MB less). If the promise is broken, they can be lost, without an
        error.

    Returns
    -------
    callable
        Takes the same arguments, by position, all on one device, and is differentiable. It does not block, except at
        the first call after training, to wait for batch norm's running statistics. (MXNet does not wait for these by
        itself: call ``npx.waitall()`` before reading them.) For a block, it also has `collect_params`.
    """
    if isinstance(network, gluon.HybridBlock):
        return HybridizedBlock(network, used_once)
    if not isinstance(network, types.FunctionType):  # other callables have no code to run with symbols
        raise ValueError(f'{type(network).__name__} is neither a gluon.HybridBlock nor a function of arrays, and '
                         'cannot be traced: make it a HybridBlock, or call it as it is')
    operators = _OperatorCache(lambda args: (*trace_function(network, args), []), network.__name__)

    @functools.wraps(network)
    def fast(*args):
        return operators.get(args)(*flatten(args))

    return fast


def unwrapped(net: Any) -> Any:
    """Return the block inside the result of `hybridized`; return anything else as it is."""
    return net.block if isinstance(net, HybridizedBlock) else net


class HybridizedBlock:
    """Hybridized block. At each call, it passes the parameters on the device of the arguments to the operator."""

    def __init__(self, block: gluon.HybridBlock, used_once: bool = False):
        self.block, self._used_once = block, used_once
        self._statistics_may_change = False
        self._reset()

    def _reset(self) -> None:
        self._operators = _OperatorCache(self._trace, type(self.block).__name__, self._used_once)
        self._params: list = []  # of the graph, in its order
        self._arrays_on: dict[Context, list] = {}  # values, then gradients, that the operators use

    def collect_params(self, *args):
        """Return the parameters of the block, like ``block.collect_params``."""
        return self.block.collect_params(*args)

    def __call__(self, *args):
        operator, device = self._operators.get(args), args[0].ctx
        arrays = self._arrays_on.get(device, [])
        if not arrays or not self._are_current(arrays, device):
            current = [p.data(device) for p in self._params]
            current += [p.grad(device) for p in self._params if p.grad_req != 'null']
            arrays = self._arrays_on.setdefault(device, current)
            if not _same(arrays, current):
                # The parameters were cast or initialized again. The operators would write gradients into the old
                # arrays, and the graph may have the old dtypes
                self._reset()
                return self(*args)
        self._wait_for_statistics()
        return operator(*args, *arrays[:len(self._params)])

    def _are_current(self, arrays: list, device) -> bool:
        """Compare with the values and gradients on a device. Not by `Parameter.data`, which takes 2 us for each."""
        try:
            number = self._params[0].list_ctx().index(device)
            return _same(arrays, [p._data[number] for p in self._params] +
                         [p._grad[number] for p in self._params if p._grad is not None])
        except (IndexError, RuntimeError, TypeError, ValueError):  # not on this device: Parameter.data will raise
            return False

    def _wait_for_statistics(self) -> None:
        """Wait for batch norm's statistics after training. The backward pass changes them, which the engine misses."""
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


class _OperatorCache:
    """The `MAX_OPERATORS` operators of one network that were used last.

    `trace` maps the arguments of a call to the graph, the names of these arguments in it, and the names of its
    parameters, which are the same arrays at every call.
    """

    def __init__(self, trace: Callable, name: str, used_once: bool = False):
        traced: dict = {}  # recording -> the arguments of cached_op, after the first call
        self._trace, self._name, self._used_once, self._traced = trace, name, used_once, traced
        # The function does not refer to self, which would keep the memory of operators that are no longer used
        self._operator = functools.lru_cache(MAX_OPERATORS)(lambda recording, *_: cached_op(*traced[recording]))

    def get(self, args) -> Callable:
        """Return the operator for a call with these arguments."""
        if not self._traced:
            with explain_errors(self._name):
                graph, names, params = self._trace(args)
                arrays, statistics = [*names, *params], graph.list_auxiliary_states()
                for recording in (False, True):
                    # `cached_op` may lose gradients of parameters that are not copied
                    static = [name for name in params if name in statistics or self._used_once or not recording]
                    copied = [name for name in arrays if name not in static]
                    self._traced[recording] = isolate(graph, copied), arrays, static
            self._num_arrays = len(names)
        if sum(len(arg) if isinstance(arg, list) else 1 for arg in args) != self._num_arrays:
            raise ValueError(f'{self._name} was traced with {self._num_arrays} arrays: pass as many at each call')
        return self._operator(autograd.is_recording(), autograd.is_training(), *map(_signature, args))


def _signature(arg) -> tuple:
    """Return shape and dtype of an array, or of each in a list; `FlatParams` saves 45 us by storing them."""
    if isinstance(arg, list):
        return getattr(arg, 'signature', None) or tuple(map(_signature, arg))
    return arg.shape, arg.dtype


def _same(arrays: list, others: list) -> bool:
    return len(arrays) == len(others) and all(map(is_, arrays, others))
