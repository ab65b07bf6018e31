"""Networks, Trainers and parameters in what `make` returns."""
from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy

from ...mxnet_setup.compat import children, fill, gluon, mx, running_statistics
from ...networks.graph_operators import build, operators_of
from ...networks.static_shapes import StaticSequential
from ...training.parameters import by_name, plain

PLAIN_CASTS = gluon.Block.cast, gluon.HybridBlock.cast
NEW_TRAINER = 'make a new Trainer after reset_ctx or another initialize'
LAYERS = {'dropout': gluon.nn.Dropout, 'batchnorm': gluon.nn.basic_layers._BatchNorm}
BLOCK_ATTRIBUTES = vars(StaticSequential()).keys()  # Gluon's own, of every block, and ours
CALLED_ONCE = tuple(  # MXNet 2 has no LBSGD
    getattr(mx.optimizer, name) for name in ('LARS', 'LBSGD', 'Nadam', 'SGLD') if hasattr(mx.optimizer, name))
DRIFTS = ('counts its calls or draws random numbers, and with update_on_kvstore=False, each device calls it, so they '
          'drift apart',
          'leave update_on_kvstore out, so that the key-value store updates once; or take another optimizer')


def find(value: Any, kind: Any, name: str = '', seen: set | None = None) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) once for each value of a kind in networks, Trainers, lists, tuples, dicts and objects."""
    value, seen = plain(value), set() if seen is None else seen
    if id(value) in seen or isinstance(value, (type, types.ModuleType)):
        return
    seen.add(id(value))
    if isinstance(value, kind):
        yield name, value
    if isinstance(value, gluon.Parameter):
        inside = [(name, array) for array in value._data or ()]
    elif isinstance(value, gluon.Trainer):
        inside = [(param.name, param) for param in value._params]
    elif isinstance(value, (list, tuple)):
        inside = [(name, item) for item in value]
    else:
        parts = value if isinstance(value, dict) else _attributes(value)
        if isinstance(value, gluon.Block):
            own = {key: part for key, part in parts.items() if key not in BLOCK_ATTRIBUTES}
            parts = {**by_name(value), **children(value), **own}
        inside = [(f'{name}.{key}'.strip('.'), part) for key, part in parts.items()]
    for name, part in inside:
        yield from find(part, kind, name, seen)


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, also those in slots."""
    slots = [name for kind in type(value).__mro__ for name in vars(kind).get('__slots__', ())]
    return {**getattr(value, '__dict__', {}), **{name: getattr(value, name) for name in slots if hasattr(value, name)}}


def count_copies(state: Any) -> list[Counter]:
    """Count arrays without gradients that are shaped like a parameter, such as a moving average, on each device."""
    params = [param for _, param in find(state, gluon.Parameter) if not param._differentiable]
    params += [param for _, block in find(state, gluon.SymbolBlock) for param in running_statistics(block)]
    statistics = {id(array) for param in params for array in param._data or ()}
    arrays = [(name, array) for name, array in find(state, mx.nd.NDArray)
              if id(array) not in statistics and numpy.dtype(array.dtype).name != 'bool']  # which has no difference
    shapes = {(array.ctx, array.shape) for _, array in arrays if array.grad is not None}
    return [Counter((name, array.shape) for name, array in arrays
                    if array.ctx == device and array.grad is None and (device, array.shape) in shapes)
            for device in {device for device, _ in shapes}]


def cast(value: Any, dtype: str | None) -> None:
    """Change the dtype of parameters and arrays in place, unless it is None; discard graphs that `make` has traced."""
    if isinstance(value, gluon.HybridBlock):
        value._clear_cached_op()
    if isinstance(value, gluon.Parameter):
        value.cast(dtype or value.dtype)  # into new arrays
    elif dtype and isinstance(value, gluon.Block) and type(value).cast not in PLAIN_CASTS:
        value.cast(dtype)  # the others cast what is in them, and `find` yields that as well
    elif dtype and isinstance(value, mx.nd.NDArray) and numpy.dtype(value.dtype).name in ('float16', 'float32'):
        copy = value.astype(dtype)
        if value.grad is not None and value.grad.stype != 'default':
            copy.attach_grad(stype=value.grad.stype)  # MXNet does not add sparse gradients
        elif value.grad is not None:
            fill(value.grad, 1)
            value.backward()
            copy.attach_grad('add' if value.grad.max() > 1 else 'write')  # MXNet has no function for this
        value.handle, copy.handle = copy.handle, value.handle


def has_layer(block: gluon.Block, kind: str) -> bool:
    """Return whether a block is a layer of this kind, ``'dropout'`` or ``'batchnorm'``, or the graph of one with it."""
    return isinstance(block, LAYERS[kind]) or (isinstance(block, gluon.SymbolBlock) and any(
        operator.kind == kind for operator in operators_of(block._cached_graph[1])[0]))


def set_in_graph(block: gluon.SymbolBlock, kind: str, **settings: str) -> None:
    """Change settings of all operators of a kind in the graph of a block."""
    inputs, graph = block._cached_graph
    operators, outputs = operators_of(graph)
    changed = [operator._replace(node={**operator.node, 'attrs': {**operator.node.get('attrs', {}), **settings}})
               if operator.kind == kind else operator for operator in operators]
    block._cached_graph = inputs, build(changed, outputs, type(graph))


def drifting(state: Any) -> str:
    """Return the name of an optimizer of MXNet's, or of a subclass, that each device calls but should not, or ''."""
    return next((type(trainer.optimizer).__name__ for _, trainer in find(state, gluon.Trainer)
                 if isinstance(trainer.optimizer, CALLED_ONCE)
                 and trainer._kvstore_params['update_on_kvstore'] is False), '')


def older(trainer: gluon.Trainer) -> str:
    """Return '' unless a Trainer was made for fewer devices than its parameters are on; it skips the others."""
    made_for, on = len(trainer._updaters), max((len(param.list_ctx()) for param in trainer._params), default=0)
    devices = '1 device' if made_for == 1 else f'{made_for} devices'
    return f'the Trainer was made for {devices}, and its parameters are on {on}' if made_for < on else ''


def is_gluons(block: gluon.Block) -> bool:
    """Return whether the code of a block is MXNet's."""
    return type(block).__module__.startswith('mxnet.')


class Networks:
    """The hybridized blocks of the last training that was started, changed by a function."""

    def __init__(self, change: Callable):
        self._change = change
        self.blocks: list = []    # (name, block)
        self._before: dict = {}   # attributes before the first step

    def __call__(self, blocks: list) -> None:
        self._change(blocks)
        self.blocks = blocks
        self._before = self._attributes()

    def changed(self) -> list[str]:
        """Return the names of the attributes that steps have changed."""
        now = self._attributes()
        return [name for name, value in self._before.items() if now.get(name) != value]

    def differing(self, other: Networks) -> dict[str, tuple]:
        """Return attributes that differ from those of the same blocks in another training, with both values."""
        values, others = self._attributes(), other._attributes()
        return {name: (values.get(name), value) for name, value in others.items() if values.get(name) != value}

    def _attributes(self) -> dict[str, Any]:
        return {f'{name}.{key}'.strip('.'): _summary(value) for name, block in self.blocks if not is_gluons(block)
                for key, value in vars(block).items() if key not in BLOCK_ATTRIBUTES}


def _summary(value: Any) -> Any:
    """Return what can be compared with the attribute of another network: numbers, text, lists; else the type."""
    if isinstance(value, (int, float, str, numpy.number, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return [*map(_summary, value)]
    if isinstance(value, dict):
        return {key: _summary(part) for key, part in value.items()}
    return type(value).__name__
