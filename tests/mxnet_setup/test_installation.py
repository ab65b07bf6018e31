"""Tests of the one-line messages with a remedy, for each reason why MXNet cannot be imported.

Programs run in interpreters without site-packages (``-S``), where `mxnet` and `numpy` are small fakes.
"""
import _ctypes
import shutil
import subprocess
import sys

import pytest
from fake_packages import CAUGHT, MXNET, REPO

from gluon_mgpu.mxnet_setup import installation

LOAD = 'from gluon_mgpu.mxnet_setup import runtime; runtime.import_mxnet()'
CPU, CU112 = ('pip install . && pip install --no-deps mxnet==1.9.1 in the folder ',
              "pip install '.[cu112]' && pip install --no-deps mxnet-cu112==1.9.1 in the folder ")


def cannot_open(library):
    return f'raise OSError("{library}: cannot open shared object file: No such file or directory")'


def test_fake_packages_can_be_loaded(site):
    result = site('-c', LOAD)
    assert (result.returncode, result.stdout, result.stderr) == (0, 'mxnet was imported\n', '')


@pytest.mark.parametrize(('fakes', 'reason', 'remedy'), [
    ({'mxnet': None, 'dists': ()}, 'MXNet is not installed', CPU),
    ({'mxnet': None, 'numpy': None, 'dists': ()}, 'MXNet is not installed',
     f'for NVIDIA GPUs up to compute capability 8.9 {CU112}'),
    ({'mxnet': '', 'dists': ()}, 'MXNet is not installed', CPU),  # a folder without code
    ({'mxnet': 'raise RuntimeError("two\\nlines")'}, '(RuntimeError: two lines)', 'pip uninstall it'),
    ({'numpy': None}, 'NumPy cannot be imported (ModuleNotFoundError', "'numpy>=1.22'"),
    ({'numpy': 'raise ImportError("\\n\\nbroken\\n")'}, 'NumPy cannot be imported (ImportError: broken)',
     "pip install --force-reinstall 'numpy>=1.22'"),
    ({'dists': ('mxnet-1.9.1', 'mxnet_cu112-1.9.1')}, 'mxnet and mxnet-cu112 are both installed',
     'pip uninstall -y mxnet mxnet-cu112, then pip install'),
    ({'mxnet': 'import distutils_of_old'}, 'The module distutils_of_old', 'pip install distutils_of_old'),
    ({'mxnet': 'raise ModuleNotFoundError("gone", name="distutils")'}, 'The module distutils',
     'pip install setuptools'),
    ({'mxnet': cannot_open('libgomp.so.1')}, 'The library libgomp.so.1', 'apt install libgomp1'),
    ({'DMLC_ROLE': ''}, "DMLC_ROLE='' makes MXNet a server", 'unset DMLC_ROLE'),
    ({'DMLC_ROLE': 'scheduler', 'mxnet': 'import time; time.sleep(600)'}, "DMLC_ROLE='scheduler' makes MXNet a server",
     'unset DMLC_ROLE'),
    *(({module: f'raise ImportError("/a.so: {text}")'}, f'{name} cannot be imported (', remedy)
      for module, name in (('mxnet', 'MXNet'), ('numpy', 'NumPy')) for text, remedy in (
        ('failed to map segment from shared object', 'the memory is not enough; close other programs, or raise the'),
        ('cannot allocate memory in static TLS block', 'restart Python and import gluon_mgpu before other packages'),
        ("version `GLIBCXX_3.4.29' not found", 'the C++ library that is loaded is too old; unset LD_LIBRARY_PATH'))),
    ({'mxnet': 'raise RuntimeError("(" * 300)'}, '((...)', 'pip uninstall it'),
])
def test_one_line_with_the_remedy(site, fakes, reason, remedy):
    # With -S, Python before 3.14 does not know that it runs in a virtual environment
    result = site('-c', 'import sys; sys.prefix = "environment"' + CAUGHT, **fakes)
    assert result.returncode == 0, result.stderr
    assert reason in result.stdout
    assert remedy in result.stdout
    assert result.stdout.count('\n') == 1


def test_a_file_system_without_execution(site, tmp_path):
    """The loader's message is that of a lack of memory."""
    disk = tmp_path / 'disk'
    disk.mkdir()
    if subprocess.run(['mount', '-t', 'tmpfs', '-o', 'noexec', 'tmpfs', disk], capture_output=True).returncode:
        pytest.skip('mounting a file system is not permitted here')
    try:
        shutil.copy(_ctypes.__file__, disk / 'lib.so')
        result = site('-c', CAUGHT, mxnet=f'import ctypes; ctypes.CDLL("{disk}/lib.so")')
    finally:
        subprocess.run(['umount', disk], check=True)
    assert 'its file system is mounted with noexec; install it in another folder' in result.stdout, result.stderr


@pytest.mark.parametrize('library', ['libcuda.so.1', 'libcudnn.so.8'])
def test_no_driver(library, monkeypatch):
    # Without a driver the libraries of pip's wheels are not preloaded; the loader names the first it misses.
    monkeypatch.setattr(installation, 'loads', lambda name: False)
    monkeypatch.setattr(installation, 'installed_builds', lambda: ['mxnet-cu112'])
    problem, remedy = installation.explain(OSError(f'{library}: cannot open shared object file: No such file'))
    assert 'no NVIDIA driver here' in problem
    assert remedy.endswith(f'pip uninstall -y mxnet-cu112, then {CPU}{REPO}')


