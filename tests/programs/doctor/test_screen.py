"""Tests of the screen."""
import pytest
from drivers import CUDA, H200, V100, driver
from healthy import facts_with

from gluon_mgpu.programs.doctor.screen import screen


@pytest.mark.parametrize(('changes', 'line'), [
    ({}, 'matrix products: with AVX2 (Zen kernels)'), ({}, 'bfloat16: without AMX, because the processor has none'),
    ({'cores__amx_obstacle': ''}, 'bfloat16: with AMX'),
    ({'cores__amx_obstacle': 'Linux refuses (no): do it'}, 'bfloat16: without AMX, because Linux refuses (no): do it'),
    ({'cores__bfloat16_obstacle': 'no avx512_bf16'}, 'bfloat16: no avx512_bf16'),
    ({'self_test__mxnet__openblas_kernels': 'Prescott'}, 'matrix products: without AVX2 (Prescott kernels)'),
    ({'self_test__driver': driver(V100, H200), 'self_test__mxnet': CUDA},
     'gpu(0): Tesla V100 (compute capability 7.0), 16.0 GiB: runs with mxnet-cu112'),
    ({'mxnet__builds': {}, 'mxnet__folder': None}, 'mxnet: none from pip, no folder'),
    ({'self_test__driver': {'gpus': [], 'reason': 'no NVIDIA driver'}},
     'gpus: none: no NVIDIA driver; training uses CPU contexts: a CPU core acts as a device')])
def test_the_lines_of_facts(changes, line):
    assert line in screen({'can_train': True, 'findings': [], **facts_with(**changes)}, width=200)


@pytest.mark.parametrize('width', [40, 80, 120])
def test_lines_break_between_words(width):
    fault = {'level': 'fault', 'what': 'two devices are only 1.1 times as fast as one ' * 3, 'remedy': 'wait ' * 30}
    lines = screen({'can_train': False, 'findings': [fault], **facts_with()}, width)
    assert max(map(len, lines)) <= width
    words = f'{fault["what"]}{fault["remedy"]}'.split()
    assert {*words} <= {*' '.join(lines).split()}
