"""Steps over all workers, for ``python -m gluon_mgpu check``.

LeNet, right and without the sum over the workers; synchronized batch norm.
"""
from types import SimpleNamespace

from cases import LR, rows_of_worker
from parallel.sync_batch_norm.norms import small_net
from trainers import trainable

from gluon_mgpu import scratch
from gluon_mgpu.mxnet_setup.compat import gluon
from gluon_mgpu.parallel.sync_batch_norm.synchronized import SyncBatchNorm
from gluon_mgpu.parallel.sync_batch_norm.train_batch import train_batch_synchronized
from gluon_mgpu.parallel.workers import Workers


def make(devices, workers):
    params = scratch.init_params(0.1)
    return SimpleNamespace(workers=workers, all_workers=workers,
                           device_params=[scratch.get_params(params, device) for device in devices])


def train_batch(state, X, y, devices):
    scratch.train_batch(*rows_of_worker(X, y, state.workers), state.device_params, devices, LR, len(X),
                        state.all_workers.extend_allreduce(scratch.allreduce))


def wrong(state, X, y, devices):
    state.all_workers = Workers()
    train_batch(state, X, y, devices)


def make_synchronized(devices, workers):
    net = small_net()
    net.initialize(ctx=devices)
    trainer = workers.trainer(trainable(net), 'sgd', {'learning_rate': LR})
    return SimpleNamespace(net=SyncBatchNorm(net, workers), trainer=trainer, workers=workers)


def train_synchronized(state, X, y, devices):
    train_batch_synchronized(*rows_of_worker(X, y, state.workers), state.net, gluon.loss.SoftmaxCrossEntropyLoss(),
                             state.trainer, devices, len(X))


def train_synchronized_or_fail(state, X, y, devices):
    """Fail on worker 1 only: in a batch of 7 rows before the exchange, otherwise after it."""
    if state.workers.rank and len(y) == 7:
        raise KeyError('before the exchange')
    train_synchronized(state, X, y, devices)
    if state.workers.rank and len(y) == 8:
        raise KeyError('after the exchange')


def train_or_fail(state, X, y, devices):
    if state.workers.rank and len(y) == 7:
        raise KeyError('before the exchange')
    train_batch(state, X, y, devices)
