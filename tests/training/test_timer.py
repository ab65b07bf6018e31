"""Tests of the timer and the accumulator, with a fake clock."""
from gluon_mgpu.mxnet_setup.compat import np
from gluon_mgpu.training.timer import Accumulator, Timer


def test_timer(clock):
    timer = Timer()
    clock[0] += 2
    assert timer.stop() == 2
    timer.start()
    clock[0] += 4
    timer.stop()
    assert timer.times == [2, 4]
    assert (timer.sum(), timer.avg(), timer.cumsum()) == (6, 3, [2, 6])


def test_accumulator():
    metric = Accumulator(2)
    metric.add(1, np.array(2.5))
    metric.add(3, 4)
    assert (metric[0], metric[1]) == (4, 6.5)
    metric.reset()
    assert metric.data == [0, 0]
