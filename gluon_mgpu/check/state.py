"""The parameters in whatever a training step needs, and steps that start from given values of them."""
from __future__ import annotations

import random
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from ..distributed.workers import Workers
from ..mxnet_setup.compat import assign, autograd, children, gluon, mx, np
from ..networks.hybridize import unwrapped
from ..parallel.flat import FlatParams
from ..training.parameters import by_name, seed_all


@dataclass(frozen=True)
class Setup:
    """The things that the runs of a check have in common."""

    make: Callable
    train_batch: Callable
    devices: list
    workers: Workers
    dtype: str | None = None  # None: as `make` returns the parameters
    off: tuple = ()           # kinds of layers to switch off
    plain: bool = False       # plain SGD instead of a Trainer's optimizer
    start: tuple = ()         # values of the parameters
    shapes: tuple = ()        # of Gluon's parameters, which may wait for a first batch


class State:
    """The result of `make` for one device or for all, with the parameters of `setup.start`."""

    def __init__(self, setup: Setup, one: bool = False):
        self.setup, self.devices = setup, setup.devices[:1] if one else setup.devices
        _seed()
        self.made = setup.make(self.devices, Workers() if one else setup.workers)
        values = [value for _, value in _walk(self.made)]
        self.has_trainer = any(isinstance(value, gluon.Trainer) for value in values)
        self.params = [value for value in values if isinstance(value, gluon.Parameter)]
        self.layers = [layer for value in values if isinstance(value, gluon.Block) for layer in _layers(value)]
        for i, param in enumerate(self.params):
            if param._deferred_init and setup.shapes:
                param.shape = setup.shapes[i % len(setup.shapes)]
                param._finish_deferred_init()  # before the cast, because not all initializers can fill float64
        for kind, _, layer in self.layers:
            if kind in setup.off:
                vars(layer).update({'_rate': 0} if kind == 'dropout' else
                                   {'_kwargs': {**layer._kwargs, 'use_global_stats': True}})
        for _, value in _walk(self.made):
            if setup.plain and isinstance(value, gluon.Trainer):
                value._init_optimizer('sgd', {'learning_rate': 0.1})
            if setup.dtype:
                _cast(value, setup.dtype)
        if setup.start:
            self.assign(setup.start)

    def step(self, X: numpy.ndarray, y: numpy.ndarray) -> list:
        """Take a step; return the values of the parameters on each device; blocks."""
        _seed()
        X, y = (np.array(a, dtype=(a.dtype.kind == 'f' and self.setup.dtype) or a.dtype) for a in (X, y))
        self.setup.train_batch(self.made, X, y, self.devices)
        return self.values()

    def values(self) -> list:
        """Return the values of the parameters on each device; blocks."""
        return [[array.asnumpy() for _, array in named] for named in self.copies().values()]

    def assign(self, values: Sequence) -> None:
        """Set the parameters on each device to these values."""
        for device, named in self.copies().items():
            if [array.shape for _, array in named] != [value.shape for value in values]:
                raise ValueError(f'make puts {len(named)} parameters on {device}, and {len(values)} on a single '
                                 'device: every device needs its own copy of all')
            for (_, array), value in zip(named, values):
                assign(array, value)

    def copies(self) -> dict:
        """Return [(name, array), ...] of the parameters on each device."""
        on: dict = {}
        for name, value in _walk(self.made):
            if isinstance(value, mx.nd.NDArray) and value.grad is not None:
                named = on.setdefault(value.ctx, [])
                named.append((name or f'parameter {len(named)}', value))
        if not on:
            raise ValueError(f'make returned {type(self.made).__name__} without parameters: return the network, the '
                             'Trainer or the arrays with gradients, also in lists, dicts or objects')
        return on


def _seed() -> None:
    seed_all(0, 0)
    random.seed(0)


def _walk(made: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) once for each value in networks, Trainers, lists, tuples, dicts and objects."""
    found, seen = [('', made)], set()
    for name, value in found:  # which grows
        value = unwrapped(value)
        if id(value) in seen or isinstance(value, (type, types.ModuleType)):
            continue
        seen.add(id(value))
        yield name, value
        if isinstance(value, gluon.Block):
            found += by_name(value).items()
        elif isinstance(value, gluon.Trainer):
            found += [(param.name, param) for param in value._params]
        elif isinstance(value, gluon.Parameter):
            found += [(name, array) for array in value._data or ()]
        else:
            items = value if isinstance(value, (list, tuple, dict)) else getattr(value, '__dict__', {})
            found += [('', item) for item in (items.values() if isinstance(items, dict) else items)]


def _layers(block: gluon.Block, name: str = '') -> list[tuple]:
    """Return (kind, name, layer) of the layers with which k devices differ from one."""
    kind = ('dropout' if isinstance(block, gluon.nn.Dropout) else
            'batch norm' if 'use_global_stats' in getattr(block, '_kwargs', ()) else '')
    return [*([(kind, name.rstrip('.') or 'the network', block)] if kind else []),
            *(layer for child, part in children(block).items() for layer in _layers(part, f'{name}{child}.'))]


def _cast(value: Any, dtype: str) -> None:
    """Change the dtype of parameters and arrays in place; gradients are written or added as before."""
    if isinstance(value, (gluon.Block, gluon.Parameter)):
        value.cast(dtype)  # a block's method also discards graphs traced before
    elif isinstance(value, FlatParams):
        copy = FlatParams([part.astype(dtype) for part in value], value.flat.ctx)
        vars(value).update(vars(copy))
        list.__init__(value, copy)
    elif isinstance(value, mx.nd.NDArray) and numpy.dtype(value.dtype).name in ('float16', 'float32'):
        copy = value.astype(dtype)
        if value.grad is not None:
            value.grad[:] = 1
            with autograd.record():
                total = value.sum()
            total.backward()
            copy.attach_grad('add' if value.grad.max() > 1 else 'write')  # MXNet has no function that tells
        value.handle, copy.handle = copy.handle, value.handle
