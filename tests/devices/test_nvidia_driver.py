"""Tests of the driver query, with a fake library in Python and a stub made with the C compiler."""
import os
import shutil
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest
import stub_driver

import gluon_mgpu
from gluon_mgpu.devices import nvidia_driver
from gluon_mgpu.devices.nvidia_driver import LIBRARY, Gpu, ask_driver

# the H200 has more bytes than 32 bits can count
H200 = Gpu(0, 'NVIDIA H200', (9, 0), 150_754_820_096, '1a2b3c4d-0000-4000-8000-0123456789ab')
V100 = Gpu(1, 'Tesla V100-SXM2-16GB', (7, 0), 16_945_512_448, '1aaabbbb-0000-4000-8000-0123456789ab')
RTX4090 = Gpu(2, 'NVIDIA GeForce RTX 4090', (8, 9), 25_757_220_864, '9d8e7f6a-0000-4000-8000-0123456789ab')
GPUS = [H200, V100, RTX4090]


class FakeCuda:
    """Fake libcuda.so.1 with the given GPUs; functions named in `codes` fail with that code."""

    def __init__(self, gpus, **codes):
        self.gpus = gpus
        self.codes = codes

    def __getattr__(self, name):
        if name not in ANSWERS:
            raise AttributeError(name)

        def function(*args):
            if name not in self.codes:
                ANSWERS[name](self.gpus, *args)
            return self.codes.get(name, 0)
        return function


def _put(pointer, value):
    pointer._obj.value = value   # what C writes as *pointer = value


ANSWERS = {
    'cuDriverGetVersion': lambda gpus, out: _put(out, 12040),
    'cuInit': lambda gpus, flags: None,
    'cuDeviceGetCount': lambda gpus, out: _put(out, len(gpus)),
    # Handles need not be the indices
    'cuDeviceGet': lambda gpus, out, index: _put(out, 10 + index.value),
    'cuDeviceGetName': lambda gpus, out, size, device: setattr(
        out, 'value', gpus[device.value - 10].name.encode()[:size.value - 1]),
    'cuDeviceGetAttribute': lambda gpus, out, attribute, device: _put(
        out, gpus[device.value - 10].capability[{75: 0, 76: 1}[attribute.value]]),
    'cuDeviceTotalMem_v2': lambda gpus, out, device: _put(out, gpus[device.value - 10].memory),
    'cuDeviceGetUuid_v2': lambda gpus, out, device: setattr(out, 'raw', UUID(gpus[device.value - 10].uuid).bytes),
}
OPTIONAL = 'cuDeviceGetUuid_v2'  # only drivers from CUDA 11.4 on have it


@pytest.fixture
def install(monkeypatch):
    """Return a function that replaces the driver's library for this test."""
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)

    def replace(library):
        def load(name):
            assert name == LIBRARY
            if isinstance(library, Exception):
                raise library
            return library
        monkeypatch.setattr(nvidia_driver.ctypes, 'CDLL', load)
    return replace


def test_gpus_are_described(install):
    install(FakeCuda(GPUS))
    assert ask_driver() == (GPUS, (12, 4), '')


def test_no_driver(install):
    install(OSError(f'{LIBRARY}: cannot open shared object file'))
    assert ask_driver() == ([], None, f'no NVIDIA driver: {LIBRARY} cannot be loaded')


@pytest.mark.parametrize(('code', 'meaning'), [
    (100, 'no GPU'), (803, 'reboot'), (12345, 'CUresult')])
def test_cuinit_fails(install, code, meaning):
    install(FakeCuda(GPUS, cuInit=code))
    gpus, version, reason = ask_driver()
    assert (gpus, version) == ([], (12, 4))
    assert f'unusable NVIDIA driver, cuInit failed with {code}, ' in reason
    assert meaning in reason
    assert '\n' not in reason


@pytest.mark.parametrize('name', [name for name in ANSWERS if name not in ('cuInit', OPTIONAL)])
def test_any_other_call_fails(install, name):
    install(FakeCuda(GPUS, **{name: 999}))
    gpus, _, reason = ask_driver()
    assert gpus == []
    assert f'{name} failed with 999, unknown error' in reason


@pytest.mark.parametrize('name', [name for name in ANSWERS if name != OPTIONAL])
def test_library_without_a_function(install, monkeypatch, name):
    monkeypatch.delitem(ANSWERS, name)
    install(FakeCuda(GPUS))
    assert ask_driver().gpus == []
    assert ask_driver().reason == f'unusable NVIDIA driver, {LIBRARY} has no {name}'


def test_a_driver_without_uuids(install, monkeypatch):
    without = [gpu._replace(uuid='') for gpu in GPUS]
    install(FakeCuda(GPUS, cuDeviceGetUuid_v2=999))
    assert ask_driver().gpus == without
    monkeypatch.delitem(ANSWERS, OPTIONAL)
    install(FakeCuda(GPUS))
    assert ask_driver().gpus == without


def test_driver_with_no_gpu(install, monkeypatch):
    install(FakeCuda([]))
    assert ask_driver() == ([], (12, 4), 'the NVIDIA driver has no GPU')
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '-1')
    assert "CUDA_VISIBLE_DEVICES='-1'" in ask_driver().reason


