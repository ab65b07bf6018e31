"""Tests of the screen."""

import pytest
from drivers import CUDA, H200, V100, driver
from healthy import facts_with

from gluon_mgpu.devices.nvidia_driver import Driver
from gluon_mgpu.programs.doctor import self_test
from gluon_mgpu.programs.doctor.screen import screen


@pytest.mark.parametrize(('changes', 'lines'), [
    ({}, ['matrix products with AVX2 (Zen kernels)', 'bfloat16 without AMX: the processor has none']),
    ({'cores__amx_obstacle': ''}, ['bfloat16 with AMX']),
    ({'cores__amx_obstacle': 'Linux 5.10 refuses (no): do that'}, ['bfloat16 without AMX: Linux 5.10 refuses (no)']),
    ({'cores__bfloat16_obstacle': 'this CPU has no avx512_bf16; use float32'},
     ['no bfloat16: this CPU has no avx512_bf16']),
    ({'self_test__mxnet__openblas_kernels': 'Prescott'}, ['matrix products without AVX2 (Prescott kernels)']),
])
def test_the_screen_shows_the_instructions_in_use(changes, lines):
    shown = screen({'can_train': True, 'findings': [], **facts_with(**changes)})
    assert {f'{"":12}{line}' for line in lines} <= {*shown}


def test_the_screen_of_a_machine_with_gpus():
    facts = facts_with(self_test__driver=driver(V100, H200), self_test__mxnet=CUDA, horovod__installed=True,
                       self_test__horovod={}, mxnet__builds={'mxnet-cu112': '1.9.1'})
    lines = ' '.join(line.strip() for line in screen({'can_train': True, 'findings': [], **facts}))
    for text in ('mxnet-cu112 1.9.1, with CUDA, /venv',
                 'gpu(0) Tesla V100 (compute capability 7.0), 16.0 GiB: runs with mxnet-cu112',
                 'gpu(1) NVIDIA H200 (compute capability 9.0), 128.0 GiB: runs with the revived MXNet 2',
                 'works with this MXNet'):
        assert text in lines


def test_the_screen_shows_why_the_driver_has_no_gpus(monkeypatch):
    answer = Driver([], None, 'no NVIDIA driver: libcuda.so.1 cannot be loaded')
    monkeypatch.setattr(self_test, 'ask_driver', lambda: answer)
    monkeypatch.setattr('gluon_mgpu.devices.gpus.ask_driver', lambda: answer)
    monkeypatch.setattr('gluon_mgpu.devices.gpus.num_mxnet_gpus', lambda: 0)
    facts = facts_with(self_test__driver=self_test.driver(), self_test__mxnet=self_test.mxnet())
    assert f'gpus        none: {answer.reason}' in screen({'can_train': True, 'findings': [], **facts})
