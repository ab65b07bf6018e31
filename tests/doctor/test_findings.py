"""Tests of the problems found in facts, and of the screen."""
import pytest
from healthy import HOROVOD, SELF_TEST, facts_with

from gluon_mgpu.doctor.findings import diagnose, from_line
from gluon_mgpu.doctor.screen import screen

V100 = {'index': 0, 'name': 'Tesla V100', 'capability': [7, 0], 'memory': 2**34, 'builds': ['mxnet-cu112']}
H200 = {'index': 1, 'name': 'NVIDIA H200', 'capability': [9, 0], 'memory': 2**37,
        'builds': ['the revived MXNet 2 (url)']}
K80 = {'index': 0, 'name': 'Tesla K80', 'capability': [3, 7], 'memory': 2**33, 'builds': []}
CUDA = {'version': '1.9.1', 'cuda': True, 'num_gpus': 2, 'code_for': [[5, 0], [8, 9]], 'seconds': 1}


def driver(*gpus):
    return {'gpus': list(gpus), 'cuda_version': [12, 4], 'reason': ''}


def stopped(during, ended='was killed after 60 s'):
    stages = list(SELF_TEST)
    return {**{stage: SELF_TEST[stage] for stage in stages[:stages.index(during)]},
            'ended': ended, 'during': during, 'stderr': []}


def test_nothing_is_wrong():
    assert diagnose(facts_with()) == []


@pytest.mark.parametrize(('changes', 'level', 'what', 'remedy'), [
    ({'packages_missing': ['pooch', 'pillow']}, 'fault', 'not installed: pooch, pillow', 'pip install pooch pillow'),
    ({'self_test': stopped('driver')}, 'fault', 'the self-test was killed after 60 s while asking the NVIDIA driver',
     'nvidia-smi'),
    ({'self_test': stopped('step')}, 'fault', 'the self-test was killed after 60 s while training for one step',
     'on a slow or busy machine, use --timeout 300; otherwise report it'),
    ({'self_test': stopped('speed')}, 'warning', 'the self-test was killed after 60 s while training LeNet',
     'use --timeout 300'),
    ({'self_test': stopped('speed', 'died of SIGSEGV')}, 'fault', 'the self-test died of SIGSEGV while', '--json'),
    ({'self_test': stopped('step', 'died of SIGSEGV')}, 'fault', 'the self-test died of SIGSEGV while training for one',
     '--json'),
    ({'self_test': {'ended': 'could not be started (x)', 'during': '', 'stderr': []}}, 'warning',
     'the self-test could not be started (x)', 'in a shell'),
    ({'self_test__step': {'error': 'KeyError: a: b', 'remedy': 'rename it'}}, 'fault',
     'training for one step failed (KeyError: a: b)', 'rename it'),
    ({'self_test__step': {'error': 'KeyError: a: b', 'remedy': ''}}, 'fault',
     'training for one step failed (KeyError: a: b)', 'report it with the output of'),
    ({'self_test__step': {'error': 'KeyError: a: b', 'remedy': ''},
      'engine': [{'name': name, 'value': '4', 'by': 'you'} for name in ('MXNET_A', 'OMP_NUM_THREADS', 'MXNET_B')]},
     'fault', 'training for one step failed (KeyError: a: b)', 'unset MXNET_A MXNET_B'),
    ({'self_test__allreduce': {'right': False, 'wrong': ['ring', 'tree']}}, 'fault',
     'sums over the devices are wrong: ring, tree', 'do not train; report it'),
    ({'self_test__step': {'right': False, 'difference': None, 'tolerance': 0.01, 'reference': ['cpu(0)']}}, 'fault',
     'a training step differs from one on cpu(0) by more than 1%', 'do not train; report it'),
    ({'self_test__speed__speed_up': 1.1, 'self_test__speed__load': 1.9}, 'warning',
     'two devices are only 1.10 times as fast as one', 'repeat when the cores are idle (load 1.9 on 2 cores)'),
    ({'self_test__speed__speed_up': 1.1, 'engine': [{'name': 'MXNET_CPU_TEMP_COPY', 'value': '4', 'by': 'you'}]},
     'warning', 'two devices are only 1.10', 'unset MXNET_CPU_TEMP_COPY'),
    ({'self_test__speed__speed_up': 1.1}, 'warning', 'two devices are only 1.10', 'in a container'),
    ({'engine': [{'name': 'MXNET_ENGINE_TYPE', 'value': 'NaiveEngine', 'by': 'you'}],
      'self_test__speed__speed_up': 1.0}, 'warning', 'MXNET_ENGINE_TYPE=NaiveEngine', 'unset it'),
    ({'horovod__installed': True,
      'self_test__horovod__error': 'Horovod is not built for this MXNet (a: b): do this'}, 'warning',
     'Horovod is not built for this MXNet (a: b)', 'do this'),
    ({'horovod__installed': True, 'self_test': stopped('horovod', 'died of SIGSEGV')}, 'warning',
     'Horovod cannot be imported: the process died of SIGSEGV', HOROVOD),
    ({'self_test__driver': driver(V100)}, 'warning', 'gpu(0) is Tesla V100 (compute capability 7.0), but the CPU build',
     'to use it, pip uninstall -y mxnet, then '),
    ({'self_test__driver': driver(K80)}, 'warning', 'gpu(0) is Tesla K80 (compute capability 3.7), which no MXNet',
     'CPU contexts'),
    ({'self_test__driver': driver(V100), 'self_test__mxnet': {**CUDA, 'num_gpus': 0}}, 'warning',
     'gpu(0) is Tesla V100 (compute capability 7.0), but MXNet does not see it', 'update'),
    ({'self_test__driver': driver(V100, H200), 'self_test__mxnet': CUDA,
      'self_test__devices': {'error': 'gpu(1) is NVIDIA H200 (compute capability 9.0), and this MXNet has code only '
                                      'for 5.0 to 8.9: use CPU contexts'}},
     'fault', 'gpu(1) is NVIDIA H200 (compute capability 9.0), and this MXNet has code only', 'use CPU contexts'),
    ({'self_test__driver': driver(V100, {**V100, 'index': 1}, {**H200, 'index': 2}), 'self_test__mxnet': CUDA},
     'warning', 'gpu(2) is NVIDIA H200', 'install the revived MXNet 2 (url), or use CPU contexts'),
    ({'omp_threads': 2, 'self_test__devices': {'error': 'OMP_NUM_THREADS=2 hangs: unset it'}}, 'fault',
     'OMP_NUM_THREADS=2 hangs', 'unset it'),
    ({'disks__runs__free': 2**20}, 'warning', 'only 1 MB are free for runs in /data/runs', 'free 200 MB'),
    ({'disks__cache': {'folder': None, 'free': None, 'error': 'there is no home folder'}}, 'warning',
     'there is no home folder for downloaded data', 'XDG_CACHE_HOME'),
])
def test_problems(changes, level, what, remedy):
    facts = facts_with(**changes)
    found = diagnose(facts)
    assert (found[0].level, len([f for f in found if f.what == found[0].what])) == (level, 1)
    assert found[0].what.startswith(what) and remedy in found[0].remedy
    assert len(found) == 1
    report = {'can_train': level == 'warning', 'findings': [f._asdict() for f in found], **facts}
    lines = screen(report)
    assert lines[2].split(maxsplit=1)[0].lower() == level and found[0].what.startswith(lines[2].split(maxsplit=1)[1])
    assert len(lines) <= 30