@pytest.mark.parametrize(('capability', 'wheel', 'revived'), [
    ((3, 7), False, False), ((5, 0), True, False), ((7, 5), True, False), ((8, 0), True, True), ((8, 9), True, True),
    ((9, 0), False, True), ((12, 1), False, True), ((13, 0), False, False)])
def test_builds_with_code(capability, wheel, revived):
    builds = Gpu(0, 'x', capability, 0).builds()
    assert ('mxnet-cu112' in builds) is wheel
    assert any('revived' in build for build in builds) is revived


@pytest.fixture(scope='module')
def stub(tmp_path_factory):
    """Return a folder with a stub of the driver and a copy of the package, but no other packages."""
    folder = tmp_path_factory.mktemp('stub')
    stub_driver.build(folder)
    shutil.copytree(Path(gluon_mgpu.__file__).parent, folder / 'gluon_mgpu')
    return folder


def python(stub, gpus, *arguments, **environment):
    """Return the lines that Python without packages (-S) prints when the driver has these GPUs."""
    inherited = {name: value for name, value in os.environ.items()
                 if name not in ('PYTHONPATH', 'CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER')}
    done = subprocess.run([sys.executable, '-S', *arguments], cwd=stub, capture_output=True, text=True, timeout=60,
                          env={**inherited, **stub_driver.environment(stub, gpus), **environment})
    assert (done.returncode, done.stderr) == (0, '')
    return done.stdout.splitlines()


@pytest.fixture
def probe(stub):
    """Return a function that runs `python -m gluon_mgpu devices` on the stub."""
    return lambda **environment: python(stub, GPUS, '-m', 'gluon_mgpu', 'devices', **environment)


def test_program_lists_gpus_and_the_builds_that_support_them(probe):
    version, h200, v100, rtx4090, cores, mxnet = probe()
    revived = 'the revived MXNet 2 (https://github.com/smolix/mxnet)'
    assert version == 'NVIDIA driver for CUDA up to 12.4'
    assert h200 == f'gpu:0  NVIDIA H200 (compute capability 9.0), 140.4 GiB: runs with {revived}'
    assert v100 == 'gpu:1  Tesla V100-SXM2-16GB (compute capability 7.0), 15.8 GiB: runs with mxnet-cu112'
    assert rtx4090 == ('gpu:2  NVIDIA GeForce RTX 4090 (compute capability 8.9), 24.0 GiB: '
                       f'runs with mxnet-cu112 and {revived}')
    assert cores.startswith('cpu:0')
    assert mxnet == 'MXNet installed: none'


def test_program_prints_the_version_of_mxnet(stub, tmp_path):
    (tmp_path / 'mxnet_cu112-1.9.1.dist-info').mkdir()
    (tmp_path / 'mxnet_extras-7.dist-info').mkdir()  # another package
    code = f'import sys; sys.path.insert(0, {str(tmp_path)!r}); import gluon_mgpu.devices.gpus as gpus; gpus.main([])'
    assert python(stub, GPUS, '-c', code)[-1] == 'MXNet installed: mxnet-cu112 1.9.1'


def test_program_reports_why_there_are_no_gpus(probe):
    reason = probe(STUB_CUINIT='803', CUDA_VISIBLE_DEVICES='')[1]
    assert reason.startswith('no GPU: unusable NVIDIA driver, cuInit failed with 803, ')
    assert reason.endswith("; CUDA_VISIBLE_DEVICES='' may hide some")


A100 = Gpu(0, 'NVIDIA A100-SXM4-40GB MIG 1g.5gb', (8, 0), 5 * 2**30, '9d8e7f6a-0000-4000-8000-00000000000a')
OTHER_A100 = A100._replace(uuid='9d8e7f6a-0000-4000-8000-00000000000b')
NAMES = ('from gluon_mgpu.devices.nvidia_driver import ask_driver\n'
         'for gpu in ask_driver().gpus: print(gpu.index, gpu.name, gpu.uuid)')


@pytest.mark.parametrize(('visible', 'numbers'), [
    (None, [0, 1, 2]), ('2,0', [2, 0]), ('0,7,1', [0]), ('', []), (f'GPU-{V100.uuid},0', [1, 0])])
def test_the_numbers_are_those_of_the_visible_gpus(stub, visible, numbers):
    """In the stub as in NVIDIA's documentation, gpu(i) is the i-th visible GPU, not the driver's i-th."""
    environment = {} if visible is None else {'CUDA_VISIBLE_DEVICES': visible}
    assert python(stub, GPUS, '-c', NAMES, **environment) == [
        f'{i} {GPUS[number].name} {GPUS[number].uuid}' for i, number in enumerate(numbers)]


@pytest.mark.parametrize(('visible', 'expected'), [
    (None, A100), (f'MIG-{OTHER_A100.uuid},MIG-{A100.uuid}', OTHER_A100)])
def test_a_process_sees_one_mig_instance(stub, visible, expected):
    environment = {} if visible is None else {'CUDA_VISIBLE_DEVICES': visible}
    assert python(stub, [A100, OTHER_A100], '-c', NAMES, **environment) == [f'0 {expected.name} {expected.uuid}']
