"""Tracing: turn a block or a function into a graph of symbols."""
import contextlib
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

from ..base.nested import leaves, refill
from ..base.program import reason
from ..mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, layers_of, mx, np, npx
from .graph_operators import Operator, build, operators_of

UNKNOWN = object()  # instead of an argument of `trace_block`: an array of any shape


@contextlib.contextmanager
def explain_errors(name: str) -> Iterator[None]:
    """Raise ValueError, with the `name` of a network, if tracing it fails: symbols cannot do all that arrays can."""
    try:
        yield
    except (AssertionError, AttributeError, LookupError, NotImplementedError, TypeError, mx.MXNetError) as error:
        advice = (f'{name} cannot be traced ({reason(error)}): pass inputs that fit, and write it so that MXNet can '
                  'hybridize it')
        if 'legacy' in str(error):  # MXNet, about an array or symbol that an operator does not accept
            advice = (f'{name} mixes mx.np and mx.nd: rewrite it with mx.np; or, in your own training loop, call '
                      'npx.reset_np() before you create it, and pass X.as_nd_ndarray()')
        raise ValueError(advice) from error


def _refuse_own_gradients(name: str, function: Any) -> None:
    """Raise ValueError if a function to be traced for training itself calls an ``autograd.Function`` by its name."""
    if not autograd.is_recording() or not isinstance(function, types.FunctionType):
        return
    used = inspect.getclosurevars(function)
    for other, value in {**used.globals, **used.nonlocals}.items():
        if isinstance(value, type) and issubclass(value, autograd.Function):  # MXNet would crash
            raise ValueError(f'{name} calls {other}, an autograd.Function, whose gradient MXNet cannot trace: call it '
                             'outside')


def trace_block(block: gluon.HybridBlock, args: tuple) -> tuple[Any, list[str], Any, dict[str, gluon.Parameter]]:
    """Return the graph of an initialized block, its variables for `args`, the lists of its result, and its parameters.

    The graph, a symbol, is that of the present mode, for arrays of ``mx.np`` or ``mx.nd`` as in `args`. The lists have
    True instead of each array. Where an argument is `UNKNOWN`, the shapes of all parameters must be known.
    """
    # Call the block with symbols, or on MXNet 2 with arrays while it records; then find its parameters in the graph
    kind, symbols = type(block).__name__, variables_for(args, 'data')
    if any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers_of(block)):
        raise ValueError(f'{kind} cannot be traced (it has forward hooks, which its graph would leave out): detach '
                         'them')
    for layer in layers_of(block):
        for method in ('forward', 'hybrid_forward'):
            _refuse_own_gradients(type(layer).__name__, getattr(type(layer), method, None))
    names = [symbol.name for symbol in leaves(symbols)]
    with explain_errors(kind):
        if MXNET_MAJOR < 2:
            result = _trace_mxnet1(block, args, symbols)
            graph = graph_of(result)
        else:
            graph, result = trace_deferred(block, args, symbols)
        inputs = set(graph.list_inputs())
        params = {name: param for param in block.collect_params().values() if (name := param.var().name) in inputs}
        if unknown := inputs - params.keys() - set(names):
            raise ValueError(f'{kind} uses {sorted(unknown)[0]!r}, which is not among its parameters: make each layer '
                             'an attribute, or add it to a HybridSequential')
        if not any(arg is UNKNOWN for arg in args):
            _check_shapes(graph, names, leaves(args))
    trained = {name for name, param in params.items() if param.grad_req != 'null'}
    return _corrected(graph, trained), names, refill(result, repeat(True)), params


def _trace_mxnet1(block, args, symbols):
    # MXNet cannot call it with symbols of mx.np, and its parameters may have the names of other layers' parameters
    if any(isinstance(layer, gluon.SymbolBlock) for layer in layers_of(block)):
        raise NotImplementedError('it is or has a SymbolBlock')
    result = block(*symbols)
    deferred = [param for param in block.collect_params().values() if param._deferred_init]
    if deferred:  # Gluon does the same at the first call
        block.infer_shape(*args)  # KeyError if a layer that is not used has no shape
    for param in deferred:
        param._finish_deferred_init()
    return result


