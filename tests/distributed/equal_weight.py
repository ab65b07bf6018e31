"""Program of a worker that trains an epoch with a short last batch: python equal_weight.py CHAPTER FOLDER."""
import sys

import numpy
from cases import params_of

from gluon_mgpu import concise, scratch
from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.mxnet_setup.compat import gluon
from gluon_mgpu.parallel.workers import Workers
from gluon_mgpu.training.run import Callback, Run

CHAPTERS = {'scratch': scratch, 'concise': concise}
BATCH_SIZE, LR = 16, 1e-5
IMAGES = numpy.random.default_rng(0).integers(0, 256, (33, 28, 28)).astype('uint8')  # batches of 16, 16 and 1 rows
LABELS = numpy.random.default_rng(1).integers(0, 10, 33)


class InitialParameters(Callback):
    """Callback that keeps the parameters from before the first step."""

    def train_begin(self, run):
        self.params = params_of(run.net)


def trained(chapter, devices, workers=None):
    """Train one epoch with a tiny learning rate; return the parameters before and after it."""
    workers, initial = workers or Workers(), InitialParameters()
    data = [BatchIterator(IMAGES, LABELS, BATCH_SIZE, 'test', shuffle, shard=workers.shard)
            for shuffle in (True, False)]
    run = Run(1, quiet=True, callbacks=[initial], workers=workers)
    if chapter == 'scratch':
        own = {'allreduce': workers.extend_allreduce(scratch.allreduce)}
    else:
        own = {'net': gluon.nn.Dense(10, in_units=784), 'Trainer': workers.trainer}
    CHAPTERS[chapter].train(len(devices), BATCH_SIZE, LR, devices=devices, data=data, run=run, **own)
    return initial.params, params_of(run.net)


if __name__ == '__main__':
    from gluon_mgpu.distributed.horovod_workers import HorovodWorkers
    name, folder = sys.argv[1:]
    with HorovodWorkers() as workers:
        before, after = trained(name, [workers.device], workers)
    numpy.savez(f'{folder}/{workers.rank}.npz', *before, *after)
