"""Tests of the list of devices of a step and what it carries."""
import pickle

import pytest
from test_step import of_three

from gluon_mgpu import scratch
from gluon_mgpu.mxnet_setup.compat import mx, np
from gluon_mgpu.parallel.allreduce import ALGORITHMS
from gluon_mgpu.parallel.sharing import Devices, as_devices
from gluon_mgpu.parallel.split import split_and_load, split_batch
from gluon_mgpu.training.evaluate import evaluate_accuracy_gpus


@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_devices_can_be_pickled(algorithm):
    devices = Devices('cpu:0-1', 256, '3,1', parts=2, allreduce=algorithm)
    assert devices == [mx.cpu(0), mx.cpu(1)]
    copy = pickle.loads(pickle.dumps(devices))
    attributes, copied = ({**vars(one), 'workers': None} for one in (devices, copy))
    assert copy == devices and copied == attributes and copy.algorithm is ALGORITHMS[algorithm]


def test_no_parts(device_list):
    with pytest.raises(ValueError, match='parts 0: must be an integer of at least 1'):
        Devices(device_list(2), parts=0)


def test_devices_that_are_no_list(devices):
    X, y, one = np.zeros((4, 1, 28, 28)), np.zeros(4), devices[0]
    params = [scratch.get_params(scratch.init_params(), one)]
    calls = [lambda: scratch.train_batch(X, y, params, one, 0.1), lambda: split_and_load(X, one),
             lambda: split_batch(X, y, one), lambda: Devices({one}), lambda: as_devices(one),
             lambda: as_devices([[one]]),
             lambda: evaluate_accuracy_gpus(lambda X: X, [(X, y)], devices=one)]
    for call in calls:
        with pytest.raises(ValueError, match=r'is not a list of devices: write \[mx.cpu\(0\), mx.cpu\(1\)\]$'):
            call()
    with pytest.raises(ValueError, match="^'cpu:0-1' is not a list of devices"):
        evaluate_accuracy_gpus(lambda X: X, [(X, y)], devices='cpu:0-1')


@pytest.mark.parametrize('make', [Devices, as_devices])
def test_a_device_that_is_listed_twice(make):
    """Two replicas would have one gradient."""
    with pytest.raises(ValueError, match=r'^\[cpu\(1\), cpu\(0\), cpu\(1\)\] lists cpu\(1\) twice: list each'):
        make([mx.cpu(1), mx.cpu(0), mx.cpu(1)])


def test_the_divisor_of_several_workers(devices):
    """Each has other rows, so that dividing by them would give each another step."""
    assert Devices(devices, 256, workers=of_three()).divisor(np.zeros((2, 1))) == 256
    with pytest.raises(ValueError, match='^devices of several workers need a batch_size: the number of rows of all'):
        Devices(devices, workers=of_three()).divisor(np.zeros((2, 1)))
