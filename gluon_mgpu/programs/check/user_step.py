"""A user's training step, with what the check changes in it."""
from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, cycle
from typing import Any

import numpy

from ...base.nested import refill
from ...base.program import reason
from ...mxnet_setup.compat import assign, fill, gluon, make_array, mx, np, npx
from ...parallel.workers import ThisProcess, Workers
from ...training.parameters import seed_all
from .contents import LAYERS, NEW_TRAINER, cast, find, older, set_in_graph


@dataclass
class Training:
    """The user's functions on some devices, always without dropout; ``replace(training)`` starts again."""

    make: Callable
    train_batch: Callable
    lists: Any  # of (X, y), which have the arrays of a batch
    devices: list
    workers: Workers
    dtype: str | None = None        # None: as `make` returns the parameters
    shapes: tuple = ()              # (name, shape) of Gluon's parameters, which may wait for a first batch
    copies: dict = field(default_factory=dict)  # {(name, shape): number} of arrays without gradients to compare
    plain_sgd: bool = False         # instead of a Trainer's optimizer
    on_kvstore: bool | None = None  # where Trainers update, instead of as `make` says
    networks: Callable | None = None  # gets [(name, block), ...], the hybridized ones, and may change them
    fixed_statistics: bool = False  # of batch norm
    zero_gradients: bool = False    # before each step
    seed: int = 0                   # of the steps
    job: Workers | None = None      # all workers, if `workers` is this one alone
    hung: list = field(default_factory=list)  # steps in forked processes, of all trainings of the check

    def on_one_device(self) -> Training:
        """Return the same training on the first device only."""
        return replace(self, devices=self.devices[:1], workers=ThisProcess(), job=self.job or self.workers)

    @cached_property
    def state(self) -> Any:
        """The result of `make`, changed as above."""
        gc.collect()  # frees earlier networks, because Gluon's blocks are in reference cycles
        self.workers.discard_errors()  # of earlier steps
        _seed(0)
        state = self.make(self.devices, self.workers)
        # By name, because `make` may return a list of networks, one for each device
        shapes = {name: cycle([shape for other, shape in self.shapes if other == name]) for name, _ in self.shapes}
        for name, param in find(state, gluon.Parameter):
            shape = next(shapes[name]) if name in shapes else None
            if param._deferred_init and shape:
                param.shape = shape
                param._finish_deferred_init()  # before the cast, because not all initializers can fill float64
        hybridized = [(name, block) for name, block in find(state, gluon.HybridBlock) if block._active]
        for _, value in find(state, object):
            if isinstance(value, LAYERS['dropout']):
                value._rate = 0
            elif isinstance(value, LAYERS['batchnorm']) and self.fixed_statistics:
                value._kwargs['use_global_stats'] = True
            elif isinstance(value, gluon.SymbolBlock):
                set_in_graph(value, 'dropout', p='0')
                if self.fixed_statistics:
                    set_in_graph(value, 'batchnorm', use_global_stats='True')
            elif isinstance(value, gluon.Trainer):
                self._change_trainer(value)
            cast(value, self.dtype)
        for _, block in hybridized:
            block._active = True  # MXNet 2 switches it off in a cast
        if self.networks:
            self.networks(hybridized)
        return state

    def _change_trainer(self, trainer: gluon.Trainer) -> None:
        if older(trainer) and trainer._kvstore:
            raise ValueError(f'{older(trainer)}, on which MXNet crashes: {NEW_TRAINER}')
        if self.plain_sgd:
            trainer._init_optimizer('sgd', {'learning_rate': 0.1})
        settings = trainer._kvstore_params
        if self.on_kvstore is not None:
            settings['update_on_kvstore'] = self.on_kvstore
        if settings['update_on_kvstore'] and len(trainer._updaters) == 1:
            settings['update_on_kvstore'] = None  # a single device has no store, and MXNet fails

    def step(self, batch: Sequence) -> list:
        """Take a step; return the values of the parameters on each device of all workers; blocks."""
        error, job = None, self.job or self.workers
        try:
            state = self.state
            if self.zero_gradients:
                for _, array in chain(*self.params()):
                    if array.grad is not None:
                        fill(array.grad, 0)
            _seed(self.seed)
            X, y = refill(self.lists, map(self._array, batch))
            self.train_batch(state, X, y, self.devices)
            npx.waitall()  # raises errors that the parameters do not show
        except Exception as caught:
            error = caught
        # Agree, because a worker with an error would not take part in the next step. If others still wait in an
        # exchange of this step, the job ends and prints `place`
        job.place = f'after {type(error).__name__}: {reason(error)}' if error else ''
        of_others = ', '.join(filter(None, job.allgather(job.place, 'the end of a step')))
        job.place = ''
        if error or of_others:
            raise error or ValueError(f'the step fails on another worker {of_others}')
        return self.values()

    def _array(self, data: numpy.ndarray) -> Any:
        dtype: Any = data.dtype
        if dtype.kind == 'f' and self.dtype:
            dtype = self.dtype
        elif dtype == 'float64' and not any(part.dtype in ('float64', numpy.float64) for _, part in find(
                self.state, (gluon.Parameter, mx.nd.NDArray))):
            dtype = 'float32'  # NumPy's default would fail on parameters with MXNet's
        return make_array((np if npx.is_np_array() else mx.nd).array, data, dtype=dtype)

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
        """Return [(name, array), ...] of the parameters on each device that has some, first those with gradients."""
        found: dict = {}
        seen: Counter = Counter()
        for name, array in find(self.state, mx.nd.NDArray):
            key = name, array.shape
            seen[key, array.ctx] += array.grad is None
            if array.grad is not None or seen[key, array.ctx] <= self.copies.get(key, 0):
                found.setdefault(array.ctx, []).append((name, array))
        on = {device: sorted(named, key=lambda pair: pair[1].grad is None) for device, named in found.items()
              if any(array.grad is not None for _, array in named)}
        if not on:
            raise ValueError(f'make returned {type(self.state).__name__} without parameters: return the network, the '
                             'Trainer or the arrays with gradients, also in lists, dicts or objects')
        for device in on:
            if device not in self.devices:
                raise ValueError(f'make puts parameters on {device}: use only the devices that it gets, {self.devices}')
        return [*on.values()]


def _seed(seed: int) -> None:
    seed_all(seed, 0)
    random.seed(seed)
