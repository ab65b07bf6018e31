"""Program of a worker that trains on its shards and saves its results: python equal.py CASE DTYPE FOLDER."""
import sys

import numpy
from cases import batches, concise_case, params_of, scratch_case

from gluon_mgpu.distributed.horovod_workers import HorovodWorkers

name, dtype, folder = sys.argv[1:]
with HorovodWorkers() as workers:
    case = {'scratch': scratch_case, 'concise': concise_case}[name]
    step, net = case([workers.device], dtype, workers)
    workers.broadcast_parameters(net, batches(dtype)[0][0])
    losses = [step(X, y) for X, y in batches(dtype)]
    numpy.savez(f'{folder}/{workers.rank}.npz', *params_of(net), losses=losses)
