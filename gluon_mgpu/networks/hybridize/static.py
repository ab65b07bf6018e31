"""Graphs whose memory is allocated once per device, for operators that were tested with it.

MXNet can plan the memory of a whole graph and keep it (``static_alloc``, ``static_shape``). That is fast, but wrong for
some operators of MXNet 1.9: a transposed convolution whose weight is copied crashes. So only graphs of `TESTED`
operators run in this way; test_static.py compares each operator with plain Gluon.
"""
from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from ...base.nested import leaves, refill
from ...mxnet_setup.compat import MXNET_MAJOR, Context, autograd, gluon, mx
from .graph_operators import operators_of
from .running_statistics import declared, marker_of_call

# Each combination of shapes and dtypes needs an operator with its own memory. In each mode, four are enough for full
# batches and a smaller last one. After `MAX_CREATED`, other shapes, such as those of sentences, run without such memory
MAX_OPERATORS, MAX_CREATED = 4, 12

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
# Those that were tested in a graph, as by ``net.hybridize()``, but not with static memory
OTHER_OPERATORS = """
    abs BlockGrad broadcast_add broadcast_div broadcast_mul broadcast_sub Cast Deconvolution _div_scalar dot
    elemwise_div elemwise_mul elemwise_sub exp _greater_scalar GroupNorm InstanceNorm log max mean min _minus_scalar
    _mul_scalar one_hot Pad _plus_scalar _power_scalar _rdiv_scalar relu Reshape _rminus_scalar sigmoid sign
    slice_like SliceChannel sqrt square sum tanh transpose where zeros_like
"""
TESTED_IN_A_GRAPH = TESTED | frozenset(OTHER_OPERATORS.split())

MARKER = '_backward_pass'  # a variable, see `running_statistics`
_ONE_THREAD = threading.Lock()  # MXNet 2 crashes or hangs at times if several threads start operators at once


class _CachedOp:
    """An operator, which is created again when one more device begins to use it after the first calls."""
    # On a device, it keeps the scratch areas that are next in the ring of 53 when it begins there, such as 0 to 2 on
    # cpu(0) and then 3 to 5 on cpu(1). If cpu(1) began later, after 50 more areas were taken, it would get 0 to 2 as
    # well, and the devices would wait for each other. `mxnet_setup.runtime` sets the size of the ring

    def __init__(self, create: Callable):
        self._create, self._operator = create, create()
        self._calls: dict[Context, int] = {}  # of this operator, by device

    def __call__(self, *arrays: Any) -> Any:
        device = arrays[0].ctx
        with _ONE_THREAD:
            if device not in self._calls and max(self._calls.values(), default=0) > 1:
                # The others get the new operator in their next calls, and are not created again after that
                self._operator, self._calls = self._create(), dict.fromkeys(self._calls, 0)
            self._calls[device] = self._calls.get(device, 0) + 1
            return self._operator(*arrays)


def _data(param: gluon.Parameter, device: Context) -> Any:
    """Return the array of a parameter. On MXNet 2, what its own `data` computes with it is a part of the graph."""
    return param.data(device) if MXNET_MAJOR < 2 else gluon.Parameter.data(param, device)


