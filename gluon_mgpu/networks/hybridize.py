"""Hybridize a network: run it as one operator whose memory is allocated once per shape.

    fast = hybridized(net)      # a Gluon block
    fast = hybridized(lenet)    # a function of arrays

Normally Python starts each operator of a network separately, and each allocates memory for its results. A hybridized
network is traced once as a graph of symbols and then started in one call. Unlike ``net.hybridize()``, this does not
change the block.
"""
from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

from ..mxnet_setup.compat import autograd, gluon, npx
from .eager_only import EagerOnlyError
from .static import TracedGraph
from .tracing import leaves, structure, trace_block, trace_function

_TRACING = threading.RLock()  # because Gluon keeps the state of tracing in the block
_FUNCTIONS: weakref.WeakSet = weakref.WeakSet()  # the results of `hybridized` for functions


def hybridized(network: Callable) -> Callable:
    """Return a callable that runs `network` as one operator; `network` itself does not change.

    The network is traced at the first call in training and at the first in evaluation, and again for another number of
    arguments. Later changes (an added layer, another activation) have no effect. Parameters may change at any time,
    including their dtype. A network with operators that `static` has not tested, with an ``autograd.Function``, or
    that uses ``autograd.pause`` or another mode, runs as it is. Raises ValueError if `network` is neither a HybridBlock
    nor a function or, at the first call, if it cannot be traced.

    Parameters
    ----------
    network : gluon.HybridBlock or function
        An initialized block, possibly of ``mx.nd``, or a function. Either takes and returns arrays and nested lists of
        arrays. A function may only call functions of ``mxnet.np`` and ``mxnet.npx`` and methods of arrays. It must not
        ask for shapes (use ``-1`` in a reshape). Its ``npx.relu`` returns 0 for NaN.

    Returns
    -------
    callable
        Takes the same arguments, by position, all on one device, and is differentiable. It does not block, except at
        the first call after training, to wait for batch norm's running statistics. (MXNet does not wait for these by
        itself: call ``npx.waitall()`` before reading them.) For a block, it also has `collect_params`.
    """
    if isinstance(network, gluon.HybridBlock):
        return HybridizedBlock(network)
    if not isinstance(network, types.FunctionType):  # other callables have no code to run with symbols
        raise ValueError(f'{type(network).__name__} is neither a gluon.HybridBlock nor a function of arrays, and '
                         'cannot be traced: make it a HybridBlock, or call it as it is')
    graphs: dict[tuple, TracedGraph] = {}

    @functools.wraps(network)
    def fast(*args):
        graph = _graph_for(args, graphs, lambda: TracedGraph(*trace_function(network, args)))
        return graph.run(leaves(args)) if graph.is_static else network(*args)

    _FUNCTIONS.add(fast)
    return fast


def unwrapped(net: Any) -> Any:
    """Return the block or function inside the result of `hybridized`; return anything else as it is."""
    if isinstance(net, HybridizedBlock):
        return net.block
    # Other decorators set `__wrapped__` as well, and may change the results
    return vars(net)['__wrapped__'] if isinstance(net, types.FunctionType) and net in _FUNCTIONS else net


class HybridizedBlock:
    """Hybridized block. At each call, it passes the parameters on the device of the arguments to the operator.

    `used_once` promises that the parameters on a device occur once in each backward pass: one call, and nothing else
    such as a penalty on the weights or ``autograd.grad``. Their gradients are then written without a copy, which is
    faster. If the promise is broken, they can be lost, without an error; see `data_parallel`.
    """

    def __init__(self, block: gluon.HybridBlock, used_once: bool = False):
        self.block, self._used_once = block, used_once
        self._statistics_may_change = False
        self._graphs: dict[tuple, TracedGraph] = {}

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f'a hybridized network has no {name}: use the network itself, which has the same '
                             'parameters, and is its attribute block')

    def collect_params(self, *args):
        """Return the parameters of the block, like ``block.collect_params``."""
        return self.block.collect_params(*args)

    @property
    def gradients_can_move(self) -> bool:
        """True if the backward pass of the graphs that were traced so far can write gradients into any memory."""
        return all(graph.is_static for (recording, *_), graph in self._graphs.items() if recording)

    def __call__(self, *args):
        graph = _graph_for(args, self._graphs, lambda: TracedGraph(*trace_block(self.block, args), self._used_once))
        self._wait_for_statistics(graph)
        if not graph.is_static:
            return self.block(*args)
        arrays = leaves(args)
        params = graph.arrays_on(arrays[0].ctx)
        if params is None:
            # The parameters were cast or initialized again. The operators would write gradients into the old arrays,
            # and the graph may have the old dtypes
            self._graphs.clear()
            return self(*args)
        return graph.run(arrays, params)

    def _wait_for_statistics(self, graph: TracedGraph) -> None:
        """Wait for batch norm's statistics after training. The backward pass changes them, which the engine misses."""
        if autograd.is_recording():
            self._statistics_may_change = graph.has_statistics
        elif self._statistics_may_change:
            npx.waitall()
            self._statistics_may_change = False


class _AsItIs:
    """Instead of the graph of a network that has an ``autograd.Function``, or uses ``autograd.pause``."""

    is_static, has_statistics = False, True


def _graph_for(args: tuple, graphs: dict[tuple, Any], trace: Callable[[], TracedGraph]) -> Any:
    """Return the graph for arguments in such lists and the present mode of autograd; trace it if it is missing."""
    key = autograd.is_recording(), autograd.is_training(), structure(args)
    graph = graphs.get(key)
    if graph is None:
        with _TRACING:
            graph = graphs[key] = graphs.get(key) or _traced(trace)
    return graph


def _traced(trace: Callable[[], TracedGraph]) -> Any:
    try:
        return trace()
    except ValueError as error:
        if isinstance(error.__cause__, EagerOnlyError):
            return _AsItIs()
        raise
