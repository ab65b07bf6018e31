"""Tests of the words of messages."""
import numpy

from gluon_mgpu.base.words import counted, described


def test_counted():
    assert [counted(1, 'batch'), counted(2, 'batch'), counted(0, 'step'), counted(2, 'epoch')] == [
        '1 batch', '2 batches', '0 steps', '2 epochs']


def test_described():
    X = numpy.ones((2, 3))
    assert [described(value) for value in (X, 3, None, (X, [1]), [1] * 9, ())] == [
        'array (2, 3)', 'int', 'NoneType', 'tuple (array (2, 3), list (int))', 'list (int, int, int, ...)', 'tuple ()']
