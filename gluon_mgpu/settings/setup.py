"""The devices, functions, network and Trainer that the settings of a command ask for: the arguments of ``train``."""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..devices import check_devices, devices_from, parse_devices
from ..devices.gpus import num_mxnet_gpus, why_no_gpus
from ..parallel.accumulation import concise_in_parts, scratch_in_parts
from ..parallel.allreduce import ALGORITHMS
from ..parallel.sync_batch_norm.synchronized import SyncBatchNorm
from ..parallel.sync_batch_norm.train_batch import train_batch_synchronized
from ..parallel.workers import Workers
from .chapters import Chapter
from .settings import check_together


def find_devices(settings: dict, workers: Workers, log: Callable[[str], None]) -> list:
    """Return the devices of this worker; by default two GPUs, or the only one, or two CPU contexts."""
    # `log` gets a line when CPU contexts replace GPUs
    if workers.device is not None:
        devices = check_devices([workers.device])
    elif settings['devices'] is not None:
        devices = parse_devices(settings['devices'])
    else:
        if not (available := num_mxnet_gpus()):
            log(f'{why_no_gpus()}; training on CPU contexts')
        devices = devices_from(settings['num_gpus'] or min(available, 2) or 2)
    check_together(settings, devices)
    return devices


def arguments_of_train(chapter: Chapter, module: Any, settings: dict, workers: Workers) -> dict[str, Any]:
    """Return the functions, and for a chapter with a Trainer the network and Trainer, that the settings ask for."""
    parts = settings['accumulate']
    if 'allreduce' in settings:
        return {'train_batch': scratch_in_parts(module.train_batch, parts),
                'allreduce': workers.extend_allreduce(ALGORITHMS.get(settings['allreduce'], module.allreduce))}
    net, train_batch, synchronized = chapter.make_net(module, settings), module.train_batch, settings['sync_batch_norm']
    net.hybridize(static_alloc=True, static_shape=True)
    if synchronized:
        net, train_batch = SyncBatchNorm(net, workers), train_batch_synchronized
    momentum = {} if settings['optimizer'] == 'adam' else {'momentum': settings['momentum']}
    return {'net': net, 'optimizer': settings['optimizer'],
            'optimizer_params': {'wd': settings['weight_decay'], **momentum},
            'Trainer': partial(workers.trainer, clip_norm=settings['clip_norm']),
            # Each part has the exchanges of synchronized batch norm
            'train_batch': concise_in_parts(train_batch, parts, always=synchronized and workers.size > 1)}