@pytest.mark.parametrize('changes', [
    {'omp_threads': 4, 'self_test__mxnet__version': '2.0.0b1', 'mxnet__builds': {'mxnet': '2.0.0b1'}},  # does not hang
    {'cores__count': 1, 'self_test__speed__speed_up': 0.97},  # one core is all there is
    {'self_test__driver': driver({**V100, 'builds': ['mxnet-cu112']}), 'self_test__mxnet': CUDA},
    {'horovod__installed': True, 'self_test__horovod': {}},
])
def test_no_problem(changes):
    assert diagnose(facts_with(**changes)) == []


def test_faults_come_first():
    facts = facts_with(disks__cache={'folder': 'x', 'free': None, 'error': 'no'}, packages_missing=['tqdm'],
                       engine=[{'name': 'MXNET_ENGINE_TYPE', 'value': 'NaiveEngine', 'by': 'you'}],
                       self_test__allreduce={'right': False, 'wrong': ['ring']})
    assert [finding.level for finding in diagnose(facts)] == ['fault', 'fault', 'warning', 'warning']


@pytest.mark.parametrize(('line', 'what', 'remedy'), [
    ('a is b: do c', 'a is b', 'do c'), ('a (b: c (d: e)) f: do g: h', 'a (b: c (d: e)) f', 'do g: h'), ('a', 'a', '')])
def test_a_line_is_split_where_its_remedy_begins(line, what, remedy):
    assert from_line('fault', line) == ('fault', what, remedy)


def test_the_screen_of_a_machine_with_gpus():
    facts = facts_with(self_test__driver=driver(V100, H200), self_test__mxnet=CUDA, horovod__installed=True,
                       self_test__horovod={}, mxnet__builds={'mxnet-cu112': '1.9.1'})
    lines = ' '.join(line.strip() for line in screen({'can_train': True, 'findings': [], **facts}))
    for text in ('mxnet-cu112 1.9.1, with CUDA, for compute capability 5.0 to 8.9',
                 'for CUDA up to 12.4',
                 'Tesla V100, 16.0 GiB, compute capability 7.0, supported here; runs with mxnet-cu112',
                 'compute capability 9.0, not supported here; runs with the revived MXNet 2',
                 'works with this MXNet'):
        assert text in lines


def test_colour_on_a_terminal_only():
    report = {'can_train': False, 'findings': [{'level': 'fault', 'what': 'a', 'remedy': 'b'}], **facts_with()}
    assert '\033[1;31mFAULT' in '\n'.join(screen(report, colour=True))
    assert '\033' not in '\n'.join(screen(report))
