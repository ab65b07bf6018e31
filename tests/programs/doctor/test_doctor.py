"""Tests of the doctor as a program: each kind of fault comes first on the screen, with its remedy, and in the JSON."""
import numpy
import pytest
import stub_driver
from healthy import SELF_TEST

from gluon_mgpu.devices.nvidia_driver import Gpu
from gluon_mgpu.mxnet_setup import runtime
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR
from gluon_mgpu.programs.doctor.self_test import STAGES

NUMPY = '__version__ = "1.26.4"\n'
OTHERS = dict.fromkeys(('matplotlib', 'tqdm', 'requests', 'safetensors', 'PIL'), '')
MXNET = {'dists': ('mxnet-1.9.1',)}
HEALTHY = ('from gluon_mgpu.programs.doctor import doctor_report; '
           f'doctor_report.run_self_test = lambda timeout: {SELF_TEST!r}; ')
MAIN = 'import sys; from gluon_mgpu.programs.doctor.doctor_report import main; sys.exit(main(sys.argv[1:]))'


def cannot_open(library):
    return f'raise OSError("{library}: cannot open shared object file: No such file or directory")'


@pytest.mark.slow
@pytest.mark.parametrize(('mxnet', 'numpy', 'dists', 'what', 'remedy'), [
    ('', NUMPY, ('mxnet-1.9.1', 'mxnet_cu112-1.9.1'), 'mxnet and mxnet-cu112 are both installed',
     'pip uninstall -y mxnet mxnet-cu112, then pip install'),
    ('', None, ('mxnet-1.9.1',), 'NumPy cannot be imported', "pip install --force-reinstall 'numpy>=1.22'"),
    (cannot_open('libcuda.so.1'), NUMPY, ('mxnet_cu112-1.9.1',),
     'MXNet is built for CUDA, but there is no NVIDIA driver here', 'pip uninstall -y mxnet-cu112, then pip install'),
    (cannot_open('libquadmath.so.0'), NUMPY, ('mxnet-1.9.1',), 'The library libquadmath.so.0',
     'apt install libquadmath0'),
    ('raise RuntimeError("too short")', NUMPY, ('mxnet-1.9.1',), 'MXNet cannot be imported (RuntimeError: too short)',
     'pip uninstall it, then pip install'),
    ('import os, signal; os.kill(os.getpid(), signal.SIGILL)', NUMPY, ('mxnet-1.9.1',),
     'the self-test died of SIGILL while importing MXNet', 'pip install --force-reinstall --no-deps mxnet==1.9.1'),
], ids=['both builds', 'no NumPy', 'no driver', 'no libquadmath', 'broken', 'crash'])
def test_mxnet_cannot_be_imported(mxnet, numpy, dists, what, remedy, doctor, count):
    report = doctor(fakes={**OTHERS, 'mxnet': mxnet, **({'numpy': numpy} if numpy else {})}, dists=dists)
    fault, = report['findings']
    assert fault['level'] == 'fault' and fault['what'].startswith(what) and remedy in fault['remedy']
    assert report['mxnet']['builds'] == {dist.split('-')[0].replace('_', '-'): '1.9.1' for dist in dists}
    count('the doctor: MXNet cannot be imported')


@pytest.mark.slow
def test_mxnet_hangs_at_import(doctor):
    fakes = {**OTHERS, 'numpy': NUMPY, 'mxnet': 'import time; print("lost?", flush=True); time.sleep(600)'}
    report = doctor('--timeout', '5', fakes=fakes, **MXNET)
    fault, = report['findings']
    assert fault['what'] == 'the self-test was killed after 5 s while importing MXNet'
    assert '--timeout 300' in fault['remedy']
    assert report['self_test']['during'] == 'mxnet' and report['self_test']['driver']['gpus'] == []
    assert report['self_test']['stderr'] == ['lost?']


def test_the_names_that_were_supplied(doctor):
    report = doctor(program=('-c', HEALTHY + MAIN))
    assert report['numpy'] == {'version': numpy.__version__, 'supplied': list(runtime.prepare().names)}
    assert report['findings'] == []


def test_with_nothing_installed_one_command_is_enough(doctor):
    report = doctor(fakes={})
    assert [finding['what'] for finding in report['findings']] == ['MXNet is not installed']
    assert 'in the folder' in report['findings'][0]['remedy'] and 'error' in report['self_test']['mxnet']


@pytest.mark.slow
@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 does not hang')
def test_two_threads_per_context(doctor):
    report = doctor(OMP_NUM_THREADS='2')
    fault, = report['findings']
    assert fault['level'] == 'fault' and fault['what'].startswith('2 threads of OpenMP ') and fault['remedy']
    assert report['engine']['you']['OMP_NUM_THREADS'] == '2'


@pytest.mark.slow
def test_a_module_of_the_current_folder_is_not_run(doctor, tmp_path):
    """With ``gluon-mgpu doctor``; the program's folder is that of the script."""
    (tmp_path / 'json.py').write_text('raise SystemExit("of the current folder")')
    script = 'import sys; sys.path.remove(""); sys.path.remove(sys.argv.pop(1)); ' + MAIN
    report = doctor('--timeout', '60', program=('-c', script, str(tmp_path)))
    assert report['self_test']['arithmetic']['says'] and report['self_test']['during'] in ('', 'speed')


@pytest.mark.slow
def test_the_whole_doctor_on_a_machine_with_a_hopper_gpu(doctor, tmp_path, devices):
    """Uses a stub driver and the installed packages; the self-test runs completely."""
    if devices[0].device_type == 'gpu':
        pytest.skip('simulates a GPU, so it needs a machine without one')
    stub_driver.build(tmp_path)
    report = doctor(**stub_driver.environment(tmp_path, [Gpu(0, 'NVIDIA H200', (9, 0), 150754820096)]))
    assert report['can_train']
    if MXNET_MAJOR < 2:
        warning = next(finding for finding in report['findings'] if 'H200' in finding['what'])
        assert warning['what'].endswith('(compute capability 9.0), which the installed MXNet does not support')
        assert warning['remedy'] == 'to use it, install the revived MXNet 2 (https://github.com/smolix/mxnet)'
    test = report['self_test']
    assert (test['ended'], test['during'], test['stderr']) == ('well', '', [])
    assert test['devices'] == {'devices': ['cpu(0)', 'cpu(1)']}
    assert test['allreduce'] == {'says': 'sums over the devices are right'}
    assert test['speed']['says'].startswith('LeNet: ')  # no limit for the speed-up: other programs may run
    assert list(test)[:len(STAGES)] == list(STAGES)
