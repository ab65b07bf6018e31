"""Batches for the chapters."""
import numpy
import oracle
from equals_one import same

from gluon_mgpu import scratch
from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.parallel.accumulation import scratch_in_parts

BATCHES = [24, 23, 24, 7, 3, 2, 1, 24, 5, 24]  # rows; 10 steps


class Batches(list):
    """List of batches with `num_rows`, like a `BatchIterator`."""

    num_rows = property(lambda self: sum(len(y) for _, y in self))


def of_labels(*labels):
    """Return a dataset with these labels, in batches of 4."""
    return BatchIterator(numpy.zeros((len(labels), 28, 28), 'uint8'), numpy.array(labels), 4, 'zeros')


def scratch_lenet(devices, rng, num_parts=1, allreduce=scratch.allreduce):
    """Train LeNet as in the scratch chapter, in float64; yield its parameters after each batch."""
    params = oracle.to_mx(oracle.lenet_params(rng, dtype='float64'))
    device_params = [scratch.get_params(params, device) for device in devices]
    step = scratch.train_batch if num_parts == 1 else scratch_in_parts(scratch.train_batch, num_parts)
    for n in BATCHES:
        X, y = oracle.to_mx(oracle.images(rng, n, dtype='float64'))
        step(X, y, device_params, devices, 0.2, n, allreduce)
        yield [same(copies) for copies in zip(*device_params)]
