"""The devices, data and run of a training, from the book's three numbers and the settings."""
from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from .data import load_data
from .data.batches import check_data
from .data.label_smoothing import SmoothedLabels
from .devices import devices_from
from .networks.resnet import check_network
from .parallel.allreduce import star
from .parallel.devices import Devices
from .settings import check_settings, check_together
from .training.run import Run


class Setup:
    """The devices, data, run and settings of one training, checked.

    `settings` are the keyword arguments of ``train``. `allreduce` is used unless they have another.
    """

    def __init__(self, chapter: str, num_gpus: int, batch_size: int, lr: float | Callable, settings: dict,
                 allreduce: Callable = star):
        values = check_settings(chapter, {'num_gpus': num_gpus, 'batch_size': batch_size, 'lr': lr, **settings})
        self.seed: int = values['seed']
        self.run = Run(values['num_epochs']) if values['run'] is None else values['run']
        devices = devices_from(num_gpus) if values['devices'] is None else values['devices']
        check_together(values, devices)
        if not isinstance(devices, Devices):
            devices = Devices(devices, None, values['shares'], values['accumulate'], values.get('allreduce'))
        self.devices = devices.adapted(allreduce, batch_size=batch_size, workers=self.run.workers)
        self.net: Any = values.get('net')
        if chapter == 'concise':
            self.dtype, self.sync_batch_norm = values['dtype'], values['sync_batch_norm']
            self.optimizer: str = values['optimizer']
            self.optimizer_params = {'wd': values['weight_decay'], 'clip_norm': values['clip_norm']}
            if self.optimizer != 'adam':
                self.optimizer_params['momentum'] = values['momentum']
        shard = self.run.workers.shard
        self.data: tuple = (load_data('fashion-mnist', batch_size, seed=self.seed, shard=shard)
                            if values['data'] is None else check_data(values['data'], batch_size, self.net))
        self.run.check_data(*self.data)
        if values['label_smoothing']:
            self.data = SmoothedLabels(self.data[0], values['label_smoothing'], self.net), self.data[1]
        if self.net is not None:
            check_network(self.net, self.dtype)
        gc.collect()  # free the networks of earlier calls, because Gluon's blocks are in reference cycles
