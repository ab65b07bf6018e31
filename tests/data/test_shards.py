"""Tests of the shards of workers."""
import numpy
import pytest

from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.data.shards import shard_rows


def test_shards_of_nothing_and_invalid_shards():
    images, labels_ = numpy.zeros((0, 28, 28), 'uint8'), numpy.zeros(0, int)
    assert list(BatchIterator(images, labels_, 4, 'mnist', shard=[1, 2])) == []
    assert BatchIterator(images, labels_, 4, 'mnist', shard=[1, 2]).shard == (1, 2)
    for n, i, k, message in ((5, 2, 2, 'shard 2: must be an integer from 0 to 1'), (5, 0, 0, 'of shards 0: must be'),
                             (5, -1, 2, 'shard -1: must be'), (5, None, 2, 'shard None: must be')):
        with pytest.raises(ValueError, match=message):
            shard_rows(n, i, k)
    for shard, message in (((2, 2), 'shard 2: must be an integer from 0 to 1'), ((0, 0), 'of shards 0: must be'),
                           ((0, '2'), "of shards '2': must be")):
        with pytest.raises(ValueError, match=message):
            BatchIterator(images, labels_, 4, 'mnist', shard=shard)
