"""A user's training step, and the parameters in what it needs."""
from __future__ import annotations

import gc
import random
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, cycle
from operator import is_
from typing import Any

import numpy

from ..mxnet_setup.compat import assign, children, gluon, mx, np
from ..networks.hybridize import unwrapped
from ..parallel.workers import Workers
from ..training.parameters import by_name, seed_all

Dropout, BatchNorm = gluon.nn.Dropout, gluon.nn.basic_layers._BatchNorm
BLOCK_ATTRIBUTES = vars(gluon.HybridBlock()).keys()  # Gluon's own, of every block


@dataclass
class Training:
    """The user's functions on some devices, always without dropout; ``replace(training)`` starts again."""

    make: Callable
    train_batch: Callable
    devices: list
    workers: Workers
    dtype: str | None = None        # None: as `make` returns the parameters
    shapes: tuple = ()              # of Gluon's parameters, which may wait for a first batch
    plain_sgd: bool = False         # instead of a Trainer's optimizer
    fixed_statistics: bool = False  # of batch norm
    zero_gradients: bool = False    # before each step
    seed: int = 0                   # of the steps

    def on_one_device(self) -> Training:
        """Return the same training on the first device only."""
        return replace(self, devices=self.devices[:1], workers=Workers())

    @cached_property
    def state(self) -> Any:
        """The result of `make`, changed as above."""
        gc.collect()  # frees earlier networks, because Gluon's blocks are in reference cycles
        _seed(0)
        state = self.make(self.devices, self.workers)
        for (_, param), shape in zip(find(state, gluon.Parameter), cycle(self.shapes)):
            if param._deferred_init:
                param.shape = shape
                param._finish_deferred_init()  # before the cast, because not all initializers can fill float64
        for _, value in find(state, object):
            if isinstance(value, Dropout):
                value._rate = 0
            elif isinstance(value, BatchNorm) and self.fixed_statistics:
                value._kwargs['use_global_stats'] = True
            elif isinstance(value, gluon.Trainer) and self.plain_sgd:
                value._init_optimizer('sgd', {'learning_rate': 0.1})
            _cast(value, self.dtype)
        return state

    def step(self, X: numpy.ndarray, y: numpy.ndarray) -> list:
        """Take a step; return the values of the parameters on each device of all workers; blocks."""
        state = self.state
        if self.zero_gradients:
            for _, array in chain(*self.params()):
                array.grad[()] = 0
        _seed(self.seed)
        X, y = (np.array(a, dtype=(a.dtype.kind == 'f' and self.dtype) or a.dtype) for a in (X, y))
        self.train_batch(state, X, y, self.devices)
        return self.values()

    def values(self) -> list:
        """Return the values of the parameters on each device of all workers; blocks."""
        values = [[array.asnumpy() for _, array in on_device] for on_device in self.params()]
        return [*chain(*self.workers.allgather(values))]

    def assign(self, values: Sequence) -> None:
        """Set the parameters on each device to these values."""
        for on_device in self.params():
            for (_, array), value in zip(on_device, values):
                assign(array, value)

    def params(self) -> list:
        """Return [(name, array), ...] of the parameters on each device that has some."""
        on: dict = {}
        for name, array in find(self.state, mx.nd.NDArray):
            if array.grad is not None:
                named = on.setdefault(array.ctx, [])
                named.append((name or f'parameter {len(named)}', array))
        if not on:
            raise ValueError(f'make returned {type(self.state).__name__} without parameters: return the network, the '
                             'Trainer or the arrays with gradients, also in lists, dicts or objects')
        num_params = len(next(iter(on.values())))
        for device, named in on.items():
            if device not in self.devices:
                raise ValueError(f'make puts parameters on {device}: use only the devices that it gets, {self.devices}')
            if len(named) != num_params:
                raise ValueError(f'make puts {len(named)} parameters on {device}, and {num_params} on the first '
                                 'device: every device needs its own copy of all')
        return [*on.values()]

    def gluon_params(self) -> list:
        """Return Gluon's parameters."""
        return [param for _, param in find(self.state, gluon.Parameter)]


def prepare(several: Training, batch: tuple) -> tuple[Training, list[str]]:
    """Find the shapes of the parameters, and choose float64 if a step on this batch can compute in it.

    MXNet 1.9's recurrent layers of several layers cannot: their gradients in float64 are wrong. Also returns the names
    of the layers with dropout, and of those with batch norm.
    """
    one = several.on_one_device()
    if any(param._deferred_init for param in one.gluon_params()):
        one.step(*batch)
    several = replace(several, shapes=tuple(param.shape for param in one.gluon_params()))
    layers = [', '.join(name or 'the network' for name, _ in find(one.state, kind)) for kind in (Dropout, BatchNorm)]
    recurrent = any(layer._num_layers > 1 for _, layer in find(one.state, gluon.rnn.rnn_layer._RNNLayer))
    trial = replace(several, dtype=None if recurrent else 'float64')
    again = trial.on_one_device()
    if any(map(is_, one.gluon_params(), again.gluon_params())):
        raise ValueError('make returns the same network at each call: create a new one in it')
    try:
        again.step(*batch)  # first, because errors of several devices are not all raised at once
        trial.step(*batch)
    except Exception:  # the step cannot compute in float64, or not at all
        return several, layers
    return replace(trial), layers  # without the state, to free its memory


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


def _cast(value: Any, dtype: str | None) -> None:
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
        if value.grad is not None:
            value.grad[()] = 1
            value.backward()
            copy.attach_grad('add' if value.grad.max() > 1 else 'write')  # MXNet has no function for this
        value.handle, copy.handle = copy.handle, value.handle


def _seed(seed: int) -> None:
    seed_all(seed, 0)
    random.seed(seed)
