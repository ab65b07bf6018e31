"""A step of LeNet over all workers, for ``python -m gluon_mgpu.check``: right, and without the sum over the workers."""
from types import SimpleNamespace

from cases import LR, rows_of_worker

from gluon_mgpu import scratch
from gluon_mgpu.parallel.devices import Devices


def make(devices, workers):
    params = scratch.init_params(0.1)
    return SimpleNamespace(workers=workers, all_workers=workers,
                           device_params=[scratch.get_params(params, device) for device in devices])


def train_batch(state, X, y, devices):
    together = Devices(devices, len(X), allreduce=scratch.allreduce, workers=state.all_workers)
    scratch.train_batch(*rows_of_worker(X, y, state.workers), state.device_params, together, LR)


def wrong(state, X, y, devices):
    state.all_workers = None
    train_batch(state, X, y, devices)
