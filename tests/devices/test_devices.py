"""Tests of devices and device lists, on simulated machines."""
from __future__ import annotations

import os
import subprocess
import sys

import pytest
from slow import slow

from gluon_mgpu.base import machine as this_machine
from gluon_mgpu.devices import (
    check_devices,
    devices_from,
    devices_text,
    gpus as gpu_module,
    lists as module,
    parse_devices,
    try_all_gpus,
    try_gpu,
)
from gluon_mgpu.devices.gpus import num_mxnet_gpus, why_no_gpus
from gluon_mgpu.devices.nvidia_driver import Driver, Gpu
from gluon_mgpu.mxnet_setup import compat
from gluon_mgpu.mxnet_setup.compat import mx, npx

WHEEL, REVIVED = ((5, 0), (8, 9)), ((8, 0), (12, 1))
K80, V100, RTX4090, H200 = (Gpu(0, name, capability, 2**34) for name, capability in (
    ('Tesla K80', (3, 7)), ('Tesla V100', (7, 0)), ('RTX 4090', (8, 9)), ('NVIDIA H200', (9, 0))))

A100_PART = Gpu(0, 'NVIDIA A100-SXM4-40GB MIG 1g.5gb', (8, 0), 2**32, '9d8e7f6a-0000-4000-8000-0123456789ab')


@pytest.fixture
def machine(monkeypatch):
    """Return a function that simulates a machine: its GPUs, how many MXNet sees, and the ones it has code for."""
    def pretend(*gpus, seen=None, code_for=WHEEL, cuda=True):
        gpus = [gpu._replace(index=i) for i, gpu in enumerate(gpus)]
        driver = Driver(gpus, (12, 4), '') if gpus else Driver([], None, 'no NVIDIA driver')
        monkeypatch.setattr(gpu_module, 'ask_driver', lambda: driver)
        for r in (module, gpu_module):
            monkeypatch.setattr(r, 'num_mxnet_gpus', lambda: len(gpus) if seen is None else seen)
        monkeypatch.setattr(mx.runtime.Features, 'is_enabled', lambda self, feature: cuda)
        monkeypatch.setattr(gpu_module, 'compute_capabilities', lambda: code_for)
        monkeypatch.setattr(module, 'omp_threads', lambda: 1)
        monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    return pretend


def cpus(*numbers):
    return [mx.cpu(i) for i in numbers]


def gpus(*numbers):
    return [mx.gpu(i) for i in numbers]


def error_of(function, *args):
    """Return the error message of a call: one line."""
    with pytest.raises(ValueError) as caught:
        function(*args)
    line = str(caught.value)
    assert '\n' not in line
    return line


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


def test_try_gpu_rejects_a_negative_number():
    assert error_of(try_gpu, -1).startswith('device number -1: must be an integer of at least 0')


def test_num_gpus_returns_gpus_if_there_are_any(machine):
    machine(V100, V100)
    assert devices_from(1) == gpus(0)
    assert devices_from(2) == gpus(0, 1)
    assert error_of(devices_from, 3) == 'gpu(2) does not exist (MXNet sees 2): use gpu:0 to gpu:1'


def test_num_gpus_returns_cpu_contexts_without_gpus(machine):
    machine()
    assert devices_from(3) == cpus(0, 1, 2)
    assert why_no_gpus() == 'no NVIDIA GPU found'


def test_num_gpus_never_falls_back_from_a_gpu_without_code(machine):
    machine(H200, H200)
    assert error_of(devices_from, 2).startswith('gpu(0) is NVIDIA H200 (compute capability 9.0)')


@pytest.mark.parametrize('number', [0, -2, 1001, 300000])
def test_num_gpus_rejects_invalid_numbers(number):
    assert error_of(devices_from, number) == f'the number of devices {number}: must be an integer from 1 to 1000'


def test_devices_as_text():
    assert devices_text([mx.cpu(0), mx.gpu(1)]) == 'cpu:0,gpu:1'
    assert devices_text(['cpu(0)', 'cpu(0)', 'cpu(2)']) == 'cpu:0,cpu:2'  # names of a run with two workers
    assert parse_devices(devices_text([mx.cpu(2), mx.cpu(0)])) == [mx.cpu(2), mx.cpu(0)]


# Lists as text

