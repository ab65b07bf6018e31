"""tools/make_venv.sh with fake Pythons: the one that it chooses, and installations that fail."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / 'tools' / 'make_venv.sh'

# The parts of Python that the script uses: the version, venv, which copies this file, and pip, which appends its
# arguments to $PIP_LOG and fails if $PIP_FAILS is set; the repair of MXNet does so if $REPAIR_FAILS is set
PYTHON = """#!/bin/sh
case "$*" in
  *sys.version*) echo {version} ;;
  *ensurepip*) exit {ensurepip} ;;
  '-m venv '*) mkdir "$3/bin" && cp "$0" "$3/bin/python" ;;
  '-m pip '*) echo "$*" >>"$PIP_LOG"; test -z "$PIP_FAILS" ;;
  *.arm64) echo "$*" >>"$PIP_LOG"; test -z "$REPAIR_FAILS" ;;
esac
"""
SHIM = '#!/bin/sh\necho "pyenv: python: command not found" >&2\nexit 127\n'


@pytest.fixture
def make_venv(tmp_path):
    """Return a function that puts programs on an otherwise bare PATH and runs the script."""
    binaries = tmp_path / 'bin'
    binaries.mkdir()
    for tool in ('bash', 'chmod', 'cp', 'ls', 'mkdir', 'rm', 'sh', 'touch', 'uname'):
        (binaries / tool).symlink_to(shutil.which(tool))

    def run(programs=None, arguments=('cpu,test',), **environment):
        for name, source in (programs or {}).items():
            (binaries / name).write_text(source)
            (binaries / name).chmod(0o755)
        env = {'PATH': str(binaries), 'HOME': str(tmp_path), 'PIP_LOG': str(tmp_path / 'pip.log')}
        env.update(environment)
        command = [shutil.which('bash'), str(SCRIPT), 'venv', *arguments]
        return subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=60)

    return run


def python(version, ensurepip=True):
    return PYTHON.format(version=version, ensurepip=0 if ensurepip else 1)


def test_the_first_usable_python_is_chosen(make_venv, tmp_path):
    result = make_venv({'python3.11': SHIM, 'python3.12': python('3.12.1', ensurepip=False),
                        'python3.10': python('3.10.13'), 'python3': python('3.14.0')})
    assert result.returncode == 0, result.stderr
    assert f'Creating venv with {tmp_path}/bin/python3.10' in result.stdout
    package, mxnet = (tmp_path / 'pip.log').read_text().splitlines()
    assert mxnet.endswith('--no-deps mxnet==1.9.1')
    assert package.endswith('--editable .[cpu,test]')
    assert (tmp_path / 'venv' / 'installed').exists()
    assert not (tmp_path / 'venv' / 'unfinished').exists()


def test_the_newest_tested_python_is_preferred(make_venv, tmp_path):
    programs = {f'python3.{minor}': python(f'3.{minor}.1') for minor in (9, 11, 13, 14)}
    assert f'with {tmp_path}/bin/python3.13 and' in make_venv({**programs, 'python3': python('3.15.0')}).stdout


@pytest.mark.parametrize('version', ['3.13.0', '3.14.2', '3.20.0'])
def test_a_newer_python_is_used_if_it_is_the_only_one(make_venv, tmp_path, version):
    assert f'with {tmp_path}/bin/python3 and' in make_venv({'python3': python(version)}).stdout


@pytest.mark.parametrize(('extras', 'wheel'), [('mxnet2,test', 'mxnet==2.0.0b1'), ('cu112,test', 'mxnet-cu112==1.9.1')])
def test_each_mxnet_is_installed_without_its_dependencies(make_venv, tmp_path, extras, wheel):
    make_venv({'python3': python('3.13.0')}, [extras])
    assert (tmp_path / 'pip.log').read_text().endswith(f' --no-deps {wheel}\n')


def test_the_documentation_needs_no_mxnet(make_venv, tmp_path):
    make_venv({'python3': python('3.13.0')}, ['docs'])
    assert 'mxnet' not in (tmp_path / 'pip.log').read_text()


def test_python3_is_used_if_it_is_the_only_one(make_venv, tmp_path):
    assert f'with {tmp_path}/bin/python3 and' in make_venv({'python3': python('3.9.18')}).stdout


def test_pyenv_is_searched(make_venv, tmp_path):
    folder = tmp_path / '.pyenv' / 'versions' / '3.10.13' / 'bin'
    folder.mkdir(parents=True)
    (folder / 'python').write_text(python('3.10.13'))
    (folder / 'python').chmod(0o755)
    assert f'with {folder}/python and' in make_venv({'python3': python('3.14.0')}).stdout


def test_no_usable_python(make_venv, tmp_path):
    result = make_venv({'python3.12': python('3.12.1', ensurepip=False), 'python3.11': SHIM,
                        'python3': python('3.8.18')})
    assert result.returncode == 1
    assert result.stderr == f"""\
No usable Python was found; this package needs Python 3.9 or newer. Found:
  {tmp_path}/bin/python3.12 (3.12.1 without venv, which is python3.12-venv on Debian and Ubuntu)
  {tmp_path}/bin/python3.11 (does not run)
  {tmp_path}/bin/python3 (3.8.18)
