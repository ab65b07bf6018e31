"""Settings of a training: everything that `train` uses besides the book's three numbers."""
from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from ..base.checks import at_least_0
from ..data import load_data_fashion_mnist
from ..data.batches import check_data
from ..devices import check_devices, devices_from
from ..networks.precision import check_dtype
from ..networks.resnet import check_network
from ..parallel.allreduce import star
from ..parallel.devices import Devices
from .run import Run
from .schedules import check_lr

BOTH = {'num_epochs': None, 'devices': None, 'data': None, 'run': None, 'seed': 0, 'accumulate': 1, 'shares': None}
DEFAULTS: dict[str, dict[str, Any]] = {
    'scratch': {**BOTH, 'allreduce': None},
    'concise': {**BOTH, 'net': None, 'dtype': 'float32', 'momentum': 0.0, 'weight_decay': 0.0,
                'sync_batch_norm': False}}


class Setup:
    """The devices, data, run and settings of one training, checked.

    `settings` are the keyword arguments of ``train``. `allreduce` is used unless they have another.
    """

    def __init__(self, chapter: str, num_gpus: int, batch_size: int, lr: float | Callable, settings: dict,
                 allreduce: Callable = star):
        for name in settings:
            if name not in DEFAULTS[chapter]:
                raise ValueError(f'{name}: {chapter} has no such setting; it has {", ".join(DEFAULTS[chapter])}')
        values = {**DEFAULTS[chapter], **settings}
        check_lr(lr)
        self.seed = values['seed']
        self.run = values['run'] or Run(10 if values['num_epochs'] is None else values['num_epochs'])
        devices = devices_from(num_gpus) if values['devices'] is None else check_devices(values['devices'])
        self.devices = Devices(devices, batch_size, values['shares'], values['accumulate'],
                               values.get('allreduce') or allreduce, self.run.workers)
        self.net: Any = values.get('net')
        if chapter == 'concise':
            self.dtype, self.sync_batch_norm = values['dtype'], values['sync_batch_norm']
            check_dtype(self.dtype, devices)
            self.optimizer_params = {'momentum': at_least_0('momentum', values['momentum'], below=1),
                                     'wd': at_least_0('weight_decay', values['weight_decay'])}
        self.data = (load_data_fashion_mnist(batch_size) if values['data'] is None else
                     check_data(values['data'], batch_size, self.net))
        self.run.check(*self.data)
        if self.net is not None:
            check_network(self.net, self.dtype)
        gc.collect()  # free the networks of earlier calls, because Gluon's blocks are in reference cycles
