"""tools/make_venv.sh with fake Pythons: which one it takes, and what an interruption leaves."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / 'tools' / 'make_venv.sh'

# A Python as far as the script uses one: it has a version, makes an environment (whose Python is this
# file again), and runs pip, which writes its arguments into $PIP_LOG and fails where $PIP_FAILS is set.
PYTHON = """#!/bin/sh
case "$*" in
  *sys.version*) echo {version} ;;
  *ensurepip*) exit {ensurepip} ;;
  '-m venv '*) mkdir "$3/bin" && cp "$0" "$3/bin/python" ;;
  '-m pip '*) echo "$*" >>"$PIP_LOG"; test -z "$PIP_FAILS" ;;
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


def test_the_first_that_runs_is_taken(make_venv, tmp_path):
    result = make_venv({'python3.11': SHIM, 'python3.12': python('3.12.1', ensurepip=False),
                        'python3.10': python('3.10.13'), 'python3': python('3.13.0')})
    assert result.returncode == 0, result.stderr
    assert f'Creating venv with {tmp_path}/bin/python3.10' in result.stdout
    assert (tmp_path / 'pip.log').read_text().endswith('--editable .[cpu,test]\n')
    assert (tmp_path / 'venv' / 'installed').exists()
    assert not (tmp_path / 'venv' / 'unfinished').exists()


def test_python3_will_do(make_venv, tmp_path):
    assert f'with {tmp_path}/bin/python3 and' in make_venv({'python3': python('3.9.18')}).stdout


def test_pyenv_is_looked_into(make_venv, tmp_path):
    folder = tmp_path / '.pyenv' / 'versions' / '3.10.13' / 'bin'
    folder.mkdir(parents=True)
    (folder / 'python').write_text(python('3.10.13'))
    (folder / 'python').chmod(0o755)
    assert f'with {folder}/python and' in make_venv({'python3': python('3.13.0')}).stdout


def test_none_is_usable(make_venv, tmp_path):
    result = make_venv({'python3.12': python('3.12.1', ensurepip=False), 'python3.11': SHIM,
                        'python3': python('3.13.0')})
    assert result.returncode == 1
    assert result.stderr == f"""\
No usable Python 3.9 to 3.12 was found; MXNet needs one of them. Found:
  {tmp_path}/bin/python3.11 (does not run)
  {tmp_path}/bin/python3.12 (3.12.1 without venv, which is python3.12-venv on Debian and Ubuntu)
  {tmp_path}/bin/python3 (3.13.0)
Install one, or select it: make ... PYTHON=/path/to/python3.11
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


def test_an_interrupted_installation_is_made_anew(make_venv, tmp_path):
    result = make_venv({'python3': python('3.11.7')}, PIP_FAILS='yes')
    assert result.returncode == 1
    assert 'pip could not install' in result.stderr
    assert not (tmp_path / 'venv' / 'installed').exists()
    (tmp_path / 'venv' / 'half-written').touch()
    assert make_venv().returncode == 0
    assert (tmp_path / 'venv' / 'installed').exists()
    assert not (tmp_path / 'venv' / 'half-written').exists()


def test_an_environment_that_is_there_is_used(make_venv, tmp_path):
    """Also one with the CUDA build, over which the CPU build must not be installed."""
    assert make_venv({'python3': python('3.11.7')}).returncode == 0
    (tmp_path / 'venv' / 'kept').touch()
    result = make_venv()
    assert 'Making' not in result.stdout
    assert (tmp_path / 'venv' / 'kept').exists()
    os.makedirs(tmp_path / 'venv' / 'lib' / 'python3.11' / 'site-packages' / 'mxnet_cu112-1.9.1.dist-info')
    assert make_venv().returncode == 0
    calls = (tmp_path / 'pip.log').read_text().splitlines()
    assert [call.split()[-1] for call in calls] == ['.[cpu,test]', '.[cpu,test]', '.[test]']
    assert make_venv(arguments=['cu112,test']).returncode == 0
    assert (tmp_path / 'pip.log').read_text().endswith(' .[cu112,test]\n')


def test_the_lowest_versions(make_venv, tmp_path):
    """By uv, on the Python that they have wheels for."""
    uv = '#!/bin/sh\necho "uv $*" >>"$PIP_LOG"\n'
    programs = {'python3.11': python('3.11.7'), 'python3.9': python('3.9.18').replace(
        'mkdir "$3/bin"', f"mkdir \"$3/bin\" && echo '{uv}' >\"$3/bin/uv\" && chmod +x \"$3/bin/uv\"")}
    result = make_venv(programs, arguments=['cpu,test', 'oldest'])
    assert result.returncode == 0, result.stderr
    assert f'with {tmp_path}/bin/python3.9 and' in result.stdout
    pip, uv = (tmp_path / 'pip.log').read_text().splitlines()
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
