"""Program of a worker that trains with synchronized batch norm: python synchronized.py CASE FOLDER."""
import sys

import numpy
from parallel.sync_batch_norm.norms import nn, sequential, small_net
from trainers import trainable

from gluon_mgpu import concise
from gluon_mgpu.data.shards import shard_rows
from gluon_mgpu.mxnet_setup.compat import gluon, np, npx
from gluon_mgpu.networks.resnet import resnet18
from gluon_mgpu.parallel.accumulation import concise_in_parts
from gluon_mgpu.parallel.sync_batch_norm.synchronized import SyncBatchNorm
from gluon_mgpu.parallel.sync_batch_norm.train_batch import train_batch_synchronized
from gluon_mgpu.parallel.workers import Workers
from gluon_mgpu.training.parameters import parameters_by_name

# Network, rows of ten batches, parts of a batch. At first, only one worker has a row. Of a part, possibly none has
CASES = {'small': (small_net, (1, 64, 5, 2, 32, 3, 7, 4, 33, 16), 1),
         'adam, clipped, in parts': (small_net, (1, 64, 4, 32, 1, 8, 12, 24, 40, 16), 2),
         # A worker without rows could send all exchanges of several steps at once
         'deep': (lambda: sequential(*(layer for _ in range(12) for layer in (nn.Conv2D(4, 3, padding=1),
                                                                              nn.BatchNorm())), nn.Dense(10)),
                  (5, 1, 1, 1, 1, 1, 5, 1, 1, 1), 1),
         'resnet18': (lambda: resnet18(10), (1, 64, 5, 2, 7) * 2, 1)}
SIDE = 12


def trained(case, devices, workers=None, order=lambda n: range(n)):
    """Train for ten steps in float64; return the parameters and running statistics by name.

    With `workers`, each trains its shard. Otherwise, Gluon's own batch norm normalizes all rows, in the order
    ``order(n)``.
    """
    rng = numpy.random.default_rng(1)
    make, sizes, parts = CASES[case]
    net, job = make(), workers or Workers()
    net.initialize(ctx=devices)
    net(np.zeros((1, 1, SIDE, SIDE), ctx=devices[0]))
    net.cast('float64')
    for param in trainable(net):
        param.set_data(np.array(rng.normal(scale=0.2, size=param.shape), dtype='float64'))
    sgd, adam = ('sgd', {'learning_rate': 0.1, 'momentum': 0.9}), ('adam', {'learning_rate': 0.01})
    clip_norm = 0.1 if 'clipped' in case else None
    trainer = job.trainer(trainable(net), *(adam if 'adam' in case else sgd), clip_norm)
    net.hybridize(static_alloc=True, static_shape=True)
    trained_net = SyncBatchNorm(net, workers) if workers else net
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    step = train_batch_synchronized if workers else concise.train_batch
    step = step if parts == 1 else concise_in_parts(step, parts, always=job.size > 1)
    for n in sizes:
        X, y = rng.normal(1, 1, size=(n, 1, SIDE, SIDE)), rng.integers(0, 10, n).astype('int32')
        rows = range(n)[shard_rows(n, *job.shard)] if workers else order(n)
        X, y = X[list(rows)], y[list(rows)]
        X = np.array(X, dtype='float64') if len(X) else np.empty((0, 1, SIDE, SIDE), dtype='float64')
        y = np.array(y, dtype='int32') if len(y) else np.empty(0, dtype='int32')
        step(X, y, trained_net, loss, trainer, devices, 64)
    npx.waitall()
    return {name: param.data(devices[0]).asnumpy() for name, param in parameters_by_name(net).items()}


if __name__ == '__main__':
    from gluon_mgpu.distributed.horovod_workers import HorovodWorkers

    class Counting(HorovodWorkers):
        exchanges = 0

        def allreduce(self, array):
            self.exchanges += 1
            return super().allreduce(array)

    case, folder = sys.argv[1:]
    with Counting() as workers:
        found = trained(case, [workers.device], workers)
    numpy.savez(f'{folder}/{workers.rank}.npz', exchanges=workers.exchanges, **found)