@pytest.mark.parametrize(('text', 'expected'), [
    ('cpu:0', [('cpu', 0)]),
    ('cpu:1,cpu:0', [('cpu', 1), ('cpu', 0)]),
    ('cpu:0-3', [('cpu', 0), ('cpu', 1), ('cpu', 2), ('cpu', 3)]),
    ('cpu:2-2', [('cpu', 2)]),
    (' cpu:0 , cpu:2-3 ', [('cpu', 0), ('cpu', 2), ('cpu', 3)]),
    ('cpu:999', [('cpu', 999)]),
    ('cpu:all', [('cpu', 0), ('cpu', 1), ('cpu', 2)]),
    ('gpu:0,gpu:1', [('gpu', 0), ('gpu', 1)]),
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
    line = error_of(parse_devices, text)
    assert line.endswith("names no device: write a list such as 'gpu:0,gpu:1', 'cpu:0-3' or 'gpu:all', "
                         'with numbers up to 999')
    assert repr(text.split(',')[-1].strip()) in line


def test_all_gpus_of_a_machine_without_gpus(machine):
    machine()
    assert error_of(parse_devices, 'gpu:all') == "'gpu:all' names no device (no NVIDIA GPU found): use 'cpu:all'"


def test_cores_are_those_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: {1, 3, 5}, raising=False)
    assert this_machine.num_cores() == 3
    monkeypatch.delattr(os, 'sched_getaffinity')
    assert this_machine.num_cores() == os.cpu_count()


# Checks

def test_checked_devices_are_a_new_list(devices):
    assert check_devices(tuple(devices)) == devices
    assert check_devices(devices) is not devices


def test_no_devices():
    assert error_of(check_devices, []) == "the list of devices is empty: name at least one, such as 'cpu:0'"


@pytest.mark.parametrize('device', ['cpu:0', 0, None, mx.cpu_pinned(0)], ids=str)
def test_something_that_is_not_a_device(device):
    assert error_of(check_devices, [device]).startswith(f'{device!r} is not a device: ')


def test_negative_number():
    assert error_of(check_devices, cpus(0, -1)) == 'cpu(-1) has a negative number: devices are numbered from 0'


@pytest.mark.parametrize(('text', 'twice'), [
    ('cpu:0,cpu:0', 'cpu(0)'), ('cpu:0-2,cpu:1', 'cpu(1)'), ('gpu:1,cpu:1,gpu:1', 'gpu(1)'),
    ('gpu:all,gpu:1', 'gpu(1)')])
def test_duplicates(machine, text, twice):
    machine(V100, V100)
    assert error_of(parse_devices, text) == f'{twice} is listed twice: list each device once'


def test_a_gpu_that_does_not_exist(machine):
    machine(V100)
    assert check_devices(gpus(0)) == gpus(0)
    assert error_of(check_devices, gpus(0, 1)) == 'gpu(1) does not exist (MXNet sees 1): use gpu:0'


def test_a_gpu_without_a_driver(machine):
    machine()
    assert error_of(check_devices, gpus(0)) == (
        'gpu(0) does not exist (no NVIDIA GPU found): use CPU contexts (cpu:0,cpu:1)')


def test_a_gpu_with_the_cpu_build(machine):
    machine(V100, RTX4090, seen=0, cuda=False)
    assert error_of(check_devices, gpus(1)) == (
        "gpu(1) does not exist (MXNet's CPU build cannot use Tesla V100, RTX 4090; python -m gluon_mgpu doctor says "
        'which build can): use CPU contexts (cpu:0,cpu:1)')


def test_a_gpu_with_a_driver_too_old(machine):
    machine(V100, seen=0)
    assert error_of(check_devices, gpus(0)) == (
        'gpu(0) does not exist (MXNet cannot see Tesla V100, possibly because the driver for CUDA 12.4 is too old): '
        'use CPU contexts (cpu:0,cpu:1)')


@pytest.mark.parametrize('seen', [0, 2])   # MXNet's CPU build, or one with CUDA: the message is about the GPU
def test_a_gpu_that_the_wheel_has_no_code_for(machine, seen):
    machine(RTX4090, H200, seen=seen)
    assert error_of(check_devices, gpus(1)) == (
        'gpu(1) is NVIDIA H200 (compute capability 9.0), and this MXNet has code only for 5.0 to 8.9: '
        f'use {"gpu:0 or " if seen else ""}the revived MXNet 2 (https://github.com/smolix/mxnet) or CPU contexts '
        '(cpu:0,cpu:1)')


@pytest.mark.parametrize('text', ['gpu:all', 'gpu:0-2', 'gpu:2,gpu:1'])
def test_a_gpu_without_code_in_the_middle(machine, text):
    machine(V100, K80, RTX4090)
    assert error_of(parse_devices, text) == (
        'gpu(1) is Tesla K80 (compute capability 3.7), and this MXNet has code only for 5.0 to 8.9: '
        'use gpu:0,gpu:2 or CPU contexts (cpu:0,cpu:1)')
    assert parse_devices('gpu:0,gpu:2') == gpus(0, 2) == try_all_gpus()
    assert [try_gpu(0), try_gpu(1), try_gpu(2)] == [mx.gpu(0), mx.cpu(1), mx.gpu(2)]
    assert devices_from(1) == gpus(0)
    assert error_of(devices_from, 2).startswith('gpu(1) is Tesla K80')


def test_gpus_that_the_environment_hides(machine, monkeypatch):
    machine(V100)
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '3')
    assert error_of(check_devices, gpus(3)) == (
        "gpu(3) does not exist (MXNet sees 1; CUDA_VISIBLE_DEVICES='3' may hide some): use gpu:0")


