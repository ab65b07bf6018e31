"""The graph of a network, before `hybridize` makes an operator of it: traced from a function, and fenced."""
from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from ..mxnet_setup.compat import mx, np, npx


def trace_function(function: Callable, args) -> tuple[Any, list[str]]:
    """Call a function with symbols instead of arrays, so that it returns its graph.

    Parameters
    ----------
    function : callable
        As `hybridize.hybridized` takes it.
    args : sequence of np.ndarray, and of lists of them
        What it would be called with.

    Returns
    -------
    graph : mx.sym.Symbol
    names : list of str
        In it, of all these arrays, one after the other.
    """
    symbolic_globals = {name: mx.sym.np if value is np else _SymbolicNpx() if value is npx else value
                        for name, value in function.__globals__.items()}
    symbolic = types.FunctionType(function.__code__, symbolic_globals, function.__name__,
                                  function.__defaults__, function.__closure__)
    symbols = [[_variable(f'{i}_{j}') for j in range(len(arg))] if isinstance(arg, list) else _variable(f'{i}')
               for i, arg in enumerate(args)]
    return symbolic(*symbols), [symbol.name for symbol in flatten(symbols)]


def flatten(args) -> list:
    """Return arguments as one list: [X, [W, b], y] -> [X, W, b, y].

    Parameters
    ----------
    args : sequence
        Some of them lists.
    """
    return [leaf for arg in args for leaf in (arg if isinstance(arg, list) else [arg])]


def fence(graph, names: list):
    """Let operators that copy stand between those of a graph and the arrays that come in and go out.

    Those arrays are others at every call. The engine prepares an operator that touches one anew each time, and gives
    it another scratch area.

    Parameters
    ----------
    graph : mx.sym.Symbol
        Stays as it is.
    names : list of str
        In it, of the arrays that come in.

    Returns
    -------
    mx.sym.Symbol
        Computes the same.
    """
    inputs = {name: _copy(_variable(name)).as_nd_ndarray() for name in names if name in graph.list_inputs()}
    return _copy(_compose(graph, inputs))


class _SymbolicNpx:
    """``npx`` for symbols, with oneDNN's relu: the same function, and 1.5 ms per step of LeNet faster."""

    def __getattr__(self, name):
        return getattr(mx.sym.npx, name)

    @staticmethod
    def relu(data):
        return mx.sym.npx.activation(data, act_type='relu')


def _compose(graph, inputs: dict):
    """A new graph, with other symbols in place of variables. (Calling `graph` itself would change it.)"""
    return graph.as_nd_ndarray()(**inputs).as_np_ndarray()


def _copy(symbol):
    """A copy by an operator that, unlike ``identity``, takes no scratch area, nor does its gradient.

    It would be another area at each call, now and then the one that another device computes in.
    """
    return mx.sym.npx.reshape(symbol, (-4,))  # -4: all dimensions as they are


def _variable(name: str):
    return mx.sym.var(name).as_np_ndarray()