def test_missing_cuda_libraries_are_all_named(monkeypatch):
    monkeypatch.setattr(installation, 'loads', lambda name: name not in ('libcudnn.so.8', 'libnccl.so.2'))
    problem, remedy = installation.explain(OSError('libcudnn.so.8: cannot open shared object file: No such file'))
    assert '(libnccl.so.2, libcudnn.so.8)' in problem
    assert remedy == f'{CU112}{REPO}'


PART = 'import sys; sys.modules["mxnet.part"] = sys\n'  # as after the import of a part of it
FAILS_HALFWAY = f'{PART}raise ValueError("no numpy.bool")'
AGAIN = """
import sys
try:
    import mxnet
except ValueError:
    assert 'mxnet.part' in sys.modules and 'mxnet' not in sys.modules
""" + CAUGHT


def test_after_a_failed_import_python_must_be_restarted(site):
    """A notebook's user imports MXNet, which fails, and then adds the import of this package above."""
    line = ('the import of MXNet has failed in this process: restart Python, in a notebook the kernel, and import '
            'gluon_mgpu first\n')
    result = site('-c', AGAIN, mxnet=FAILS_HALFWAY)
    assert result.stdout == line and f'UserWarning: {line}' in result.stderr
    assert 'CPU contexts' not in result.stderr
    again = AGAIN.replace('    import mxnet\n', '    import mxnet\n    del sys.modules["mxnet"]; raise ValueError\n')
    second = site('-W', 'ignore', '-c', again, mxnet=PART)
    assert second.stdout == line, second.stderr  # also if the second import would succeed


def test_a_second_import_after_one_that_failed(site):
    result = site('-c', f'{CAUGHT}{CAUGHT}', mxnet=FAILS_HALFWAY)
    first, second = result.stdout.splitlines()
    assert first.startswith('MXNet cannot be imported (ValueError: no numpy.bool): pip uninstall')
    assert second.startswith('the import of MXNet has failed in this process: restart Python')


@pytest.mark.parametrize('arguments', [('-c', 'import gluon_mgpu.mxnet_setup.compat'), ('-m', 'another')])
def test_another_program_gets_the_exception(site, arguments, tmp_path):
    (tmp_path / 'another.py').write_text('import gluon_mgpu.mxnet_setup.compat\n')
    result = site(*arguments, mxnet=None, dists=())
    assert result.returncode == 1
    assert 'gluon_mgpu.mxnet_setup.installation.MXNetImportError: MXNet is not installed' in result.stderr


@pytest.mark.parametrize(('folders', 'builds'), [
    ([[]], []),
    ([['mxnet-1.9.1.dist-info', 'mxnet', 'mxnet_model_server-1.0.dist-info']], ['mxnet']),
    ([['mxnet_cu101mkl-1.6.0.dist-info', 'mxnet-1.9.1.dist-info']], ['mxnet', 'mxnet-cu101mkl']),
    ([[], ['mxnet_cu112-1.9.1.dist-info'], ['mxnet-1.9.1.dist-info']], ['mxnet-cu112']),
])
def test_installed_builds(folders, builds, tmp_path, monkeypatch):
    for number, names in enumerate(folders):
        (tmp_path / str(number)).mkdir()
        for name in names:
            (tmp_path / str(number) / name).mkdir()
    monkeypatch.setattr(sys, 'path', [str(tmp_path / name) for name in ('missing.zip', '0', '1', '2')])
    assert installation.installed_builds() == builds


@pytest.mark.parametrize(('requires', 'expected'), [
    (['numpy>=1.22', "mxnet==1.9.1; python_version < '3.13' and extra == 'cpu'",
      "mxnet-cu112==1.9.1; python_version < '3.13' and extra == 'cu112'",
      "nvidia-nccl-cu11==2.21.5; extra == 'cu112'"],
     ['mxnet==1.9.1', 'mxnet-cu112==1.9.1 nvidia-nccl-cu11==2.21.5']),
    (None, ['mxnet==1.9.1', 'mxnet-cu112==1.9.1']),
])
def test_the_remedy_outside_a_checkout_is_mxnets_own_wheel(requires, expected, monkeypatch, tmp_path):
    """Not this package's name: no index has it, so a stranger could publish a package under it."""
    def find(name):
        if requires is None:
            raise installation.metadata.PackageNotFoundError(name)
        return requires

    monkeypatch.setattr(installation, '__file__', str(tmp_path / 'gluon_mgpu' / 'mxnet_setup' / 'installation.py'))
    monkeypatch.setattr(installation.metadata, 'requires', find)
    assert [installation._pip(extra) for extra in ('cpu', 'cu112')] == [
        f'pip install --no-deps {wheels}' for wheels in expected]


OTHER_FINDER = """
import importlib.machinery, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.machinery.PathFinder.find_spec(name, ['elsewhere']) if name == 'mxnet' else None

sys.meta_path.append(Finder)
"""


def test_mxnet_of_another_finder(site, tmp_path):
    """As after an editable installation from source."""
    (tmp_path / 'elsewhere' / 'mxnet').mkdir(parents=True)
    (tmp_path / 'elsewhere' / 'mxnet' / '__init__.py').write_text(MXNET)
    result = site('-c', OTHER_FINDER + LOAD, mxnet=None, dists=())
    assert (result.returncode, result.stdout) == (0, 'mxnet was imported\n'), result.stderr


def test_looking_for_mxnet_raises_nothing(site):
    result = site('-c', 'import gluon_mgpu, importlib.util; importlib.util.find_spec("mxnet")', mxnet=None, dists=())
    assert (result.returncode, result.stderr) == (0, '')
