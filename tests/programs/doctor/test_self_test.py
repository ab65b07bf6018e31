"""Tests of the self-test in this process: it accepts correct results and detects wrong ones."""
import pytest
from slow import slow

from gluon_mgpu import scratch
from gluon_mgpu.mxnet_setup.compat import mx
from gluon_mgpu.parallel import allreduce
from gluon_mgpu.programs.doctor import self_test

train_batch = scratch.train_batch


def forget_the_last(data):
    """An allreduce that loses a device's gradient."""
    scratch.allreduce(data[:-1])


def lose_a_gradient(X, y, device_params, devices, lr):
    """A step whose allreduce loses a device's gradient."""
    return train_batch(X, y, device_params, devices, lr, allreduce=forget_the_last)


def step_of_nan(X, y, device_params, devices, lr):
    """A step that makes all parameters NaN if there are several devices."""
    return train_batch(X, y, device_params, devices, lr if len(devices) == 1 else float('nan'))


@pytest.fixture(autouse=True)
def on_devices(devices, monkeypatch):
    monkeypatch.setattr(self_test, '_chosen', lambda: devices[:2])


def test_correct_results_are_accepted(devices):
    assert self_test.allreduce() == {'says': 'sums over the devices are right'}
    assert self_test.step() == {
        'says': f'training steps on {devices[0]} and {devices[1]} equal those on {devices[0]}'}


def test_a_wrong_sum(monkeypatch):
    monkeypatch.setitem(allreduce.ALGORITHMS, 'ring', forget_the_last)
    with pytest.raises(ValueError, match=r'^sums over the devices are wrong \(ring\): do not train; report it'):
        self_test.allreduce()
    monkeypatch.setattr(scratch, 'allreduce', lambda data: None)
    with pytest.raises(ValueError, match=r"wrong \(the chapter's, ring\): "):
        self_test.allreduce()


@pytest.mark.parametrize('wrong', [slow(lose_a_gradient), step_of_nan])
def test_a_wrong_step(wrong, monkeypatch):
    monkeypatch.setattr(scratch, 'train_batch', wrong)
    with pytest.raises(ValueError, match=r'^training steps on .* and .* differ from those on .*: do not train; report'):
        self_test.step()


def test_speed(monkeypatch):
    for name, value in {'ROUNDS': 2, 'STEPS': 1, 'ROWS': {'cpu': 8, 'gpu': 8}}.items():
        monkeypatch.setattr(self_test, name, value)
    found = self_test.speed()
    one, two = found['seconds']
    assert found['speed_up'] == one / two > 0


def test_a_single_device_is_compared_with_a_cpu(monkeypatch):
    monkeypatch.setattr(self_test, '_chosen', lambda: [mx.cpu(1)])
    assert self_test.step()['says'] == 'training steps on cpu(1) and cpu(0) equal those on cpu(1)'
    assert self_test.speed() == {}


@pytest.mark.parametrize(('seen', 'number'), [(0, 2), (1, 1), (2, 2), (8, 2)])
def test_the_devices_are_those_of_the_chapters(seen, number, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr('gluon_mgpu.devices.gpus.num_mxnet_gpus', lambda: seen)
    monkeypatch.setattr('gluon_mgpu.devices.devices_from', lambda n: n)
    assert self_test._chosen() == number