class TracedGraph:
    """The graph of a network in one mode, with an operator for each of the shapes that were used last.

    The arguments are as from `trace_block`. If the shapes change in most calls, it runs without static memory.
    """

    def __init__(self, symbol: Any, names: list[str], lists: Any, params: dict | None = None):
        params, self._lists = params or {}, lists
        self._params = list(params.values())
        operators, _ = operators_of(symbol)
        kinds = {operator.node['op'] for operator in operators}
        is_dense = all(param._grad_stype == 'default' for param in self._params)
        # The gradient of its slope is wrong if other operators follow in the same graph
        has_prelu = any(operator.settings.get('act_type') == 'prelu' for operator in operators)
        self.is_tested = bool(kinds) and kinds <= TESTED_IN_A_GRAPH and is_dense and not has_prelu
        self.is_static = self.is_tested and kinds <= TESTED
        # oneDNN's transposed convolution crashes if its gradient is a part of an array
        self.gradients_can_move = 'Deconvolution' not in kinds
        self._cached_ops: OrderedDict[tuple, _CachedOp] = OrderedDict()
        self._num_created = 0
        if not self.is_tested:  # `hybridized` calls the network as it is
            return
        arrays, written = [*names, *params], {*symbol.list_auxiliary_states()}
        is_prediction = not autograd.is_recording() and not autograd.is_training()
        uses = Counter(name for operator in operators for name in operator.inputs)
        # Parameters that are a part of the static memory, unless they are other arrays in each call
        kept = [name for name, param in params.items() if type(param).data is gluon.Parameter.data
                and (is_prediction or (name in written and uses[name] == 1))]  # the engine orders what writes others
        self._statistics = [] if is_prediction else [params[name] for name in kept]
        markers = [MARKER] if self._statistics and autograd.is_recording() else []
        # A copy of batch norm's statistics could not be written
        isolated, arrays = isolate(symbol, {*arrays} - {*kept} - written, markers), [*arrays, *markers]
        self._create = lambda: _CachedOp(lambda: cached_op(isolated, arrays, kept))
        self._create_dynamic = lambda: _CachedOp(lambda: cached_op(symbol, arrays, None))
        self._dynamic: _CachedOp | None = None

    def __call__(self, arrays: list) -> Any:
        """Run the operator for the shapes and dtypes of `arrays`; return the results in such lists as the network."""
        device = arrays[0].ctx
        operator = self._cached_op_for(arrays)
        arrays = [*arrays, *[_data(param, device) for param in self._params]]
        if self._statistics and operator is not self._dynamic:
            results = self._write_statistics(operator, arrays, device)
        else:
            results = operator(*arrays)
        return results if self._lists is True else refill(self._lists, iter(leaves(results)))

    def _write_statistics(self, operator: _CachedOp, arrays: list, device: Context) -> Any:
        """Run an operator with static memory that writes batch norm's statistics, possibly in its backward pass."""
        written = self._statistics if device.device_type == 'gpu' else []  # cuDNN's forward pass writes them
        with declared([param.data(device) for param in written]):
            if not autograd.is_recording():
                return operator(*arrays)
            if (marker := marker_of_call(self._statistics, device)) is None:
                return self._dynamic_cached_op()(*arrays)
            *results, _ = operator(*arrays, marker)
            return results[0] if len(results) == 1 else results

    def _dynamic_cached_op(self) -> _CachedOp:
        self._dynamic = self._dynamic or self._create_dynamic()
        return self._dynamic

    def _cached_op_for(self, arrays: list) -> _CachedOp:
        key = tuple([(array.shape, array.dtype) for array in arrays])
        with _ONE_THREAD:
            if (operator := self._cached_ops.pop(key, None)) is None:
                if not self.is_static or self._num_created >= MAX_CREATED:
                    return self._dynamic_cached_op()
                operator = self._create()
                self._num_created += 1
            self._cached_ops[key] = operator  # the last one
            if len(self._cached_ops) > MAX_OPERATORS:
                self._cached_ops.popitem(last=False)
            return operator


def cached_op(graph: Any, names: list, params: list | None) -> Callable:
    """Return an operator that runs a graph (a symbol), with static memory unless `params` is None.

    The operator takes an array for each of `names`, all on one device, and ignores those that are not in the graph.
    Those for `params` are a part of the static memory, and need no gradients: MXNet would write these where the first
    backward pass has written them, which is temporary memory if that pass adds up several gradients.
    """
    inputs = graph.list_inputs()
    order = [names.index(name) for name in inputs]
    # Without static memory, MXNet would run two operators as if they were called one by one, and not record all outputs
    flags: list = [('inline_limit', 0)] if params is None else [
        ('static_alloc', True), ('static_shape', True),
        ('data_indices', [i for i, name in enumerate(inputs) if name not in params]),
        ('param_indices', [i for i, name in enumerate(inputs) if name in params])]
    operator = mx.nd.CachedOp(graph, flags)
    if MXNET_MAJOR < 2:
        return lambda *arrays: operator(*(arrays[i] for i in order))
    return lambda *arrays: operator(*(arrays[i] for i in order), default_ctx=arrays[0].ctx)


def isolate(graph: Any, names: Iterable[str], more: Iterable[str] = ()) -> Any:
    """Return the same graph with copies of some inputs (`names`) and of its outputs, which differ at each call.

    It gets one more output for each of the variables `more`, also a copy. If an operator used them directly, the engine
    would prepare it again at each call, with another scratch area.
    """
    inputs = {name: _copy(mx.sym.var(name).as_np_ndarray()).as_nd_ndarray()
              for name in names if name in graph.list_inputs()}
    isolated = graph.as_nd_ndarray()(**inputs)  # a new graph in which the copies replace the variables
    outputs = [*isolated, *map(mx.sym.var, more)]
    return mx.sym.Group([_copy(output.as_np_ndarray()) for output in outputs], type(graph))


def _copy(symbol: Any) -> Any:
    """Copy by an operator that needs no scratch area, and whose gradient needs none."""
    # ``identity`` needs one: a different area at each call, possibly one that another device is using
    return mx.sym.npx.reshape(symbol, (-4,))  # -4: keep all dimensions
