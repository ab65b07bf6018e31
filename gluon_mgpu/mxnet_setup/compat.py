"""MXNet as the other modules use it: one name for each of the few things that 1.9 and 2 say differently.

Every module that computes takes MXNet from here, so that it is loaded once, well, and with NumPy
semantics (``npx.set_np()``).
"""
from __future__ import annotations

import ctypes
import functools
import math
from typing import TYPE_CHECKING

from . import runtime
from .installation import BUILDS

mx = runtime.load_mxnet()  # first: it says in one line what is missing

import numpy  # noqa: E402
from mxnet import autograd, gluon, init, np, npx  # noqa: E402

__all__ = ['MXNET_MAJOR', 'Context', 'HybridBlock', 'add', 'assign', 'autograd', 'cached_op', 'compute_capabilities',
           'empty_with_view', 'gluon', 'init', 'low_precision_type', 'mx', 'np', 'npx', 'num_outputs', 'seed',
           'trace_block', 'zero_grad']

MXNET_MAJOR = int(mx.__version__.split('.')[0])
if TYPE_CHECKING:
    from mxnet.context import Context
else:
    Context = type(mx.cpu())  # named Device in MXNet 2


if TYPE_CHECKING or MXNET_MAJOR >= 2:
    HybridBlock = gluon.HybridBlock
else:
    class HybridBlock(gluon.HybridBlock):
        """A block written as MXNet 2 wants it, ``forward(self, X)``, that MXNet 1.9 can hybridize too.

        MXNet 1.9 wants ``hybrid_forward(self, F, X)``, called with arrays or with symbols. A
        ``forward`` made of layers and operators alone does not need ``F`` and serves as either.
        """

        def __init_subclass__(cls, **kwargs):
            super().__init_subclass__(**kwargs)
            if 'forward' in vars(cls):
                cls.forward = _called_by_gluon_or_super(cls.forward)

        def hybrid_forward(self, F, *args):
            return type(self).forward.__wrapped__(self, *args)

    def _called_by_gluon_or_super(written):
        """Return a `forward` that starts Gluon's, which calls `written` back; ``super().forward(X)`` is just that."""
        @functools.wraps(written)
        def forward(self, *args):
            if type(self).forward is forward:
                return gluon.HybridBlock.forward(self, *args)
            return written(self, *args)
        return forward


def zero_grad(net: gluon.Block, devices: list) -> None:
    """Set the gradients of `net` on some of its devices to zero, in place; does not wait.

    They count as written by a backward pass, as Gluon's Trainer refuses others, or leaves them out of the update.
    """
    for param in net.collect_params().values() if devices else ():
        if param.grad_req != 'null':
            for device in devices:
                param.grad(device)[:] = 0
                param.data(device)._fresh_grad = True


def seed(number: int) -> None:
    """Seed MXNet's random stream on every device.

    Parameters
    ----------
    number : int
        Decides the random numbers from here on.
    """
    mx.random.seed(number)


def compute_capabilities() -> tuple:
    """The lowest and the highest compute capability that the installed MXNet has code for."""
    on_pypi, revived = BUILDS.values()
    return on_pypi if MXNET_MAJOR < 2 or mx.__version__.startswith('2.0.0b') else revived


def add(a, b):
    """a + b for arrays or symbols of one shape, by oneDNN where it can: in any precision, in its own layouts.

    ``a + b`` of NumPy's kind first lays out anew what oneDNN's convolutions have computed.
    """
    package = mx.sym if isinstance(a, mx.sym.Symbol) else mx.nd
    return package.elemwise_add(a.as_nd_ndarray(), b.as_nd_ndarray()).as_np_ndarray()


def low_precision_type(name: str):
    """MXNet's name for a floating-point type in a cast: NumPy has no bfloat16."""
    if name == 'bfloat16':
        from mxnet.contrib.amp.amp import bfloat16
        return bfloat16
    return name


def empty_with_view(shape: tuple, dtype) -> tuple:
    """A new array on ``cpu(0)`` and NumPy's view of its memory, to be filled before the array is used.

    It does not wait, as ``np.array(data)`` does: for all work that is queued on ``cpu(0)``. And the memory
    is MXNet's own: that of ``from_numpy`` is freed by Python, on a thread of the engine, for which a
    process that forks may wait for ever.

    Parameters
    ----------
    shape : tuple of int
        With no 0 in it.
    dtype : data-type
        The same for both, in the byte order of this machine.

    Returns
    -------
    array : np.ndarray
    view : numpy.ndarray
        Valid as long as the array.

    Raises
    ------
    ValueError
        If MXNet has no arrays of that dtype.
    """
    dtype = numpy.dtype(dtype).newbyteorder('=')
    try:
        array = np.empty(shape, dtype=dtype, ctx=mx.cpu(0))
    except (KeyError, TypeError):
        raise ValueError(f"dtype {dtype}: MXNet has no such arrays; convert it, for example with "
                         "array.astype('float32')") from None
    address = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    size = math.prod(shape) * dtype.itemsize
    memory = (ctypes.c_char * size).from_address(address.value)
    return array, numpy.frombuffer(memory, dtype).reshape(shape)


