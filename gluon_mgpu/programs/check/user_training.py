"""A user's training on some devices, with what the check changes in it."""
import gc
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, cycle
from typing import Any

import numpy

from ...base.nested import refill
from ...base.program import clear_engine_errors, reason, warn
from ...mxnet_setup.compat import assign, fill, gluon, make_array, mx, np, npx
from ...parallel.workers import Workers
from ...training.seeds import seed_all
from .contents import arrays_by_device, cast, find_all, place, switch_off


@dataclass
class Training:
    """The user's functions on some devices, always without dropout; ``replace(training)`` starts again."""

    make: Callable
    train_batch: Callable
    lists: Any  # of (X, y), which have the arrays of a batch
    devices: list
    job: Workers        # all workers
    workers: Workers    # those that train: all, or this one alone
    dtype: str | None = None        # None: as `make` returns the parameters
    widest: str = 'float32'         # of X and y, unless there is a dtype; not NumPy's default, unlike MXNet's
    shapes: dict = field(default_factory=dict)  # {path: shapes} of Gluon's parameters, which may wait for a first batch
    copies: dict = field(default_factory=dict)  # {place: number} of arrays without gradients to compare, on a device
    constants: dict = field(default_factory=dict)  # {id: array} of those that `make` returns at each call
    plain_sgd: bool = False         # instead of a Trainer's optimizer
    switched_off: tuple = ('dropout',)  # kinds of layers
    zero_gradients: bool = False    # before each step
    seed: int = 0                   # of the steps

    def on_one_device(self) -> 'Training':
        """Return the same training on the first device only."""
        return replace(self, devices=self.devices[:1], workers=Workers())

    @cached_property
    def state(self) -> Any:
        """The result of `make`, changed as above."""
        gc.collect()  # frees earlier networks, because Gluon's blocks are in reference cycles
        if self.workers.size == 1:  # otherwise this could wait for another worker
            clear_engine_errors()  # of earlier steps
        seed_all(0, 0)
        state = self.make(self.devices, self.workers)
        self._create_deferred(state)
        hybridized = [block for _, block in find_all(state, gluon.HybridBlock) if block._active]
        for _, block in find_all(state, gluon.Block):
            for kind in self.switched_off:
                switch_off(block, kind)
        for _, trainer in find_all(state, gluon.Trainer):
            self._change_trainer(trainer)
        if self.dtype:
            self._cast(state, self.dtype)
        for block in hybridized:
            block._clear_cached_op()  # `make` may have traced it
            block._active = True  # MXNet 2 switches it off in a cast
        return state

    def _create_deferred(self, state: Any) -> None:
        # By path, because `make` may return a list of networks, one for each device
        shapes = {path: cycle(found) for path, found in self.shapes.items()}
        for path, param in find_all(state, gluon.Parameter):
            if path in shapes and param._deferred_init:
                param.shape = next(shapes[path])
                param._finish_deferred_init()  # before the cast, because not all initializers can fill float64

    def _cast(self, state: Any, dtype: str) -> None:
        for _, value in [*find_all(state, (gluon.Block, gluon.Parameter))]:
            value.cast(dtype)
        for _, array in [*find_all(state, mx.nd.NDArray)]:
            if id(array) not in self.constants:
                cast(array, dtype)

    def _change_trainer(self, trainer: gluon.Trainer) -> None:
        if any(len(param.list_ctx()) > len(trainer._updaters) for param in trainer._params):
            raise ValueError('make returns a Trainer made before its parameters were on more devices, which it skips: '
                             'make a new one after reset_ctx or another initialize')
        if self.plain_sgd:
            trainer._init_optimizer('sgd', {'learning_rate': 0.1})
        settings = trainer._kvstore_params
        if settings['update_on_kvstore'] and len(trainer._updaters) == 1:
            settings['update_on_kvstore'] = None  # a single device has no store, and MXNet fails

    def step(self, batch: Sequence) -> list:
        """Take a step; return the values of the parameters on each device of all workers; blocks."""
        error, job = None, self.job
        try:
            self._train(batch)
        except Exception as caught:
            error = caught
            job.place = f'after {type(error).__name__}: {reason(error)}'
        # Agree, because a worker with an error would not take part in the next step. If others still wait in an
        # exchange of this step, the job ends after its time limit
        notice = threading.Timer(1, warn, [f'check: the step fails on worker {job.rank} {job.place}'])
        if error:
            notice.start()
        of_others = ', '.join(filter(None, job.allgather(job.place, 'the end of a step')))
        notice.cancel()
        job.place = ''
        if error or of_others:
            raise error or ValueError(f'the step fails on another worker {of_others}')
        return self.values()

    def _train(self, batch: Sequence) -> None:
        for arrays, _ in arrays_by_device(self.state) if self.zero_gradients else []:
            for _, array in arrays:
                fill(array.grad, 0)
        if self.workers is not self.job:
            self._accept_unused()
        seed_all(self.seed, 0)
        X, y = refill(self.lists, map(self._array, batch))
        self.train_batch(self.state, X, y, self.devices)
        npx.waitall()  # raises errors that the parameters do not show

    def _accept_unused(self) -> None:
        """Let Trainers take parameters that a batch does not use, which they refuse on one device alone."""
        for _, trainer in find_all(self.state, gluon.Trainer):
            for param in trainer._params if trainer._kvstore_params['update_on_kvstore'] is not False else []:
                for array in param._data or []:
                    if param.grad_req == 'write' and not array._fresh_grad:  # a step may use it in the next batch
                        fill(array.grad, 0)
                        array._fresh_grad = True

    def _array(self, data: numpy.ndarray) -> Any:
        dtype: Any = data.dtype
        if dtype.kind == 'f':
            dtype = self.dtype or min(dtype, numpy.dtype(self.widest))
        return make_array((np if npx.is_np_array() else mx.nd).array, data, dtype=dtype)

    def values(self) -> list:
        """Return the values of the parameters on each device of all workers; blocks."""
        values = [[array.asnumpy() * 1.0 for _, array in on_device] for on_device in self.params()]  # also of masks
        return [*chain(*self.workers.allgather(values))]

    def assign(self, values: Sequence) -> None:
        """Set the parameters on each device to these values."""
        for on_device in self.params():
            for (_, array), value in zip(on_device, values):
                assign(array, value)

    def params(self) -> list:
        """Return [(path, array), ...] of the parameters on each device that has some, first those with gradients."""
        params = []
        for with_gradients, others in arrays_by_device(self.state):
            places = [place(path, array) for path, array in others]
            copies = [pair for i, pair in enumerate(others)
                      if places[:i].count(places[i]) < self.copies.get(places[i], 0)]
            params.append(with_gradients + copies)
        if not params:
            raise ValueError(f'make returned {type(self.state).__name__} without parameters: return the network, the '
                             'Trainer or the arrays with gradients, also in lists, dicts or as attributes')
        return params

