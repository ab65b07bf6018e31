"""Networks, Trainers and parameters in what `make` returns."""
from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import numpy

from ..mxnet_setup.compat import children, fill, gluon, mx
from ..networks.hybridize import unwrapped
from ..training.parameters import by_name

NEW_TRAINER = 'make a new Trainer after reset_ctx or another initialize'
BLOCK_ATTRIBUTES = vars(gluon.HybridBlock()).keys()  # Gluon's own, of every block


def find(value: Any, kind: Any, name: str = '', seen: set | None = None) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) once for each value of a kind in networks, Trainers, lists, tuples, dicts and objects."""
    value, seen = unwrapped(value), set() if seen is None else seen
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
        parts = value if isinstance(value, dict) else getattr(value, '__dict__', {})
        if isinstance(value, gluon.Block):
            own = {key: part for key, part in parts.items() if key not in BLOCK_ATTRIBUTES}
            parts = {**by_name(value), **children(value), **own}
        inside = [(f'{name}.{key}'.strip('.'), part) for key, part in parts.items()]
    for name, part in inside:
        yield from find(part, kind, name, seen)


def parameters(state: Any, devices: list) -> tuple[dict, dict]:
    """Return {device: [(name, array), ...]} of parameters with gradients, and the same of copies by name and shape.

    Copies, such as a target network, have no gradients. They are Gluon's parameters except running statistics, and
    arrays with the shape of a parameter.
    """
    on: dict = {}
    copies: dict = {}
    shapes: set = set()
    statistics: set = set()
    for name, value in find(state, (gluon.Parameter, mx.nd.NDArray)):
        if isinstance(value, gluon.Parameter):
            shapes.update(array.shape for array in value._data or ())
            statistics.update(id(array) for array in value._data or () if not value._differentiable)
        elif value.grad is not None:
            on.setdefault(value.ctx, []).append((name, value))
            shapes.add(value.shape)
        elif id(value) not in statistics and numpy.dtype(value.dtype).name != 'bool':  # which has no difference
            copies.setdefault((name, value.shape), {}).setdefault(value.ctx, []).append((name, value))
    if not on:
        raise ValueError(f'make returned {type(state).__name__} without parameters: return the network, the Trainer or '
                         'the arrays with gradients, also in lists, dicts or objects')
    num_params = len(next(iter(on.values())))
    for device, named in on.items():
        if device not in devices:
            raise ValueError(f'make puts parameters on {device}: use only the devices that it gets, {devices}')
        if len(named) != num_params:
            raise ValueError(f'make puts {len(named)} parameters on {device}, and {num_params} on the first device: '
                             'every device needs its own copy of all')
    return on, {key: found for key, found in copies.items() if key[1] in shapes}


def cast(value: Any, dtype: str | None) -> None:
    """Change the dtype of parameters and arrays in place, and discard graphs that `make` has traced.

    Gradients are written or added as before. If `dtype` is None, all dtypes stay.
    """
    if isinstance(value, gluon.HybridBlock):
        value._clear_cached_op()
    if isinstance(value, gluon.Parameter):
        value.cast(dtype or value.dtype)  # into new arrays, so that `hybridized` traces its network again
    elif dtype is None:
        pass
    elif isinstance(value, gluon.Block):
        value.cast(dtype)
    elif isinstance(value, mx.nd.NDArray) and numpy.dtype(value.dtype).name in ('float16', 'float32'):
        copy = value.astype(dtype)
        if value.grad is not None and value.grad.stype != 'default':
            copy.attach_grad(stype=value.grad.stype)  # MXNet does not add sparse gradients
        elif value.grad is not None:
            fill(value.grad, 1)
            value.backward()
            copy.attach_grad('add' if value.grad.max() > 1 else 'write')  # MXNet has no function for this
        value.handle, copy.handle = copy.handle, value.handle


def older(trainer: gluon.Trainer) -> str:
    """Return '' unless a Trainer was made for fewer devices than its parameters are on; it skips the others."""
    made_for, on = len(trainer._updaters), max((len(param.list_ctx()) for param in trainer._params), default=0)
    devices = '1 device' if made_for == 1 else f'{made_for} devices'
    return f'the Trainer was made for {devices}, and its parameters are on {on}' if made_for < on else ''
