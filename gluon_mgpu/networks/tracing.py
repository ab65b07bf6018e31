"""Tracing: turn a function into a graph of symbols, and prepare the graph for `CachedOp`."""
from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

from ..mxnet_setup.compat import mx, np, npx


@contextlib.contextmanager
def explain_errors(name: str) -> Iterator[None]:
    """Raise ValueError, with the `name` of a network, if tracing it fails: symbols cannot do all that arrays can."""
    try:
        yield
    except (AssertionError, AttributeError, IndexError, NotImplementedError, TypeError,
            mx.base.NotImplementedForSymbol) as error:
        raise ValueError(f'{name} cannot be traced ({error}): use it without hybridized() or SyncBatchNorm') from error


def trace_function(function: Callable, args) -> tuple[Any, list[str]]:
    """Call a function with symbols instead of the arrays in `args`, so that it returns its graph, a symbol.

    Also returns the names of the arrays in the graph, in the order of `flatten`.
    """
    symbolic_globals = {name: mx.sym.np if value is np else _SymbolicNpx() if value is npx else value
                        for name, value in function.__globals__.items()}
    symbolic = types.FunctionType(function.__code__, symbolic_globals, function.__name__,
                                  function.__defaults__, function.__closure__)
    symbolic.__kwdefaults__ = function.__kwdefaults__
    symbols = [[_variable(f'{i}_{j}') for j in range(len(arg))] if isinstance(arg, list) else _variable(f'{i}')
               for i, arg in enumerate(args)]
    return symbolic(*symbols), [symbol.name for symbol in flatten(symbols)]


def flatten(args) -> list:
    """Return arguments, some of which are lists, as one list: [X, [W, b], y] -> [X, W, b, y]."""
    return [leaf for arg in args for leaf in (arg if isinstance(arg, list) else [arg])]


def isolate(graph, names: list[str]):
    """Return the same graph with copies of some inputs (`names`) and of its output.

    These arrays, or their gradients, differ at each call. If an operator used them directly, the engine would prepare
    it again at each call, with another scratch area.
    """
    inputs = {name: _copy(_variable(name)).as_nd_ndarray() for name in names if name in graph.list_inputs()}
    isolated = graph.as_nd_ndarray()(**inputs)  # a new graph in which the copies replace the variables
    return _copy(isolated.as_np_ndarray())


class _SymbolicNpx:
    """``npx`` for symbols, with oneDNN's relu: the same function, and a step of LeNet is 1.5 ms faster."""

    def __getattr__(self, name):
        return getattr(mx.sym.npx, name)

    @staticmethod
    def relu(data):
        return mx.sym.npx.activation(data, act_type='relu')


def _copy(symbol):
    """Copy by an operator that needs no scratch area, and whose gradient needs none.

    ``identity`` needs one: a different area at each call, possibly one that another device is using.
    """
    return mx.sym.npx.reshape(symbol, (-4,))  # -4: keep all dimensions


def _variable(name: str):
    return mx.sym.var(name).as_np_ndarray()