def test_mig_instances(machine):
    machine(A100_PART)
    assert try_all_gpus() == parse_devices('gpu:all') == gpus(0)
    assert error_of(devices_from, 2) == (
        'gpu(1) does not exist (MXNet sees 1, a process can use only one MIG instance): use gpu:0')


def test_the_gpus_of_workers(machine):
    machine(V100, RTX4090)
    assert [gpu_module.gpu_of_worker(i) for i in range(3)] == [0, 1, 2]  # check_devices rejects gpu(2)
    assert [gpu_module.uuid_of(i) for i in range(3)] == ['', '', '']
    machine(A100_PART)  # each worker sees its own instance
    assert [gpu_module.gpu_of_worker(i) for i in range(3)] == [0, 0, 0]
    assert gpu_module.uuid_of(0) == A100_PART.uuid


def test_a_gpu_that_the_revived_build_has_no_code_for(machine):
    machine(V100, H200, code_for=REVIVED)
    assert check_devices(gpus(1)) == gpus(1)
    assert error_of(check_devices, gpus(0)) == (
        'gpu(0) is Tesla V100 (compute capability 7.0), and this MXNet has code only for 8.0 to 12.1: '
        'use gpu:1 or mxnet-cu112 or CPU contexts (cpu:0,cpu:1)')


def test_a_gpu_that_no_build_has_code_for(machine):
    machine(K80)
    assert error_of(check_devices, gpus(0)).endswith('5.0 to 8.9: use CPU contexts (cpu:0,cpu:1)')


def test_several_omp_threads_on_several_cpu_contexts(machine, monkeypatch):
    machine(V100, V100)
    monkeypatch.setattr(module, 'omp_threads', lambda: 2)
    monkeypatch.setattr(mx, '__version__', '1.9.1')
    for by_the_user in ('2', ' +02'):
        monkeypatch.setenv('OMP_NUM_THREADS', by_the_user)
        assert error_of(check_devices, cpus(0, 1)) == (
            "OMP_NUM_THREADS=2 with 2 CPU contexts hangs in MXNet's OpenBLAS: unset it or set it to 1")
    for valid in (cpus(0), gpus(0, 1), [*gpus(0, 1), mx.cpu(0)]):
        assert check_devices(valid) == valid
    monkeypatch.setattr(mx, '__version__', '2.0.0')
    assert check_devices(cpus(0, 1)) == cpus(0, 1)


@pytest.mark.slow
@pytest.mark.skipif(compat.MXNET_MAJOR >= 2, reason='MXNet 2 does not hang')
def test_omp_num_threads_set_by_the_user_is_rejected():
    code = 'from gluon_mgpu.devices.lists import parse_devices; parse_devices("cpu:0-2")'
    done = subprocess.run([sys.executable, '-c', code], env={**os.environ, 'OMP_NUM_THREADS': '3'},
                          capture_output=True, text=True, timeout=120)
    assert done.stderr.splitlines()[-1].startswith('ValueError: OMP_NUM_THREADS=3 with 3 CPU contexts hangs')


@pytest.mark.skipif(compat.MXNET_MAJOR >= 2 or sys.platform != 'linux' or this_machine.num_cores() < 2,
                    reason='needs MXNet 1, libgomp and two cores')
@pytest.mark.parametrize(('first', 'works'), [
    ('ctypes.CDLL("libgomp.so.1"); import gluon_mgpu', False),
    slow('ctypes.CDLL("libgomp.so.1"); os.environ["OMP_NUM_THREADS"] = "1"; import gluon_mgpu', False),  # too late
    slow('import gluon_mgpu; ctypes.CDLL("libgomp.so.1")', True),
    ('os.environ["OMP_NUM_THREADS"] = "1"; ctypes.CDLL("libgomp.so.1"); import gluon_mgpu', True)])
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
        assert done.stderr.splitlines()[-1] == (
            f"ValueError: 2 CPU contexts would hang in MXNet's OpenBLAS with {threads} threads of OpenMP, which "
            'another library has loaded before gluon_mgpu: export OMP_NUM_THREADS=1; or import gluon_mgpu before it '
            '(PyTorch, LightGBM or mxnet) in your program')


def test_there_are_no_gpus_if_mxnet_fails_to_count_them(monkeypatch):
    def fail():
        raise mx.base.MXNetError('CUDA driver version is insufficient for CUDA runtime version')
    monkeypatch.setattr(npx, 'num_gpus', fail)
    assert num_mxnet_gpus() == 0


@pytest.mark.skipif(compat.MXNET_MAJOR >= 2, reason='MXNet 2 has only NumPy semantics')
def test_a_look_at_devices_keeps_the_semantics():
    code = ('import gluon_mgpu as d2l; from gluon_mgpu.devices import parse_devices; import mxnet as mx\n'
            'd2l.try_gpu(0), d2l.try_all_gpus(), parse_devices("cpu:0-2")\n'
            'print(mx.util.is_np_array(), mx.util.is_np_shape())\n'
            'd2l.split_batch\n'
            'print(mx.util.is_np_array(), mx.util.is_np_shape())')
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=120)
    assert done.stdout == 'False False\nTrue True\n', done.stderr
