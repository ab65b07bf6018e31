"""Graphs whose memory is allocated once per device, for operators that were tested with it.

MXNet can keep the memory of a graph between calls and plan it for the whole graph (``static_alloc``, ``static_shape``).
That is fast, but wrong for some operators of MXNet 1.9: a transposed convolution whose weight is copied crashes. So
only graphs of `TESTED` operators run in this way. tests/networks/test_static.py compares each with plain Gluon.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import is_
from typing import Any

from ..mxnet_setup.compat import MXNET_MAJOR, Context, autograd, mx
from .graph_operators import operators_of
from .tracing import leaves, refill

# Each combination of shapes and dtypes needs an operator with its own memory. In each mode, four are enough for full
# batches and a smaller last one. With `shares` and parts there can be more; then some are created again in each step
MAX_OPERATORS = 4

# The names of MXNet 1.9 and 2
OPERATORS = """
    Activation amp_cast batch_dot BatchNorm broadcast_maximum broadcast_minimum clip Concat Convolution Dropout
    elemwise_add Embedding expand_dims Flatten FullyConnected L2Normalization LayerNorm LeakyReLU log_softmax pick
    Pooling repeat reshape_like slice slice_axis smooth_l1 softmax stack SwapAxis tile UpSampling _maximum_scalar
    _minimum_scalar _np_copy _np_dot _np_max _np_min _np_reshape _np_squeeze _np_sum _np_transpose _npi_absolute
    _npi_add _npi_add_scalar _npi_broadcast_to _npi_concatenate _npi_copy _npi_dot _npi_exp _npi_flip
    _npi_greater_scalar _npi_less_equal_scalar _npi_log _npi_matmul _npi_max _npi_mean _npi_min _npi_multiply
    _npi_multiply_scalar _npi_negative _npi_power_scalar _npi_repeats _npi_rsubtract_scalar _npi_rtrue_divide_scalar
    _npi_sign _npi_sqrt _npi_square _npi_squeeze _npi_stack _npi_subtract _npi_subtract_scalar _npi_sum _npi_tanh
    _npi_transpose _npi_true_divide _npi_true_divide_scalar _npi_where _npx_relu _npx_reshape _npx_sigmoid _split_v2