def trace_deferred(block: Callable, args: Sequence, symbols: Sequence) -> tuple[Any, Any]:
    """Trace `block` with MXNet 2's deferred compute; return the graph, whose inputs are `symbols`, and its result."""
    from mxnet import _deferred_compute as deferred
    arrays, variables = [array.detach() for array in leaves(args)], leaves(symbols)
    deferred.set_variable(arrays, variables)
    with autograd.pause(train_mode=autograd.is_training()), deferred.context():  # which cannot record
        result = block(*refill(args, iter(arrays)))
    graph = deferred.get_symbol(leaves(result), sym_cls=type(variables[0]))
    deferred.clear(leaves(result))
    return graph, result


def trace_function(function: Callable, args) -> tuple[Any, list[str], Any]:
    """Return the graph of a function, the names of all arrays in `args`, and the lists of its result."""
    _refuse_own_gradients(function.__name__, function)
    symbolic_globals = {name: mx.sym.np if value is np else mx.sym.npx if value is npx else value
                        for name, value in function.__globals__.items()}
    symbolic = types.FunctionType(function.__code__, symbolic_globals, function.__name__,
                                  function.__defaults__, function.__closure__)
    symbolic.__kwdefaults__ = function.__kwdefaults__
    symbols = variables_for(args)
    if not all(map(is_legacy, leaves(args))):  # parameters of mx.np, possibly with shards of mx.nd
        symbols = refill(symbols, (symbol.as_np_ndarray() for symbol in leaves(symbols)))
    names = [symbol.name for symbol in leaves(symbols)]
    with explain_errors(function.__name__):
        result = symbolic(*symbols)
        graph = _corrected(graph_of(result), set())
        if unknown := {*graph.list_inputs()} - {*names}:
            raise ValueError(f'{function.__name__} uses {min(unknown)!r}, which is not among its arguments: make it a '
                             'HybridBlock whose layers are attributes')
        _check_shapes(graph, names, leaves(args))
    return graph, names, refill(result, repeat(True))


def is_legacy(array: Any) -> bool:
    """Return whether this is an array of ``mx.nd``."""
    return isinstance(array, mx.nd.NDArray) and not isinstance(array, np.ndarray)


def graph_of(result: Any) -> Any:
    """Return the graph of the symbols in nested lists."""
    symbols = leaves(result)
    return mx.sym.Group(symbols, type(symbols[0]))


def variables_for(values: Any, *place: Any) -> Any:
    """Return a variable for each array in nested lists and tuples, named by its place in them, such as ``'1_0'``."""
    if values is None:
        return None
    if not isinstance(values, (list, tuple)):
        variable = mx.sym.var('_'.join(map(str, place)))
        return variable if is_legacy(values) else variable.as_np_ndarray()
    nested = [variables_for(value, *place, i) for i, value in enumerate(values)]
    return refill(values, iter(leaves(nested)))


def _check_shapes(graph: Any, names: list[str], arrays: Sequence) -> None:
    """Raise MXNet's error now, instead of at the first call, if operators do not work for the shapes of the arrays."""
    shapes = {name: array.shape for name, array in zip(names, arrays)}
    graph.infer_shape_partial(**{name: shapes[name] for name in graph.list_inputs() if name in shapes})


def _corrected(graph: Any, trained: set[str]) -> Any:
    """Return a graph that computes the same as its operators one by one; the inputs `trained` get gradients."""
    operators, outputs = operators_of(graph)
    changed, trained = [], set(trained)
    for operator in operators:
        node, inputs, results = operator
        if node['op'] == 'amp_cast' and inputs[0] in trained:
            trained.add(results[0])
        # Without a gradient of the weight, MXNet's FullyConnected leaves that of the bias as it was in memory
        if operator.kind == 'fullyconnected' and len(inputs) == 3 and inputs[1] not in trained:
            *inputs, bias = inputs
            product = f'{results[0]}_without_bias'
            changed.append(Operator({**node, 'attrs': {**node['attrs'], 'no_bias': 'True'}}, inputs, {0: product}))
            node, inputs = {'op': '_npi_add', 'name': f"{node['name']}_with_bias"}, [product, bias]
        changed.append(Operator(node, inputs, results))
    return build(changed, outputs, type(graph))
