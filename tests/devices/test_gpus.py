"""Tests of the GPUs that MXNet sees and has code for, on simulated machines."""
import pytest
from machines import H200, K80, REVIVED, RTX4090, V100, cpus, gpus
from refused import refused

from gluon_mgpu.devices import (
    check_devices,
    devices_from,
    gpus as gpu_module,
    parse_devices,
    try_all_gpus,
    try_gpu,
)
from gluon_mgpu.devices.gpus import num_mxnet_gpus, why_no_gpus
from gluon_mgpu.devices.nvidia_driver import Gpu
from gluon_mgpu.mxnet_setup.compat import mx, npx

A100_PART = Gpu(0, 'NVIDIA A100-SXM4-40GB MIG 1g.5gb', (8, 0), 2**32, '9d8e7f6a-0000-4000-8000-0123456789ab')


def test_num_gpus_returns_cpu_contexts_without_gpus(machine):
    machine()
    assert devices_from(3) == cpus(0, 1, 2)
    assert why_no_gpus() == 'no NVIDIA GPU found'


@pytest.mark.parametrize('has, settings, number, line', [
    ([V100], {}, 1, 'gpu(1) does not exist (MXNet sees 1): use gpu:0'),
    ([], {}, 0, 'gpu(0) does not exist (no NVIDIA GPU found): use CPU contexts (cpu:0,cpu:1)'),
    ([V100, RTX4090], {'seen': 0, 'cuda': False}, 1,
     'gpu(1) does not exist (MXNet cannot use Tesla V100, RTX 4090; python -m gluon_mgpu doctor says why): use CPU '
     'contexts (cpu:0,cpu:1)'),
    # MXNet's CPU build, or one with CUDA: the message is about the GPU
    *(([RTX4090, H200], {'seen': seen}, 1,
       'gpu(1) is NVIDIA H200 (compute capability 9.0), and this MXNet has code only for 5.0 to 8.9: '
       f'use {other}the revived MXNet 2 (https://github.com/smolix/mxnet) or CPU contexts (cpu:0,cpu:1)')
      for seen, other in ((0, ''), (2, 'gpu:0 or '))),
    ([V100, H200], {'code_for': REVIVED}, 0,
     'gpu(0) is Tesla V100 (compute capability 7.0), and this MXNet has code only for 8.0 to 12.1: '
     'use gpu:1 or mxnet-cu112 or CPU contexts (cpu:0,cpu:1)'),
    ([K80], {}, 0, 'gpu(0) is Tesla K80 (compute capability 3.7), and this MXNet has code only for 5.0 to 8.9: '
     'use CPU contexts (cpu:0,cpu:1)')])
def test_gpus_that_cannot_be_used(machine, has, settings, number, line):
    machine(*has, **settings)
    assert refused(check_devices, gpus(number)) == line


def test_gpus_that_can_be_used(machine):
    machine(V100, H200, code_for=REVIVED)
    assert check_devices(gpus(1)) == gpus(1)


@pytest.mark.parametrize('text', ['gpu:all', 'gpu:0-2', 'gpu:2,gpu:1'])
def test_a_gpu_without_code_in_the_middle(machine, text):
    machine(V100, K80, RTX4090)
    assert refused(parse_devices, text) == (
        'gpu(1) is Tesla K80 (compute capability 3.7), and this MXNet has code only for 5.0 to 8.9: '
        'use gpu:0,gpu:2 or CPU contexts (cpu:0,cpu:1)')
    assert parse_devices('gpu:0,gpu:2') == gpus(0, 2) == try_all_gpus()
    assert [try_gpu(0), try_gpu(1), try_gpu(2)] == [mx.gpu(0), mx.cpu(1), mx.gpu(2)]
    assert devices_from(1) == gpus(0)
    assert refused(devices_from, 2).startswith('gpu(1) is Tesla K80')


def test_gpus_that_the_environment_hides(machine, monkeypatch):
    machine(V100)
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '3')
    assert refused(check_devices, gpus(3)) == (
        "gpu(3) does not exist (MXNet sees 1; CUDA_VISIBLE_DEVICES='3' may hide some): use gpu:0")


def test_the_gpus_of_workers(machine):
    machine(V100, RTX4090)
    assert [gpu_module.gpu_of_worker(i) for i in range(3)] == [0, 1, 2]  # check_devices rejects gpu(2)
    machine(A100_PART)  # each worker sees its own instance
    assert [gpu_module.gpu_of_worker(i) for i in range(3)] == [0, 0, 0]


def test_there_are_no_gpus_if_mxnet_fails_to_count_them(monkeypatch):
    def fail():
        raise mx.base.MXNetError('CUDA driver version is insufficient for CUDA runtime version')
    monkeypatch.setattr(npx, 'num_gpus', fail)
    assert num_mxnet_gpus() == 0
