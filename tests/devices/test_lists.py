"""Tests of device lists, on simulated machines."""
import os
import subprocess
import sys

import pytest
from machines import H200, RTX4090, V100, cpus, gpus
from refused import refused
from slow import slow

from gluon_mgpu.base import machine as this_machine
from gluon_mgpu.devices import (
    check_devices,
    devices_from,
    devices_text,
    devices_words,
    lists as module,
    parse_devices,
    try_all_gpus,
    try_gpu,
)
from gluon_mgpu.mxnet_setup import compat
from gluon_mgpu.mxnet_setup.compat import mx

# One device, all devices, the first N

def test_try_gpu_without_gpus(machine):
    machine()
    assert [try_gpu(), try_gpu(1), try_gpu(7)] == cpus(0, 1, 7)
    assert try_all_gpus() == cpus(0, 1)


def test_try_gpu_with_gpus(machine):
    machine(V100, RTX4090)
    assert [try_gpu(), try_gpu(1), try_gpu(2)] == [mx.gpu(0), mx.gpu(1), mx.cpu(2)]
    assert try_all_gpus() == gpus(0, 1)


def test_try_gpu_skips_a_gpu_without_code(machine):
    machine(H200, V100)
    assert [try_gpu(0), try_gpu(1)] == [mx.cpu(0), mx.gpu(1)]
    assert try_all_gpus() == gpus(1)
    machine(H200)
    assert try_all_gpus() == cpus(0, 1)


def test_num_gpus_returns_gpus_if_there_are_any(machine):
    machine(V100, V100)
    assert devices_from(1) == gpus(0)
    assert devices_from(2) == gpus(0, 1)


def test_num_gpus_never_falls_back_from_a_gpu_without_code(machine):
    machine(H200, H200)
    assert refused(devices_from, 2).startswith('gpu(0) is NVIDIA H200 (compute capability 9.0)')


def test_devices_as_text():
    assert devices_text([mx.cpu(0), mx.gpu(1)]) == 'cpu:0,gpu:1'
    assert devices_text(['cpu(0)', 'cpu(0)', 'cpu(2)']) == 'cpu:0,cpu:2'  # names of a run with two workers
    assert parse_devices(devices_text([mx.cpu(2), mx.cpu(0)])) == [mx.cpu(2), mx.cpu(0)]


def test_many_devices_in_words():
    assert devices_words([mx.cpu(0), mx.gpu(1)]) == 'cpu(0), gpu(1)'
    assert devices_words([f'cpu({i})' for i in range(100)]) == 'cpu(0), ..., cpu(99)'


# Lists as text

@pytest.mark.parametrize(('text', 'expected'), [
    ('cpu:0-3', [('cpu', 0), ('cpu', 1), ('cpu', 2), ('cpu', 3)]),
    (' cpu:0 , cpu:2-3 ', [('cpu', 0), ('cpu', 2), ('cpu', 3)]),
    ('cpu:999', [('cpu', 999)]),
    ('cpu:all', [('cpu', 0), ('cpu', 1), ('cpu', 2)]),
    ('gpu:0-1', [('gpu', 0), ('gpu', 1)]),
    ('gpu:all', [('gpu', 0), ('gpu', 1)]),
    ('gpu:1,cpu:0', [('gpu', 1), ('cpu', 0)]),
])
def test_lists(machine, monkeypatch, text, expected):
    machine(V100, V100)
    monkeypatch.setattr(module, 'num_cores', lambda: 3)
    assert parse_devices(text) == [mx.Context(*pair) for pair in expected]


@pytest.mark.parametrize('text', [
    '', ' ', ',', 'cpu', 'gpu', 'cpu:', 'cpu:0,', 'cpu:-1', 'cpu:0-', 'cpu:0-all', 'cpu:x', 'cpu:.5', 'cpu 0',
    'cpu: 0', 'cpu(0)', 'CPU:0', 'tpu:0', 'cuda:0', 'cpu:0 cpu:1', 'cpu:0;cpu:1', 'cpu:\u0663', 'cpu:1000',
    'cpu:0-999999999', 'cpu:3-1'])
