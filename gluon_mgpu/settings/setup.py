"""The devices, data and run of a training, from the book's three numbers and the settings."""
from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from ..data import load_data
from ..data.batches import check_training_data
from ..devices import check_devices, devices_from, parse_devices
from ..devices.gpus import num_mxnet_gpus, why_no_gpus
from ..mxnet_setup.compat import gluon
from ..parallel.accumulation import concise_in_parts, scratch_in_parts
from ..parallel.allreduce import ALGORITHMS
from ..parallel.workers import Workers
from ..training.run import Run
from .settings import arguments_of, check_together, checked_settings

Function = TypeVar('Function', bound=Callable)


def with_settings(chapter: str) -> Callable[[Function], Function]:
    """Return a decorator for ``train`` that only adds a chapter's settings to its signature, for help and editors."""
    def decorate(train: Function) -> Function:
        signature = inspect.signature(train)
        *given, _ = signature.parameters.values()
        others = [setting for setting in arguments_of(chapter) if setting.name not in signature.parameters]
        train.__signature__ = signature.replace(parameters=[*given, *(  # type: ignore[attr-defined]
            inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=setting.default_of(chapter))
            for setting in others)])
        return train
    return decorate


def find_devices(settings: dict, workers: Workers, log: Callable[[str], None] = lambda line: None,
                 name: Callable[[str], str] = str) -> list:
    """Return the devices for checked settings; by default two GPUs, or the only one, or two CPU contexts."""
    # `log` gets a line when CPU contexts replace GPUs; `name` is as in `check_together`
    if workers.device is not None and settings['devices'] is None and settings['num_gpus'] in (None, 1):
        devices = check_devices([workers.device])
    elif settings['devices'] is None:
        if not (available := num_mxnet_gpus()):
            log(f'{why_no_gpus()}; training on CPU contexts')
        devices = devices_from(settings['num_gpus'] or min(available, 2) or 2)
    else:
        devices = parse_devices(settings['devices']) if isinstance(settings['devices'], str) else settings['devices']
        if settings['num_gpus'] not in (None, len(devices)):
            raise ValueError(f'{name("num_gpus")} {settings["num_gpus"]}: must be {len(devices)}, the number of '
                             'devices')
    if workers.device is not None and len(devices) > 1:
        raise ValueError(f'{devices} for one worker, whose gradients Horovod sums on one device: start one worker per '
                         'device')
    check_together(settings, devices, name)
    return devices


def check_arguments(chapter: str, arguments: dict) -> dict:
    """Return the arguments of a chapter's ``train``, checked, with all defaults, a run and devices."""
    values = checked_settings(chapter, arguments)
    run = values['run'] = Run(values['num_epochs']) if values['run'] is None else values['run']
    run.workers.check_equal({name: value for name, value in values.items() if name != 'devices' and isinstance(
        value, (str, int, float))})
    values['devices'] = find_devices(values, run.workers)
    if values.get('net') is not None:
        _check_net(values['net'], values['dtype'])
    if values['data'] is not None:
        values['data'] = check_training_data(values['data'], values['batch_size'], values.get('net'),
                                             run.workers.allgather)
    run.check_data(*values['data'] or ())
    return values


class TrainingSetup:
    """The devices, data, run and settings of one training, from the arguments of ``train``, which are checked first.

    `chapter` is the one whose `settings` are taken, ``'scratch'`` or ``'concise'``; those left out have its defaults.
    The attributes are seed, run, net, devices and data, a pair (train_iter, test_iter), and for a chapter with a
    Trainer its settings. Raises ValueError for an invalid argument.
    """

    def __init__(self, chapter: str, num_gpus: int | None, batch_size: int, lr: float | Callable, settings: dict):
        values = check_arguments(chapter, {'num_gpus': num_gpus, 'batch_size': batch_size, 'lr': lr, **settings})
        gc.collect()  # free the networks of earlier calls, because Gluon's blocks are in reference cycles
        self.seed: int = values['seed']
        self.run: Run = values['run']
        self.net: Any = values.get('net')
        if self.net is not None:  # operators with static shapes would write gradients into the arrays of old parameters
            self.net.apply(lambda block: block._clear_cached_op())
        self.devices: list = values['devices']
        self.data: tuple = values['data'] or load_data('fashion-mnist', batch_size, seed=self.seed,
                                                       shard=self.run.workers.shard)
        self._chapter, self._accumulate = chapter, values['accumulate']
        self._allreduce: Any = values.get('allreduce')
        self.sync_batch_norm: bool = values.get('sync_batch_norm', False)
        if 'optimizer' in values:
            self.dtype = values.get('dtype', 'float32')
            self.optimizer: str = values['optimizer']
            self.optimizer_params, self.clip_norm = {'wd': values['weight_decay']}, values['clip_norm']
            if self.optimizer != 'adam':
                self.optimizer_params['momentum'] = values['momentum']

    def allreduce(self, allreduce: Callable) -> Callable:
        """Return the allreduce of the settings, by default this one, extended to all workers."""
        chosen = self._allreduce
        return self.run.workers.extend_allreduce(chosen if callable(chosen) else ALGORITHMS.get(chosen, allreduce))

    def step(self, train_batch: Callable) -> Callable:
        """Return `train_batch` of the chapter; with --accumulate, a function that calls it for each part of a batch."""
        if self._accumulate == 1:
            return train_batch
        if self._chapter == 'scratch':
            return scratch_in_parts(train_batch, self._accumulate)
        # Each part has the exchanges of synchronized batch norm
        always = self.sync_batch_norm and self.run.workers.size > 1
        return concise_in_parts(train_batch, self._accumulate, always)


def _check_net(net: gluon.HybridBlock, dtype: str) -> None:
    if not isinstance(net, gluon.HybridBlock):
        raise ValueError(f'net is a {type(net).__name__}: must be a gluon.HybridBlock, such as nn.HybridSequential')
    modes = {param.grad_req for param in net.collect_params().values()}
    if not modes - {'null'}:
        raise ValueError("net has no parameter to train: add layers, or set a parameter's grad_req to 'write'")
    if 'add' in modes:
        raise ValueError("net has parameters with grad_req 'add', whose gradients would grow from batch to batch: set "
                         "it to 'write'")
    if dtype != 'float32':
        raise ValueError(f'dtype {dtype!r} is for ResNet-18, and net is given: leave out one of the two')
