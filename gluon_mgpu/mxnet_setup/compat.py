"""MXNet for all other modules: imported with NumPy semantics, and with functions for what differs between 1.9 and 2."""
from __future__ import annotations

import ctypes
import functools
import math
import weakref
from typing import TYPE_CHECKING

from . import runtime
from .installation import BUILDS

mx = runtime.load_mxnet()  # first, because it reports missing software in one line

import numpy  # noqa: E402
from mxnet import autograd, gluon, init, np, npx  # noqa: E402, F401 (for other modules)
from mxnet.ndarray.ndarray import _new_alloc_handle  # noqa: E402

MXNET_MAJOR = int(mx.__version__.split('.')[0])
if TYPE_CHECKING:
    from mxnet.context import Context
else:
    Context = type(mx.cpu())  # named Device in MXNet 2


if TYPE_CHECKING or MXNET_MAJOR >= 2:
    HybridBlock = gluon.HybridBlock
else:
    class HybridBlock(gluon.HybridBlock):
        """A block with MXNet 2's ``forward(self, X)`` that MXNet 1.9, which calls it with symbols, can hybridize."""

        def __init_subclass__(cls, **kwargs):
            super().__init_subclass__(**kwargs)
            if 'forward' in vars(cls):
                cls.forward = _called_by_gluon_or_super(cls.forward)

        def hybrid_forward(self, F, *args):
            return type(self).forward.__wrapped__(self, *args)

    def _called_by_gluon_or_super(written):
        """Return a `forward` that calls Gluon's, which calls `written`; ``super().forward(X)`` calls `written`."""
        @functools.wraps(written)
        def forward(self, *args):
            if type(self).forward is forward:
                return gluon.HybridBlock.forward(self, *args)
            return written(self, *args)
        return forward


graph_from_json = mx.sym.load_json if MXNET_MAJOR < 2 else mx.sym.fromjson


def zero_grad(net: gluon.Block, devices: list) -> None:
    """Set the gradients of `net` on some of its devices to zero, in place; does not block.

    Gradients with ``grad_req='add'`` stay: they are sums, to which these devices add nothing. All are marked as written
    by a backward pass. Otherwise Gluon's Trainer would reject or skip them.
    """
    for param in net.collect_params().values() if devices else ():
        if param.grad_req != 'null':
            for device in devices:
                if param.grad_req == 'write':
                    param.grad(device)[:] = 0
                param.data(device)._fresh_grad = True


def children(block: gluon.Block) -> dict:
    """Return the layers that are direct children of a block, by name."""
    return {name: child() if isinstance(child, weakref.ref) else child for name, child in block._children.items()}


def compute_capabilities() -> tuple:
    """Return the lowest and the highest compute capability that the installed MXNet has code for."""
    on_pypi, revived = BUILDS.values()
    return on_pypi if MXNET_MAJOR < 2 or mx.__version__.startswith('2.0.0b') else revived


def add(a, b):
    """Return a + b for arrays or symbols of the same shape, computed by oneDNN if possible.

    The ``+`` of NumPy semantics would first convert the output of oneDNN's convolutions to another memory layout.
    """
    package = mx.sym if isinstance(a, mx.sym.Symbol) else mx.nd
    return package.elemwise_add(a.as_nd_ndarray(), b.as_nd_ndarray()).as_np_ndarray()


def low_precision_type(name: str):
    """Return the dtype for a cast by its name; bfloat16 needs a special one, because NumPy has none."""
    if name == 'bfloat16':
        from mxnet.contrib.amp.amp import bfloat16
        return bfloat16
    return name


def empty_with_view(shape: tuple, dtype) -> tuple:
    """Return a new array on ``cpu(0)`` and a NumPy view of its memory, to be filled before the array is used.

    Unlike ``np.array(data)``, it does not wait for the work queued on ``cpu(0)``. MXNet owns the memory: with
    ``from_numpy``, Python owns it and frees it on a thread of the engine, so a process that forks could hang. The view
    is valid as long as the array exists. Raises ValueError if MXNet has no arrays of that dtype.
    """
    dtype = numpy.dtype(dtype).newbyteorder('=')
    try:
        array = np.empty(shape, dtype=dtype, ctx=mx.cpu(0))
    except (KeyError, TypeError):
        raise ValueError(f"dtype {dtype}: MXNet has no such arrays; convert it, for example with "
                         "array.astype('float32')") from None
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return array, numpy.empty(shape, dtype)
    address = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    memory = (ctypes.c_char * size).from_address(address.value)
    return array, numpy.frombuffer(memory, dtype).reshape(shape)


