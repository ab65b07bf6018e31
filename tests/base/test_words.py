"""Tests of the words of messages."""
from gluon_mgpu.base.words import counted


def test_counted():
    assert [counted(1, 'batch'), counted(2, 'batch'), counted(0, 'step'), counted(2, 'epoch')] == [
        '1 batch', '2 batches', '0 steps', '2 epochs']
