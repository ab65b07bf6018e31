"""Tests of the words of messages."""
from gluon_mgpu.base.words import counted


def test_counted():
    assert [counted(1, 'batch'), counted(2, 'batch'), counted(0, 'step'), counted(1, 'core')] == [
        '1 batch', '2 batches', '0 steps', '1 core']
