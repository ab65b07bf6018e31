"""MXNet for all other modules, and functions for what differs between 1.9 and 2."""
import contextlib
import ctypes
import functools
import json
import math
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from . import runtime

mx = runtime.import_mxnet()  # first, because it reports missing software in one line

import numpy  # noqa: E402
from mxnet import autograd, gluon, init, lr_scheduler, np, npx  # noqa: E402, F401 (for other modules)
from mxnet.ndarray.ndarray import _new_alloc_handle  # noqa: E402, F401

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

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self._set_forward()

        def __setstate__(self, state):  # of a copy
            vars(self).update(state)
            self._set_forward()

        def _set_forward(self):
            # Gluon calls this `forward`, which calls `hybrid_forward`; ``super().forward`` is that of a class
            self.forward = functools.partial(gluon.HybridBlock.forward, self)

        def hybrid_forward(self, F, *args):
            return type(self).forward(self, *args)


def graph_from_json(content: dict) -> Any:
    """Return a graph, a symbol, from its content in MXNet's JSON format."""
    load = mx.sym.load_json if MXNET_MAJOR < 2 else mx.sym.fromjson
    return load(_readable(json.dumps(content, ensure_ascii=False)))  # MXNet cannot read escapes such as \u00fc


def graph_to_json(graph: Any) -> dict:
    """Return the content of a graph in MXNet's JSON format."""
    return json.loads(_readable(graph.tojson(remove_amp_cast=False)))


def _readable(graph: str) -> str:
    # Arguments of np.around and of np.sort and np.argsort that MXNet 2 writes but cannot read
    return graph.replace('"decimal":', '"decimals":').replace('"is_ascend_s":', '"is_ascend":')


def cached_op(graph: Any, flags: list) -> Callable:
    """Return an operator that runs a graph (a symbol) for arrays in the order of its inputs, all on one device."""
    operator = mx.nd.CachedOp(graph, flags)
    return operator if MXNET_MAJOR < 2 else lambda *arrays: operator(*arrays, default_ctx=arrays[0].ctx)


def children(block: gluon.Block) -> dict:
    """Return the layers that are direct children of a block, by name."""
    return {name: child() if isinstance(child, weakref.ref) else child for name, child in block._children.items()}


def layers_of(network: Any) -> list[gluon.Block]:
    """Return a block and all blocks in it; none for a function."""
    layers = [network] if isinstance(network, gluon.Block) else []
    for layer in layers:
        layers += children(layer).values()
    return layers


def running_statistics(network: Any) -> list[gluon.Parameter]:
    """Return the parameters of a block that its layers, not the Trainer, change in training, such as batch norm's."""
    # MXNet does not mark those of a SymbolBlock as not differentiable
    in_graphs = {name for layer in layers_of(network) if isinstance(layer, gluon.SymbolBlock)
                 for name in layer._cached_graph[1].list_auxiliary_states()}
    return [param for param in network.collect_params().values()
            if not param._differentiable or (in_graphs and param.var().name in in_graphs)]


def trainer_devices(trainer: gluon.Trainer) -> list:
    """Return the devices that a Trainer's parameters were on when it was made."""
    return trainer._contexts if MXNET_MAJOR < 2 else trainer._devices


def of_semantics(array: Any) -> Any:
    """Return an array or symbol as one of this thread's semantics: of ``mx.nd`` after ``npx.reset_np()``; no copy."""
    return array.as_np_ndarray() if mx.util.is_np_array() else array.as_nd_ndarray()


@contextlib.contextmanager
def nd_semantics() -> Iterator[None]:
    """Use the semantics of ``mx.nd`` in this thread during the block; MXNet 2 has only NumPy's."""
    if MXNET_MAJOR >= 2:
        yield
    else:
        with mx.util.np_array(False), mx.util.np_shape(False):
            yield


def add(a, b):
    """Return a + b for arrays or symbols of the same shape, computed by oneDNN if possible."""
    # The + of NumPy semantics would first convert the output of oneDNN's convolutions to another memory layout
    package = mx.sym if isinstance(a, mx.sym.Symbol) else mx.nd
    return of_semantics(package.elemwise_add(a.as_nd_ndarray(), b.as_nd_ndarray()))


def low_precision_type(name: str):
    """Return the dtype for a cast by its name; bfloat16 needs a special one, because NumPy has none."""
    if name == 'bfloat16':
        from mxnet.contrib.amp.amp import bfloat16
        return bfloat16
    return name


def make_array(make: Callable, *args, dtype: Any, **settings) -> Any:
    """Return an array from a function such as ``np.array``; raise ValueError if MXNet has no arrays of that dtype."""
    try:
        return make(*args, dtype=dtype, **settings)
    except (KeyError, TypeError):
        raise ValueError(f"dtype {dtype}: MXNet has no such arrays; convert it, for example with "
                         "array.astype('float32')") from None


def empty_with_view(shape: tuple, dtype) -> tuple:
    """Return a new array on ``cpu(0)`` and a NumPy view of its memory, to be filled before the array is used.

    Unlike ``np.array(data)``, it does not wait for the work queued on ``cpu(0)``. MXNet owns the memory: with
    ``from_numpy``, Python owns it and frees it on a thread of the engine, so a process that forks could hang.
    """
    dtype = numpy.dtype(dtype).newbyteorder('=')
    array = make_array(np.empty, shape, dtype=dtype, ctx=mx.cpu(0))
    if not (size := math.prod(shape) * dtype.itemsize):
        return array, numpy.empty(shape, dtype)
    address = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    memory = (ctypes.c_char * size).from_address(address.value)
    return array, numpy.frombuffer(memory, dtype).reshape(shape)


def zeros(shape: tuple, dtype: Any, ctx: Any = None) -> Any:
    """Return zeros for a network of the present semantics: an array of ``mx.nd`` after ``npx.reset_np()``."""
    return of_semantics(np.zeros(shape, dtype=dtype, ctx=ctx))


def fill(gradient: np.ndarray, number: float) -> None:
    """Set all elements of a gradient, which may be sparse or have the shape ()."""
    if gradient.stype != 'default' and not number:
        mx.nd.zeros_like(gradient, out=gradient)  # without rows, which the update would change by their momentum
        return
    gradient[() if gradient.stype == 'default' else slice(None)] = number


def assign(array: np.ndarray, values: numpy.ndarray) -> None:
    """Copy `values` from the host into an array, in place."""
    # ``array[:] = values`` fails on MXNet 1.9 for weights in a layout of oneDNN, and for the shape ()
    new = np.array(values, dtype=array.dtype, ctx=array.ctx)
    (new if isinstance(array, np.ndarray) else new.as_nd_ndarray()).copyto(array)  # mx.nd's, as in a SymbolBlock
