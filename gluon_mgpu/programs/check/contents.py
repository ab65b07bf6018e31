"""Networks, Trainers and arrays in what `make` returns."""
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import numpy

from ...mxnet_setup.compat import children, fill, gluon, mx, running_statistics
from ...networks.graph_operators import build, operators_of
from ...networks.static_shapes import StaticSequential
from ...training.parameters import parameters_by_name, plain

ATOMS = {str, bytes, int, float, bool, type(None), type, ModuleType, numpy.ndarray}
CONTAINERS = list, tuple, deque, dict
OF_PARAMETERS = gluon.Trainer, getattr(gluon, 'ParameterDict', gluon.Trainer)  # MXNet 2 has a dict instead
BLOCK_ATTRIBUTES = vars(StaticSequential()).keys()  # Gluon's own, of every block, and ours
LAYERS = {  # with the settings that switch them off in a graph
    'dropout': (gluon.nn.Dropout, {'p': '0'}),
    'batchnorm': (gluon.nn.basic_layers._BatchNorm, {'use_global_stats': 'True'}),
}


def find_all(value: Any, kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) once for each value of a kind, in networks, Trainers, containers and attributes.

    The attributes are those of `value`, or of objects in containers; not those of attributes.
    """
    seen: set = set()
    left = deque([('', value, False)])  # a stack, so that what is in a value comes before its neighbors
    while left:
        path, value, is_attribute = left.pop()
        value = plain(value)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, kind):
            yield path, value
        if isinstance(value, OF_PARAMETERS):
            # At its bottom, because networks have better names; without MXNet's counters, which go on at each call
            params = value.values() if hasattr(value, 'values') else value._params
            left.extendleft((re.sub(r'\d', '', param.name), param, True) for param in params)
            continue
        inside = is_attribute or not isinstance(value, CONTAINERS)
        parts = [(f'{path}.{name}'.strip('.'), part, inside) for name, part in _parts(value, is_attribute)
                 if type(part) not in ATOMS]
        left.extend(reversed(parts))


def _parts(value: Any, is_attribute: bool) -> Iterable[tuple[Any, Any]]:
    """Return the names and values in a value."""
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, gluon.Parameter):
        value = value._data or []
    if isinstance(value, CONTAINERS):
        return [('', part) for part in value]
    if isinstance(value, gluon.Block):
        own = {name: part for name, part in vars(value).items() if name not in BLOCK_ATTRIBUTES}
        return {**parameters_by_name(value), **children(value), **own}.items()
    if is_attribute:
        return []
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, '__slots__', ())]
    return [(name, getattr(value, name)) for name in [*getattr(value, '__dict__', ()), *slots] if hasattr(value, name)]


def place(path: str, array: Any) -> tuple[str, tuple]:
    """Return what an array has in common with those of other devices, as in ``ema0``, ``ema1`` or a dict by device."""
    return re.sub(r'\d', '', path.partition('.')[0]), array.shape


def arrays_by_device(state: Any) -> list[tuple[list, list]]:
    """Return the paths and arrays with gradients, and others except running statistics, on each device with gradients.
    """
    params = [param for _, param in find_all(state, gluon.Parameter) if not param._differentiable]
    params += [param for _, block in find_all(state, gluon.SymbolBlock) for param in running_statistics(block)]
    statistics = {id(array) for param in params for array in param._data or ()}
    on: dict = {}
    for path, array in find_all(state, mx.nd.NDArray):
        if id(array) not in statistics:
            on.setdefault(array.ctx, ([], []))[array.grad is None].append((path, array))
    return [pair for pair in on.values() if pair[0]]


def count_copies(state: Any) -> list[Counter]:
    """Count arrays without gradients that are shaped like a parameter, such as a moving average, on each device."""
    counts = []
    for params, others in arrays_by_device(state):
        shapes = {array.shape for _, array in params}
        counts.append(Counter(place(path, array) for path, array in others if array.shape in shapes))
    return counts


def cast(array: Any, dtype: str) -> None:
    """Change the dtype of an array of real numbers, and of its gradient, in place."""
    if numpy.dtype(array.dtype).name not in ('float16', 'float32'):
        return
    copy = array.astype(dtype)
    if array.grad is not None:
        if array.grad.stype == 'default':
            copy.attach_grad(_grad_req(array))
        else:
            copy.attach_grad(stype=array.grad.stype)  # MXNet does not add sparse gradients
    array.handle, copy.handle = copy.handle, array.handle


def _grad_req(array: Any) -> str:
    """Return 'add' or 'write', for which MXNet has no function. Changes the gradient."""
    fill(array.grad, 1)
    array.backward()  # writes or adds 1
    return 'add' if array.grad.max() > 1 else 'write'


def has_layer(block: gluon.Block, kind: str) -> bool:
    """Return whether a block is a layer of this kind, ``'dropout'`` or ``'batchnorm'``, or the graph of one with it."""
    if isinstance(block, gluon.SymbolBlock):
        return any(operator.kind == kind for operator in operators_of(block._cached_graph[1])[0])
    return isinstance(block, LAYERS[kind][0])


def switch_off(block: gluon.Block, kind: str) -> None:
    """Let dropout keep all numbers, or batch norm use its running statistics, if a block `has_layer`."""
    if not has_layer(block, kind):
        return
    if isinstance(block, gluon.SymbolBlock):
        inputs, graph = block._cached_graph
        operators, outputs = operators_of(graph)
        changed = [operator._replace(node={
            **operator.node, 'attrs': {**operator.node.get('attrs', {}), **LAYERS[kind][1]}})
            if operator.kind == kind else operator for operator in operators]
        block._cached_graph = inputs, build(changed, outputs, type(graph))
    elif kind == 'dropout':
        block._rate = 0
    else:
        block._kwargs['use_global_stats'] = True