def trace_block(block: gluon.HybridBlock, args: tuple) -> tuple:
    """Return the graph of an initialized block (a symbol with one output) and the names of its variables for `args`.

    A parameter's variable is ``param.var().name``. Infers unknown shapes of parameters; does not block. Raises
    ValueError if the block returns a list of arrays, or does not use a parameter of unknown shape.
    """
    names = [f'data_{i}' for i in range(len(args))]
    symbols = [mx.sym.var(name).as_np_ndarray() for name in names]
    graph = (_trace_mxnet1 if MXNET_MAJOR < 2 else _trace_mxnet2)(block, args, symbols)
    if isinstance(graph, (list, tuple)):
        raise ValueError(f'{type(block).__name__} returns a list or tuple: only a block that returns one array, '
                         'not in a list, can be hybridized here; use its own hybridize()')
    return graph, names


def _trace_mxnet1(block, args, symbols):
    graph, params = block(*symbols), block.collect_params().values()
    try:
        for param in params:
            param.list_data()
    except gluon.parameter.DeferredInitializationError:  # Gluon does the same at the first call
        try:
            block.infer_shape(*args)
        except KeyError as unused:
            raise ValueError(f'{type(block).__name__} does not use its parameter {unused}, whose shape is '
                             'therefore unknown: remove that layer, or give it in_units or in_channels') from None
        for param in params:
            param._finish_deferred_init()
    return graph


def _trace_mxnet2(block, args, symbols):
    from mxnet import _deferred_compute as deferred
    arrays = [a.detach() for a in args]
    deferred.set_variable(arrays, symbols)
    with deferred.context():
        result = block(*arrays)
    if isinstance(result, (list, tuple)):
        return result
    graph = deferred.get_symbol([result], sym_cls=type(symbols[0]))
    deferred.clear([result])
    return graph


def as_input(array):
    """Return an array as the start of a new graph for autograd; the memory of its `grad` is allocated when written."""
    result = array.detach()
    gradient = type(array)(_new_alloc_handle(array.shape, array.ctx, True, array.dtype))
    autograd.mark_variables([result], [gradient])
    return result


def num_outputs(block: gluon.HybridBlock, shape: tuple) -> int | None:
    """Return how many numbers a block returns per row of a batch of this shape, None if unknown.

    Does not change the block. On MXNet 1.9 the block need not be initialized.
    """
    try:
        if MXNET_MAJOR < 2:
            graph = block(mx.sym.var('data').as_np_ndarray())
            return graph.infer_shape_partial(data=shape)[1][0][-1]  # infer_shape would print its errors
        device = next(iter(block.collect_params().values())).list_ctx()[0]
        return block(np.zeros(shape, ctx=device)).shape[-1]
    except Exception:  # a faulty block: training will report it
        return None


def assign(array: np.ndarray, values: numpy.ndarray) -> None:
    """Copy `values` from the host into an array, in place.

    ``array[:] = values`` fails on MXNet 1.9 for used weights of convolutions, which oneDNN stores in its own layout.
    """
    new = np.array(values, dtype=array.dtype, ctx=array.ctx)
    array[:] = new if isinstance(array, np.ndarray) else new.as_nd_ndarray()  # mx.nd's, as in a SymbolBlock


def cached_op(graph, names: list, params: list | None):
    """Return an operator that runs a graph (a symbol) with memory allocated once per device.

    The operator takes an array for each of `names`, all on one device, and ignores those that are not in the graph.
    The arrays for `params` must be the same, with the same gradients, in each call on a device. Does not block. If
    `params` is None, all arrays may differ, and memory is allocated in each call.

    MXNet writes the gradients of `params` into the arrays of the first backward pass, in all passes. If that pass sums
    several gradients of a parameter, these arrays are temporary, and the parameter never gets a gradient again.
    """
    inputs = graph.list_inputs()
    order = [names.index(name) for name in inputs]
    operator = mx.nd.CachedOp(graph, [] if params is None else [
        ('static_alloc', True), ('static_shape', True),
        ('data_indices', [i for i, name in enumerate(inputs) if name not in params]),
        ('param_indices', [i for i, name in enumerate(inputs) if name in params])])
    if MXNET_MAJOR < 2:
        return lambda *arrays: operator(*(arrays[i] for i in order))
    return lambda *arrays: operator(*(arrays[i] for i in order), default_ctx=arrays[0].ctx)