def test_text_that_is_not_a_list(text):
    line = refused(parse_devices, text)
    assert line.endswith("names no device: write a list such as 'gpu:0,gpu:1', 'cpu:0-3' or 'gpu:all', "
                         'with numbers up to 999')
    assert repr(text.split(',')[-1].strip()) in line


def test_all_gpus_of_a_machine_without_gpus(machine):
    machine()
    assert refused(parse_devices, 'gpu:all') == "'gpu:all' names no device (no NVIDIA GPU found): use 'cpu:all'"


# Checks

def test_checked_devices_are_a_new_list(devices):
    assert check_devices(tuple(devices)) == devices
    assert check_devices(devices) is not devices


@pytest.mark.parametrize('call, asked, line', [
    (try_gpu, -1, 'device number -1: must be an integer of at least 0'),
    (devices_from, 3, 'gpu(2) does not exist (MXNet sees 2): use gpu:0 to gpu:1'),
    *((devices_from, n, f'num_gpus {n}: must be an integer from 1 to 1000') for n in (0, 1001)),
    (check_devices, [], "the list of devices is empty: name at least one, such as 'cpu:0'"),
    *((check_devices, [device], f'{device!r} is not a device: ') for device in ('cpu:0', 0, None, mx.cpu_pinned(0))),
    (check_devices, cpus(0, -1), 'cpu(-1) has a negative number: devices are numbered from 0'),
    *((parse_devices, text, f'{listed} twice: list each device once') for text, listed in (
        ('cpu:0-2,cpu:1', '[cpu(0), cpu(1), cpu(2), cpu(1)] lists cpu(1)'),
        ('gpu:1,cpu:1,gpu:1', '[gpu(1), cpu(1), gpu(1)] lists gpu(1)'),
        ('gpu:all,gpu:1', '[gpu(0), gpu(1), gpu(1)] lists gpu(1)'),
        ('cpu:0-99,cpu:7', '[cpu(0), ..., cpu(7)] lists cpu(7)')))])
def test_what_names_no_devices(call, asked, line, machine):
    machine(V100, V100)
    assert refused(call, asked).startswith(line)


def test_several_omp_threads_on_several_cpu_contexts(machine, monkeypatch):
    machine(V100, V100)
    monkeypatch.setattr(module, 'omp_threads', lambda: 2)
    monkeypatch.setattr(mx, '__version__', '1.9.1')
    assert refused(check_devices, cpus(0, 1)).startswith('2 threads of OpenMP with 2 CPU contexts hang in OpenBLAS')
    for valid in (cpus(0), gpus(0, 1), [*gpus(0, 1), mx.cpu(0)]):
        assert check_devices(valid) == valid
    monkeypatch.setattr(mx, '__version__', '2.0.0')
    assert check_devices(cpus(0, 1)) == cpus(0, 1)


@pytest.mark.skipif(compat.MXNET_MAJOR >= 2 or sys.platform != 'linux' or this_machine.num_cores() < 2,
                    reason='needs MXNet 1, libgomp and two cores')
@pytest.mark.parametrize(('first', 'works'), [
    ('ctypes.CDLL("libgomp.so.1"); import gluon_mgpu', False),
    slow('ctypes.CDLL("libgomp.so.1"); os.environ["OMP_NUM_THREADS"] = "1"; import gluon_mgpu', False),  # too late
    slow('import gluon_mgpu; ctypes.CDLL("libgomp.so.1")', True),
    slow('os.environ["OMP_NUM_THREADS"] = "1"; ctypes.CDLL("libgomp.so.1"); import gluon_mgpu', True)])
def test_openmp_loaded_first_by_another_library(first, works):
    """As PyTorch does; both remedies work."""
    code = (f'import ctypes, os; {first}; from gluon_mgpu.mxnet_setup import runtime; from gluon_mgpu.devices.lists '
            'import parse_devices; print(ctypes.CDLL("libgomp.so.1").omp_get_max_threads()); parse_devices("cpu:0-1")')
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=120,
                          env={name: value for name, value in os.environ.items() if name != 'OMP_NUM_THREADS'})
    threads = int(done.stdout)
    assert works == (threads == 1)
    assert works == (done.returncode == 0), done.stderr
    if not works:
        assert f'Error: {threads} threads of OpenMP with 2 CPU contexts hang' in done.stderr
