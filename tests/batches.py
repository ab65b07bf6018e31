"""Batches for the chapters, and the comparison of several devices with one."""
import numpy

from gluon_mgpu.data.batches import BatchIterator

BATCHES = [24, 23, 24, 7, 3, 2, 1, 24, 5, 24]  # rows; 10 steps


class Batches(list):
    """List of batches with `num_rows`, like a `BatchIterator`."""

    num_rows = property(lambda self: sum(len(y) for _, y in self))


def of_labels(*labels):
    """Return a dataset with these labels, in batches of 4."""
    return BatchIterator(numpy.zeros((len(labels), 28, 28), 'uint8'), numpy.array(labels), 4, 'zeros')


def largest_difference(params, others):
    return max(abs(a - b).max() for a, b in zip(params, others))


def check_replicas(replicas, one, before):
    """Check that all devices have the same parameters as one, which have changed: for float64, after `BATCHES`."""
    for replica in replicas[1:]:
        assert largest_difference(replica, replicas[0]) == 0
    # 10 sums of at most 24 rows in another order: a few units of 1e-16 each
    assert largest_difference(replicas[0], one) < 1e-13
    assert largest_difference(one, before) > 1e-3