def trace_block(block: gluon.HybridBlock, args: tuple) -> tuple:
    """Trace a block, whose parameters are initialized, with arrays of the kind that it takes; does not wait.

    Shapes of parameters that are not known yet are, from here on.

    Returns
    -------
    graph : mx.sym.np._Symbol
        With one output.
    names : list of str
        Those of the variables in the graph that stand for `args`; parameters are named ``param.var().name``.

    Raises
    ------
    ValueError
        If the block returns several arrays, or does not use a parameter of unknown shape.
    """
    names = [f'data_{i}' for i in range(len(args))]
    symbols = [mx.sym.var(name).as_np_ndarray() for name in names]
    if MXNET_MAJOR < 2:
        graph = block(*symbols)
        try:
            for param in block.collect_params().values():
                param.list_data()
        except gluon.parameter.DeferredInitializationError:  # as Gluon does at the first call
            try:
                block.infer_shape(*args)
            except KeyError as unused:
                raise ValueError(f'{type(block).__name__} does not use its parameter {unused}, whose shape is '
                                 'therefore unknown: remove that layer, or give it in_units or in_channels') from None
            for param in block.collect_params().values():
                param._finish_deferred_init()
    else:
        from mxnet import _deferred_compute as deferred
        arrays = [a.detach() for a in args]
        deferred.set_variable(arrays, symbols)
        with deferred.context():
            result = block(*arrays)
        graph = result
        if not isinstance(result, (list, tuple)):
            graph = deferred.get_symbol([result], sym_cls=type(symbols[0]))
            deferred.clear([result])
    if isinstance(graph, (list, tuple)):
        raise ValueError(f'{type(block).__name__} returns {len(graph)} arrays: only a block that returns one '
                         'array can be hybridized here; use its own hybridize()')
    return graph, names


def num_outputs(block: gluon.HybridBlock, shape: tuple) -> int | None:
    """Return how many numbers a block returns for each row, None if that cannot be known yet; it stays as it is.

    Parameters
    ----------
    block : gluon.HybridBlock
        On MXNet 1.9 it need not be initialized.
    shape : tuple of int
        That of a batch.
    """
    try:
        if MXNET_MAJOR < 2:
            graph = block(mx.sym.var('data').as_np_ndarray())
            return graph.infer_shape_partial(data=shape)[1][0][-1]  # infer_shape would print its errors
        device = next(iter(block.collect_params().values())).list_ctx()[0]
        return block(np.zeros(shape, ctx=device)).shape[-1]
    except Exception:  # whatever is wrong with the block: training will say it
        return None


def assign(array: np.ndarray, values: numpy.ndarray) -> None:
    """Give an array, in place, values from the host.

    ``array[:] = values`` fails on MXNet 1.9 for weights of convolutions that were used: oneDNN keeps them in a layout
    of its own.
    """
    array[:] = np.array(values, dtype=array.dtype, ctx=array.ctx)


def cached_op(graph, names: list, params: list):
    """An operator that runs a whole graph of symbols with memory laid out once per device.

    Parameters
    ----------
    graph : mx.sym.np._Symbol
        With one output.
    names : list of str
        The graph's variables in the order in which the operator is to take them. Those that are not in the
        graph are taken and not used.
    params : list of str
        Which of them are the same arrays, with the same gradients, at every call on a device.

    Returns
    -------
    callable
        Takes one array per name, all on the same device, and returns an array there; does not wait.
    """
    inputs = graph.list_inputs()
    order = [names.index(name) for name in inputs]
    operator = mx.nd.CachedOp(graph, [
        ('static_alloc', True), ('static_shape', True),
        ('data_indices', [i for i, name in enumerate(inputs) if name not in params]),
        ('param_indices', [i for i, name in enumerate(inputs) if name in params])])
    if MXNET_MAJOR >= 2:
        return lambda *arrays: operator(*(arrays[i] for i in order), default_ctx=arrays[0].ctx)
    return lambda *arrays: operator(*(arrays[i] for i in order))