"""
TESTED = frozenset(OPERATORS.split())


_ONE_THREAD = threading.Lock()  # MXNet 2 crashes or hangs at times if several threads start operators at once


class _Operator:
    """An operator, which is created again when one more device begins to use it after the first calls.

    Its scratch areas on a device are those whose turn it is in MXNet's ring. So devices that begin in the same step get
    different ones. Otherwise they may get the same, and wait for each other, see `mxnet_setup.runtime`.
    """

    def __init__(self, create: Callable):
        self._create, self._operator = create, create()
        self._calls: dict[Context, int] = {}  # of this operator, by device

    def __call__(self, *arrays: Any) -> Any:
        """Run the operator on the device of the arrays."""
        device = arrays[0].ctx
        with _ONE_THREAD:
            if device not in self._calls and max(self._calls.values(), default=0) > 1:
                # The others get the new operator in their next calls, and are not created again after that
                self._operator, self._calls = self._create(), dict.fromkeys(self._calls, 0)
            self._calls[device] = self._calls.get(device, 0) + 1
            return self._operator(*arrays)


class TracedGraph:
    """The graph of a network in one mode, and its `MAX_OPERATORS` operators that were used last.

    `names` are those of the arguments in the graph, `lists` those of its result, as from `trace_block`, `params` its
    parameters by name.
    """

    def __init__(self, symbol: Any, names: list[str], lists: Any, params: dict | None = None, used_once: bool = False):
        params, self._lists = params or {}, lists
        self._params = list(params.values())
        self._arrays_on: dict[Context, list] = {}  # values and gradients of the parameters, which the operators use
        statistics = symbol.list_auxiliary_states()
        self.has_statistics = bool(statistics)
        # A function's statistics cannot be copied. `arrays_on` needs the same devices in the same order
        self.is_static = (is_tested(symbol) and params.keys() >= set(statistics)
                          and len({tuple(param.list_ctx()) for param in self._params}) <= 1)
        arrays = [*names, *params]
        static = [name for name in params if name in statistics or used_once or not autograd.is_recording()]
        if self.is_static:
            isolated = isolate(symbol, [name for name in arrays if name not in static])
            # The function does not refer to self, which would keep the memory of operators that are no longer used
            self._operator = lru_cache(MAX_OPERATORS)(lambda *_: _Operator(lambda: cached_op(isolated, arrays, static)))

    def run(self, arrays: list, params: Sequence = ()) -> Any:
        """Run the operator for the shapes and dtypes of `arrays`; return the results in such lists as the network."""
        operator = self._operator(*((array.shape, array.dtype) for array in arrays))
        results = operator(*arrays, *params)
        return results if self._lists is None else refill(self._lists, iter(leaves(results)))

    def arrays_on(self, device: Context) -> list | None:
        """Return the arrays of the parameters on a device; None if they or their gradients are others than at first."""
        if not self._params:
            return []
        self._params[0].data(device)  # raises an error if they are not on this device
        number = self._params[0].list_ctx().index(device)
        values = [param._data[number] for param in self._params]  # Parameter.data would take longer
        arrays = values + [param._grad[number] for param in self._params if param._grad is not None]
        start = self._arrays_on.setdefault(device, arrays)
        return values if len(arrays) == len(start) and all(map(is_, arrays, start)) else None


def is_tested(graph: Any) -> bool:
    """Return whether a graph has operators, and only `TESTED` ones, none of which update the same statistics.

    Two layers, or one that is used twice, would update them in either order.
    """
    operators, _ = operators_of(graph)
    statistics = set(graph.list_auxiliary_states()) if autograd.is_training() else ()
    updated = [name for op in operators for name in op.inputs if name in statistics]
    return (bool(operators) and all(op.node['op'] in TESTED and not op.is_prelu for op in operators)
            and len(updated) == len(set(updated)))


def cached_op(graph: Any, names: list, params: list | None) -> Callable:
    """Return an operator that runs a graph (a symbol), with static memory unless `params` is None.

    The operator takes an array for each of `names`, all on one device, and ignores those that are not in the graph. The
    arrays for `params` must be the same, with the same gradients, in each call on a device. MXNet writes these
    gradients where the first backward pass has written them. If that pass adds up several gradients of a parameter,
    this is temporary memory, and the parameter never gets a gradient again. A copy (`isolate`) prevents this.
    """
    inputs = graph.list_inputs()
    order = [names.index(name) for name in inputs]
    # Without static memory, MXNet would run two operators as if they were called one by one, and not record all outputs
    operator = mx.nd.CachedOp(graph, [('inline_limit', 0)] if params is None else [
        ('static_alloc', True), ('static_shape', True),
        ('data_indices', [i for i, name in enumerate(inputs) if name not in params]),
        ('param_indices', [i for i, name in enumerate(inputs) if name in params])])
    if MXNET_MAJOR < 2:
        return lambda *arrays: operator(*(arrays[i] for i in order))
    return lambda *arrays: operator(*(arrays[i] for i in order), default_ctx=arrays[0].ctx)


def isolate(graph: Any, names: list[str]) -> Any:
    """Return the same graph with copies of some inputs (`names`) and of its outputs, which differ at each call.

    If an operator used them directly, the engine would prepare it again at each call, with another scratch area.
    """
    inputs = {name: _copy(mx.sym.var(name).as_np_ndarray()).as_nd_ndarray()
              for name in names if name in graph.list_inputs()}
    isolated = graph.as_nd_ndarray()(**inputs)  # a new graph in which the copies replace the variables
    return mx.sym.Group([_copy(output.as_np_ndarray()) for output in isolated], type(graph))


def _copy(symbol: Any) -> Any:
    """Copy by an operator that needs no scratch area, and whose gradient needs none.

    ``identity`` needs one: a different area at each call, possibly one that another device is using.
    """
    return mx.sym.npx.reshape(symbol, (-4,))  # -4: keep all dimensions
