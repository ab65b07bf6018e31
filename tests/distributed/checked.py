"""A step of LeNet over all workers, for ``python -m gluon_mgpu.check``: right, and without the sum over the workers."""
from types import SimpleNamespace

from cases import LR, rows_of_worker

from gluon_mgpu import scratch


def make(devices, workers):
    params = scratch.init_params(0.1)
    return SimpleNamespace(workers=workers, allreduce=workers.extend_allreduce(scratch.allreduce),
                           device_params=[scratch.get_params(params, device) for device in devices])


def train_batch(state, X, y, devices):
    scratch.train_batch(*rows_of_worker(X, y, state.workers), state.device_params, devices, LR, state.allreduce, len(X))


def wrong(state, X, y, devices):
    state.allreduce = scratch.allreduce
    train_batch(state, X, y, devices)
