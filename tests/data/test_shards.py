"""Tests of the shards of workers."""
import numpy
import pytest
from refused import refused

from gluon_mgpu.data.batches import BatchIterator

EMPTY = numpy.zeros((0, 28, 28), 'uint8'), numpy.zeros(0, int), 4, 'mnist'


def test_shards_of_nothing():
    data_iter = BatchIterator(*EMPTY, shard=[1, 2])
    assert [*data_iter] == [] and data_iter.shard == (1, 2)


@pytest.mark.parametrize('shard, message', [
    ((2, 2), 'shard 2: must be an integer from 0 to 1'), ((-1, 2), 'shard -1: must be'),
    ((None, 2), 'shard None: must be'), ((0, 0), 'the number of shards 0: must be'),
    ((0, '2'), "the number of shards '2': must be")])
def test_invalid_shards(shard, message):
    assert refused(BatchIterator, *EMPTY, shard=shard).startswith(message)
