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
    if isinstance(value, gluon.Block):
        own = {key: part for key, part in vars(value).items() if key not in BLOCK_ATTRIBUTES}
        inside = [(f'{name}.{key}'.strip('.'), part)
                  for key, part in {**by_name(value), **children(value), **own}.items()]
    elif isinstance(value, gluon.Parameter):
        inside = [(name, array) for array in value._data or ()]
    elif isinstance(value, gluon.Trainer):
        inside = [(param.name, param) for param in value._params]
    else:
        items = value if isinstance(value, (list, tuple, dict)) else getattr(value, '__dict__', {})
        inside = [('', item) for item in (items.values() if isinstance(items, dict) else items)]
    for name, part in inside:
        yield from find(part, kind, name, seen)


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
