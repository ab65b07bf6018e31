"""Hybridize a network: run it as one operator whose memory is allocated once per shape.

Normally Python starts each operator of a network, and each allocates memory for its results. A hybridized network is
traced once as a graph of symbols and started in one call. Unlike by ``net.hybridize()``, the block does not change.
"""
from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy

from ...base.nested import leaves
from ...mxnet_setup.compat import autograd, gluon, mx
from .eager_only import EagerOnlyError, SideEffectError, keeps_gradients
from .snapshot import Snapshot
from .static import TracedGraph
from .tracing import trace_block, trace_function

_TRACING = threading.RLock()  # because Gluon keeps the state of tracing in the block
_FUNCTIONS: weakref.WeakSet = weakref.WeakSet()  # the results of `hybridized` for functions
# A network that has changed this often is traced only if it is called this many times as often
MAX_CHANGES, CALLS_PER_CHANGE = 8, 10


def hybridized(network: Callable) -> Callable:
    """Return a callable that runs `network` as one operator; `network` itself does not change.

    The network is traced at the first call in training and at the first in evaluation, and again for arguments in other
    lists, and after its layers, frozen parameters or anything else that its code reads have changed (`Snapshot`). It
    runs as it is if its graph would leave something out, such as an ``autograd.Function``, ``autograd.pause``, a
    forward hook, or attributes that a call sets; if it has operators that `static` has not tested, or arguments other
    than arrays and None; and if it changes in nearly every call. Raises ValueError if `network` is neither a
    HybridBlock nor a function or, at the first call, if it cannot be traced.

    Parameters
    ----------
    network : gluon.HybridBlock or function
        An initialized block, possibly of ``mx.nd``, or a function. Either takes and returns arrays and nested lists of
        arrays. A function may only call functions of ``mxnet.np`` and ``mxnet.npx`` and methods of arrays. It must not
        ask for shapes (use ``-1`` in a reshape). Its ``npx.relu`` returns 0 for NaN.

    Returns
    -------
    callable
        Takes the same arguments, by position, all on one device, and is differentiable. It does not block. For a block,
        it also has `collect_params`.
    """
    network = unwrapped(network)  # a cell of a notebook may run twice
    if isinstance(network, gluon.HybridBlock):
        return HybridizedBlock(network)
    if not isinstance(network, types.FunctionType):  # other callables have no code to run with symbols
        raise ValueError(f'{type(network).__name__} is neither a gluon.HybridBlock nor a function of arrays, and '
                         'cannot be traced: make it a HybridBlock, or call it as it is')
    graphs = _Graphs(network, trace_function)
    fast = functools.wraps(network)(lambda *args: graphs.call(args))
    _FUNCTIONS.add(fast)
    return fast


def unwrapped(net: Any) -> Any:
    """Return the block or function inside the result of `hybridized`; return anything else as it is."""
    if isinstance(net, HybridizedBlock):
        return net.block
    # Other decorators set `__wrapped__` as well, and may change the results
    return vars(net)['__wrapped__'] if isinstance(net, types.FunctionType) and net in _FUNCTIONS else net


class HybridizedBlock:
    """Hybridized block: its operator gets the parameters on the arguments' device. A plain Block runs as it is."""

    def __init__(self, block: gluon.Block):
        self.block = block
        self._graphs = _Graphs(block, trace_block)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f'a hybridized network has no {name}: use the network itself, which has the same '
                             'parameters, and is its attribute block')

    def collect_params(self, *args):
        """Return the parameters of the block, like ``block.collect_params``."""
        return self.block.collect_params(*args)

    @property
    def gradients_can_move(self) -> bool:
        """True if there were backward passes, and all can write gradients into any memory."""
        return bool(self._graphs.gradients_can_move) and not keeps_gradients(self.block)

    def __call__(self, *args):
        return self._graphs.call(args)


class _Graphs:
    """The graphs of a network, by what each is valid for."""

    def __init__(self, network: Callable, trace: Callable):
        self.network, self._trace = network, trace
        self.graphs: dict[tuple, TracedGraph | None] = {}  # None: as it is
        self._snapshot = Snapshot(network)                  # with which they were traced
        self._calls = self._changes = 0
        self._has_side_effects = False
        self.gradients_can_move: bool | None = None         # None: not known before the first call

    def call(self, args: tuple) -> Any:
        """Call the network, as one operator if possible."""
        graph = self._graph_for(args)
        if autograd.is_recording():
            can_move = graph is not None and graph.gradients_can_move
            self.gradients_can_move = can_move and self.gradients_can_move is not False
        return self.network(*args) if graph is None else graph(leaves(args))

    def _graph_for(self, args: tuple) -> TracedGraph | None:
        is_plain = isinstance(self.network, gluon.Block) and not isinstance(self.network, gluon.HybridBlock)
        if is_plain or self._has_side_effects:
            return None
        self._calls += 1
        if not self._snapshot.is_current():
            with _TRACING:
                self.graphs, self._snapshot = {}, Snapshot(self.network)
                self._changes += 1
        lists = structure(args)
        changes_often = self._changes >= MAX_CHANGES and self._calls < CALLS_PER_CHANGE * self._changes
        if lists is None or changes_often or self._snapshot.unknown:
            return None
        params = [(param.grad_req == 'null', param.dtype) for param in self._snapshot.params]
        key, graphs = (autograd.is_recording(), autograd.is_training(), lists, *params), self.graphs
        if key not in graphs:
            with _TRACING:
                if key not in graphs:
                    graphs[key] = self._traced(args)
                    self._snapshot = Snapshot(self.network)  # in which MXNet may have changed its own attributes
        return graphs[key]

    def _traced(self, args: tuple) -> TracedGraph | None:
        try:
            graph = TracedGraph(*self._trace(self.network, args))
            return graph if graph.is_tested else None
        except ValueError as error:
            self._has_side_effects = isinstance(error.__cause__, SideEffectError)
            if isinstance(error.__cause__, EagerOnlyError):
                return None
            raise


def structure(values: Any) -> tuple | type | None:
    """Return the types of nested lists and of the arrays and None in them; None if there is anything else."""
    if type(values) in (list, tuple) or (isinstance(values, tuple) and hasattr(values, '_fields')):
        found = type(values), *map(structure, values)
        return None if None in found else found
    if isinstance(values, numpy.ndarray):
        raise ValueError('an argument is an array of NumPy: pass arrays of MXNet, or lists of them')
    return type(values) if values is None or isinstance(values, mx.nd.NDArray) else None
