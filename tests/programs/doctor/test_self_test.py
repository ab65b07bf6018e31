"""Tests of the self-test in this process: it accepts correct results and detects wrong ones."""
import json
import os
import sys
import time
from pathlib import Path

import pytest
from slow import slow

from gluon_mgpu import scratch
from gluon_mgpu.mxnet_setup.compat import mx
from gluon_mgpu.parallel import allreduce
from gluon_mgpu.parallel.devices import Devices
from gluon_mgpu.programs.doctor import facts, report, self_test

train_batch = scratch.train_batch


def forget_the_last(data):
    """An allreduce that loses a device's gradient."""
    scratch.allreduce(data[:-1])


def lose_a_row(X, y, device_params, devices, lr):
    """A step that loses a row if there are several devices."""
    kept = len(X) - (len(devices) > 1)
    return train_batch(X[:kept], y[:kept], device_params, Devices(devices, len(X), allreduce=scratch.allreduce), lr)


def lose_a_gradient(X, y, device_params, devices, lr):
    """A step whose allreduce loses a device's gradient."""
    return train_batch(X, y, device_params, Devices(devices, allreduce=forget_the_last), lr)


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


@pytest.mark.parametrize('wrong', [lose_a_gradient, slow(lose_a_row), step_of_nan])
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


# The subprocess

@pytest.mark.parametrize(('program', 'timeout', 'ended', 'during'), [
    ('print(\'{"driver": {}}\', flush=True); import time; time.sleep(600)', 2, 'was killed after 2 s', 'mxnet'),
    ('import os, signal; os.kill(os.getpid(), signal.SIGSEGV)', 60, 'died of SIGSEGV', 'driver'),
    ('print("{\\"driver\\"", flush=True); import sys; sys.exit("gone")', 60, 'ended with status 1', 'driver'),
], ids=['hangs', 'crashes', 'fails'])
def test_the_subprocess_hangs_crashes_or_fails(program, timeout, ended, during, monkeypatch):
    monkeypatch.setattr(report, 'PROGRAM', program)
    start = time.monotonic()
    found = report.run_self_test(timeout)
    assert time.monotonic() - start < timeout + 5
    assert (found['ended'], found['during']) == (ended, during)
    assert found['stderr'] == (['gone'] if 'gone' in program else [])


def test_a_path_object_in_the_path_of_python(monkeypatch):
    monkeypatch.setattr(report, 'PROGRAM', 'import sys; print(sys.argv[1])')
    monkeypatch.setattr(sys, 'path', [*sys.path, Path('/somewhere')])
    assert report.run_self_test(60)['ended'] == 'well'


def test_the_subprocess_has_the_users_settings(monkeypatch):
    """Settings that this process has made are not passed on."""
    program = 'import json, os, sys; print(json.dumps({"a": [os.environ.get("MXNET_CPU_TEMP_COPY"), sys.argv[1]]}))'
    monkeypatch.setattr(report, 'PROGRAM', program)
    prepared = report.runtime.prepare()
    found = report.run_self_test(30)
    own = None if 'MXNET_CPU_TEMP_COPY' in prepared.variables else os.environ['MXNET_CPU_TEMP_COPY']
    assert found['a'][0] == own and sys.path[-1] in json.loads(found['a'][1])


# The home folder

def test_the_home_folder_is_hidden(monkeypatch, tmp_path):
    home, link = tmp_path / 'ann', tmp_path / 'link'
    home.mkdir()
    link.symlink_to(home)
    monkeypatch.setenv('HOME', str(link))
    before = {'a': [f'{link}/x', f'{home}/y:{home}', f'{home}a/z', ['in', f'{link}'], f'a\n{home}/t'], 'b': None}
    after = {'a': ['~/x', '~/y:~', f'{home}a/z', ['in', '~'], 'a\n~/t'], 'b': None}
    assert facts.without_home(before) == after


def test_no_home_folder(monkeypatch):
    monkeypatch.setattr(facts.os.path, 'expanduser', lambda path: path)
    assert facts.without_home({'a': '/x'}) == {'a': '/x'}