Install one, or select it: make ... PYTHON=/path/to/python3.13
"""
    assert not (tmp_path / 'venv').exists()


def test_no_python_at_all(make_venv):
    assert '  no Python at all\n' in make_venv().stderr


def test_a_named_python_is_the_only_one_tried(make_venv, tmp_path):
    programs = {'python3.11': python('3.11.7'), 'mine': python('3.9.1'), 'other': python('3.8.18')}
    assert f'with {tmp_path}/bin/mine and' in make_venv(programs, PYTHON='mine').stdout
    shutil.rmtree(tmp_path / 'venv')
    result = make_venv(PYTHON='other')
    assert result.returncode == 1
    assert f'  {tmp_path}/bin/other (3.8.18)\nInstall' in result.stderr
    assert '  /none/such (does not run)\nInstall' in make_venv(PYTHON='/none/such').stderr


def test_an_interrupted_installation_is_repeated(make_venv, tmp_path):
    result = make_venv({'python3': python('3.11.7')}, PIP_FAILS='yes')
    assert result.returncode == 1
    assert 'pip could not install' in result.stderr
    assert not (tmp_path / 'venv' / 'installed').exists()
    (tmp_path / 'venv' / 'half-written').touch()
    assert make_venv().returncode == 0
    assert (tmp_path / 'venv' / 'installed').exists()
    assert not (tmp_path / 'venv' / 'half-written').exists()


def test_an_existing_environment_is_used(make_venv, tmp_path):
    """The CPU build is not installed over a CUDA build."""
    assert make_venv({'python3': python('3.11.7')}).returncode == 0
    (tmp_path / 'venv' / 'kept').touch()
    result = make_venv()
    assert 'Creating' not in result.stdout
    assert (tmp_path / 'venv' / 'kept').exists()
    os.makedirs(tmp_path / 'venv' / 'lib' / 'python3.11' / 'site-packages' / 'mxnet_cu112-1.9.1.dist-info')
    assert make_venv().returncode == 0
    calls = (tmp_path / 'pip.log').read_text().splitlines()
    assert [call.split()[-1] for call in calls] == [*['.[cpu,test]', 'mxnet==1.9.1'] * 2, '.[test]']
    assert make_venv(arguments=['cu112,test']).returncode == 0
    assert (tmp_path / 'pip.log').read_text().endswith(' --no-deps mxnet-cu112==1.9.1\n')


@pytest.mark.parametrize(('machine', 'extras', 'repairs'), [
    ('Linux aarch64', 'cpu,test', 1), ('Linux aarch64', 'docs', 0), ('Linux x86_64', 'cpu,test', 0)])
def test_mxnet_is_repaired_on_arm64(make_venv, tmp_path, machine, extras, repairs):
    (tmp_path / 'bin' / 'uname').unlink()
    programs = {'python3': python('3.11.7'), 'uname': f'#!/bin/sh\necho {machine}\n'}
    assert make_venv(programs, [extras]).returncode == 0
    calls = (tmp_path / 'pip.log').read_text().splitlines()
    assert [call for call in calls if 'pip install' not in call] == ['-m gluon_mgpu.mxnet_setup.arm64'] * repairs


def test_mxnet_that_cannot_be_repaired(make_venv, tmp_path):
    """The next call does not install everything again."""
    (tmp_path / 'bin' / 'uname').unlink()
    programs = {'python3': python('3.11.7'), 'uname': '#!/bin/sh\necho Linux aarch64\n'}
    assert make_venv(programs, REPAIR_FAILS='yes').returncode == 1
    assert not (tmp_path / 'venv' / 'installed').exists()
    (tmp_path / 'venv' / 'kept').touch()
    assert make_venv().returncode == 0
    assert (tmp_path / 'venv' / 'kept').exists()
    assert (tmp_path / 'venv' / 'installed').exists()


def test_the_lowest_versions(make_venv, tmp_path):
    """uv installs them, with the Python for which they have wheels."""
    uv = '#!/bin/sh\necho "uv $*" >>"$PIP_LOG"\n'
    programs = {'python3.11': python('3.11.7'), 'python3.9': python('3.9.18').replace(
        'mkdir "$3/bin"', f"mkdir \"$3/bin\" && echo '{uv}' >\"$3/bin/uv\" && chmod +x \"$3/bin/uv\"")}
    result = make_venv(programs, arguments=['cpu,test', 'oldest'])
    assert result.returncode == 0, result.stderr
    assert f'with {tmp_path}/bin/python3.9 and' in result.stdout
    pip, uv, _mxnet = (tmp_path / 'pip.log').read_text().splitlines()
    assert pip.split()[-1].startswith('uv>=')
    assert uv.startswith('uv pip install ')
    assert '--python venv/bin/python --resolution lowest-direct' in uv
    assert uv.endswith('.[cpu,test]')


@pytest.mark.parametrize('arguments', [['cpu,test'], ['cpu,test', 'oldest']])
def test_pip_that_fails_leaves_nothing_that_looks_installed(make_venv, tmp_path, arguments):
    result = make_venv({'python3.9': python('3.9.18')}, arguments, PIP_FAILS='yes')
    assert result.returncode == 1
    assert 'pip could not install' in result.stderr
    assert not (tmp_path / 'venv' / 'installed').exists()
