"""Tests of the problems found in facts, and of the screen."""
import pytest
from drivers import CUDA, H200, K80, V100, driver
from healthy import SELF_TEST, facts_with

from gluon_mgpu.programs.doctor.findings import diagnose
from gluon_mgpu.programs.doctor.screen import screen


def stopped(during, ended='was killed after 60 s'):
    stages = list(SELF_TEST)
    return {**{stage: SELF_TEST[stage] for stage in stages[:stages.index(during)]},
            'ended': ended, 'during': during, 'stderr': []}


def test_nothing_is_wrong():
    assert diagnose(facts_with()) == []


@pytest.mark.parametrize(('changes', 'level', 'what', 'remedy'), [
    ({'self_test': stopped('driver')}, 'fault', 'the self-test was killed after 60 s while asking the NVIDIA driver',
     'nvidia-smi'),
    ({'self_test': stopped('step')}, 'fault', 'the self-test was killed after 60 s while training for one step',
     'on a slow or busy machine, use --timeout 300; otherwise report it'),
    ({'self_test': stopped('speed')}, 'warning', 'the self-test was killed after 60 s while training LeNet',
     'use --timeout 300'),
    ({'self_test': stopped('speed', 'died of SIGSEGV')}, 'fault', 'the self-test died of SIGSEGV while', '--json'),
    ({'self_test': stopped('mxnet', 'died of SIGILL')}, 'fault', 'the self-test died of SIGILL while importing MXNet',
     'pip install --force-reinstall --no-deps mxnet==1.9.1; if that'),
    ({'self_test': stopped('mxnet', 'died of SIGABRT'), 'engine__you': {'MXNET_A': 'x'}}, 'fault',
     'the self-test died of SIGABRT while importing MXNet', 'unset MXNET_A'),
    ({'self_test__step': {'error': 'training for one step failed (KeyError: a: b)', 'remedy': 'report it'}}, 'fault',
     'training for one step failed (KeyError: a: b)', 'report it'),
    ({'self_test__speed__speed_up': 1.1, 'engine__you': {'MXNET_CPU_TEMP_COPY': '4'}},
     'warning', 'two devices are only 1.10', 'unset MXNET_CPU_TEMP_COPY'),
    ({'self_test__speed__speed_up': 1.1}, 'warning', 'two devices are only 1.10', 'in a container'),
    ({'self_test__driver': driver(V100)}, 'warning',
     'gpu(0) is Tesla V100 (compute capability 7.0), which the installed MXNet does not support',
     'to use it, pip '),
    ({'self_test__driver': driver(K80)}, 'warning',
     'gpu(0) is Tesla K80 (compute capability 3.7), which the installed MXNet does', 'CPU contexts'),
    ({'self_test__driver': driver(V100), 'self_test__mxnet': {**CUDA, 'num_gpus': 0}}, 'warning',
     'gpu(0) is Tesla V100 (compute capability 7.0), but MXNet does not see it', 'update'),
    ({'self_test__driver': driver(V100, H200), 'self_test__mxnet': CUDA,
      'self_test__devices': {'error': 'gpu(1) is NVIDIA H200 (compute capability 9.0), and this MXNet has code only '
                                      'for 5.0 to 8.9', 'remedy': 'use CPU contexts'}},
     'fault', 'gpu(1) is NVIDIA H200 (compute capability 9.0), and this MXNet has code only', 'use CPU contexts'),
    ({'self_test__driver': driver(V100, {**V100, 'index': 1}, {**H200, 'index': 2}), 'self_test__mxnet': CUDA},
     'warning', 'gpu(2) is NVIDIA H200 (compute capability 9.0), which the installed MXNet does not support',
     'to use it, install the revived MXNet 2 ('),
    ({'self_test': stopped('arithmetic', 'died of SIGILL')}, 'fault',
     'the self-test died of SIGILL while computing products', 'export DNNL_MAX_CPU_ISA=AVX2 OPENBLAS_CORETYPE='),
])
def test_problems(changes, level, what, remedy):
    facts = facts_with(**changes)
    found = diagnose(facts)
    assert (found[0].level, len([f for f in found if f.what == found[0].what])) == (level, 1)
    assert found[0].what.startswith(what) and remedy in found[0].remedy
    assert len(found) == 1
    report = {'can_train': level == 'warning', 'findings': [f._asdict() for f in found], **facts}
    title, first = screen(report)[2].split(': ', maxsplit=1)
    assert title.lower() == level and found[0].what.startswith(first)


@pytest.mark.parametrize('changes', [
    {'cores__count': 1, 'self_test__speed__speed_up': 0.97},  # one core is all there is
    {'self_test__driver': driver(V100), 'self_test__mxnet': CUDA},
])
def test_no_problem(changes):
    assert diagnose(facts_with(**changes)) == []


def test_faults_come_first():
    facts = facts_with(self_test__speed__speed_up=1.1, self_test__step={'error': 'a', 'remedy': 'b'})
    assert [finding.level for finding in diagnose(facts)] == ['fault', 'warning']
