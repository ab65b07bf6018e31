"""tools/make_venv.sh with fake Pythons: the one that it chooses, and installations that fail."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / 'tools' / 'make_venv.sh'
MARKER = '.gluon_mgpu-unfinished'

# The parts of Python that the script uses: the version, venv, which copies this file, and pip, which appends its
# arguments to $PIP_LOG and fails if $PIP_FAILS is set; the repair of MXNet does so if $REPAIR_FAILS is set.
# $MISSING are libraries of the system, $MXNET is the installed MXNet
PYTHON = """#!/bin/sh
case "$*" in
  *"import pip"*) exit {unsuitable} ;;
  *base_prefix*) echo Python {version} in /usr ;;
  *sys.version*) echo {version} ;;
  *ensurepip*) exit {ensurepip} ;;
  *CDLL*) printf "$MISSING" ;;
  *find_spec*) test -n "$MXNET" ;;
  '-m venv '*) mkdir "$3/bin" && cp "$0" "$3/bin/python" ;;
  '-m pip '*) echo "$*" >>"$PIP_LOG"; pwd >"$PIP_LOG.folder"; test -z "$PIP_FAILS" ;;
  *repair_arm64.py) echo "$*" >>"$PIP_LOG"; test -z "$REPAIR_FAILS" ;;
esac
"""
X86, ARM = ({'uname': f'#!/bin/sh\ncase $1 in -m) echo {machine} ;; *) echo Linux {machine} ;; esac\n'}
            for machine in ('x86_64', 'aarch64'))
SUDO = '' if os.geteuid() == 0 else 'sudo '
SHIM = '#!/bin/sh\necho "pyenv: python: command not found" >&2\nexit 127\n'


@pytest.fixture
def make_venv(tmp_path):
    """Return a function that puts programs on an otherwise bare PATH and runs the script.

    The result has the last word of each call of pip, and of the repair of MXNet, in `calls`.
    """
    binaries, log = tmp_path / 'bin', tmp_path / 'pip.log'
    binaries.mkdir()
    for tool in ('bash', 'chmod', 'cp', 'ls', 'mkdir', 'rm', 'sh', 'touch'):
        (binaries / tool).symlink_to(shutil.which(tool))

    def run(programs=None, arguments=('cpu,test',), cwd=tmp_path, **environment):
        for name, source in {**X86, **(programs or {})}.items():
            (binaries / name).parent.mkdir(parents=True, exist_ok=True)
            (binaries / name).write_text(source)
            (binaries / name).chmod(0o755)
        (tmp_path / 'tools').mkdir(exist_ok=True)
        log.write_text('')
        command = [shutil.which('bash'), shutil.copy(SCRIPT, tmp_path / 'tools'), 'venv', *arguments]
        env = {'PATH': str(binaries), 'HOME': str(tmp_path), 'PIP_LOG': str(log), **environment}
        done = subprocess.run(command, cwd=cwd, env=env, text=True, capture_output=True, timeout=60)
        done.calls = [call.split()[-1] for call in log.read_text().splitlines()]
        return done

    return run


def python(version, ensurepip=True, suitable=True):
    return PYTHON.format(version=version, ensurepip=0 if ensurepip else 1, unsuitable=0 if suitable else 1)


PYENV = '../.pyenv/versions/3.10.13/bin/python'


@pytest.mark.parametrize('programs, chosen', [
    ({'python3.11': SHIM, 'python3.12': python('3.12.1', ensurepip=False), 'python3.10': python('3.10.13'),
      'python3': python('3.14.0')}, 'python3.10'),
    ({f'python3.{minor}': python(f'3.{minor}.1') for minor in (10, 11, 13, 14)} | {'python3': python('3.15.0')},
     'python3.14'),
    ({'python3': python('3.20.0')}, 'python3'),
    ({PYENV: python('3.10.13'), 'python3': python('3.14.0')}, PYENV)])
def test_the_newest_tested_python_that_is_usable_is_chosen(make_venv, tmp_path, programs, chosen):
    result = make_venv(programs)
    assert result.returncode == 0, result.stderr
    assert f'Creating venv with {(tmp_path / "bin" / chosen).resolve()} and' in result.stdout
    assert (tmp_path / 'venv' / 'installed').exists()
    assert not (tmp_path / 'venv' / MARKER).exists()


@pytest.mark.parametrize(('extras', 'wheel'), [('cpu,test', 'mxnet==1.9.1'), ('cu112,test', 'mxnet-cu112==1.9.1'),
                                               ('mxnet2,test', 'mxnet==2.0.0b1')])
def test_mxnet_is_installed_unless_one_is_there(make_venv, tmp_path, extras, wheel):
    assert make_venv({'python3': python('3.13.0')}, [extras]).calls == ['pip>=21.3', f'.[{extras}]', wheel]
    _, package, mxnet = (tmp_path / 'pip.log').read_text().splitlines()
    assert '--editable' in package and '--no-deps' in mxnet
    (tmp_path / 'venv' / 'kept').touch()
    result = make_venv(arguments=[extras], MXNET='another')  # with its NumPy
    assert 'Creating' not in result.stdout and result.calls == ['pip>=21.3', '.[test]']
    assert (tmp_path / 'venv' / 'kept').exists()


def test_no_usable_python(make_venv, tmp_path):
    result = make_venv({'python3.12': python('3.12.1', ensurepip=False), 'python3.11': SHIM,
                        'python3': python('3.9.18')})
    assert result.returncode == 1
    assert result.stderr == f"""\
No usable Python was found; this package needs Python 3.10 or newer with venv. Found:
  {tmp_path}/bin/python3.12 (3.12.1 without venv)
  {tmp_path}/bin/python3.11 (does not run)
  {tmp_path}/bin/python3 (3.9.18)
Install it: {SUDO}apt-get install -y python3.12-venv libgomp1 libquadmath0
Or select another Python: make ... PYTHON=/path/to/python3.14
"""
    assert not (tmp_path / 'venv').exists()


def test_a_named_python_is_the_only_one_tried(make_venv, tmp_path):
    programs = {'python3.11': python('3.11.7'), 'mine': python('3.10.1'), 'other': python('3.9.18')}
    assert f'with {tmp_path}/bin/mine and' in make_venv(programs, PYTHON='mine').stdout
    shutil.rmtree(tmp_path / 'venv')
    result = make_venv(PYTHON='other')
    assert result.returncode == 1
    assert f'  {tmp_path}/bin/other (3.9.18)\nInstall' in result.stderr
    assert '  /none/such (does not run)\nInstall' in make_venv(PYTHON='/none/such').stderr


@pytest.mark.parametrize('arguments', [['cpu,test'], ['cpu,test', 'oldest']])
def test_an_interrupted_installation_is_repeated(make_venv, tmp_path, arguments):
    result = make_venv({'python3.10': python('3.10.13')}, arguments, PIP_FAILS='yes')
    assert result.returncode == 1
    assert 'pip could not install' in result.stderr
    assert not (tmp_path / 'venv' / 'installed').exists()
    (tmp_path / 'venv' / 'half-written').touch()
    assert make_venv().returncode == 0
    assert (tmp_path / 'venv' / 'installed').exists()
    assert not (tmp_path / 'venv' / 'half-written').exists()


def test_from_another_folder(make_venv, tmp_path):
    """The environment is made there, and this project is installed, not what lies there."""
    other = tmp_path / 'other'
    other.mkdir()
    assert make_venv({'python3': python('3.11.7')}, cwd=other).returncode == 0
    assert (other / 'venv' / 'installed').exists()
    assert Path((tmp_path / 'pip.log.folder').read_text().strip()).resolve() == tmp_path.resolve()


def test_another_python_than_that_of_an_existing_environment(make_venv, tmp_path):
    programs = {'python3.11': python('3.11.7'), 'same': python('3.11.7'), 'other': python('3.10.1')}
    (tmp_path / 'pyproject.toml').touch()
    assert make_venv(programs, PYTHON='same').returncode == 0
    for name, what in (('other', 'Python 3.10.1 in /usr'), ('/none/such', 'no Python that runs')):
        result = make_venv(PYTHON=name)
        assert (result.returncode, result.stderr) == (1, (
            f'venv has Python 3.11.7 in /usr, but PYTHON={name} is {what}. '
            "Delete venv, or run 'make clean', and make it again.\n"))
    result = make_venv(PYTHON='same')
    assert (result.returncode, result.calls) == (0, [])  # it is up to date


def test_an_environment_that_cannot_be_used(make_venv, tmp_path):
    """Such as one of Python 3.9, one without pip, made by uv, or one whose Python was uninstalled."""
    assert make_venv({'python3': python('3.11.7', suitable=False)}).returncode == 0
    message = ("venv has no Python 3.10 or newer that runs and has pip. "
               "Delete venv, or run 'make clean', and make it again.\n")
    result = make_venv()
    assert (result.returncode, result.stderr, result.calls) == (1, message, [])
    (tmp_path / 'venv/bin/python').unlink()
    assert make_venv().stderr == message
    shutil.rmtree(tmp_path / 'venv')
    (tmp_path / 'venv').symlink_to('missing')
    assert make_venv().stderr == message
    (tmp_path / 'missing').mkdir()
    for name in ('unfinished', MARKER):  # a folder that the script has not begun is kept
        (tmp_path / 'missing' / name).write_text('of the user')
        assert make_venv().stderr == message
        assert (tmp_path / 'missing' / name).read_text() == 'of the user'


@pytest.mark.parametrize(('machine', 'packages'), [
    (X86, 'libgomp1 libquadmath0'), (ARM, 'libgomp1 libopenblas0-pthread liblapacke')])
def test_missing_libraries_of_the_system(machine, packages, make_venv, tmp_path):
    """They are named before anything is installed, with one command that installs all of them."""
    programs = {'python3': python('3.11.7'), **machine}
    result = make_venv(programs, MISSING='libgomp.so.1\nlibother.so.0\n')
    assert result.returncode == 1
    assert result.stderr == f"""\
MXNet needs libraries that this system does not have: libgomp.so.1, libother.so.0
Install them: {SUDO}apt-get install -y python3-venv {packages}
"""
    assert not (tmp_path / 'venv').exists()
    fedora = make_venv({'dnf': '', **programs}, MISSING='libgomp.so.1').stderr
    assert f'Install them: {SUDO}dnf install -y python3 libgomp ' in fedora
    assert make_venv(arguments=['docs'], MISSING='libgomp.so.1').returncode == 0  # without MXNet


@pytest.mark.parametrize(('machine', 'extras', 'repairs'), [
    (ARM, 'cpu,test', 1), (ARM, 'docs', 0), (X86, 'cpu,test', 0)])
def test_mxnet_is_repaired_on_arm64(make_venv, tmp_path, machine, extras, repairs):
    result = make_venv({'python3': python('3.11.7'), **machine}, [extras])
    assert result.returncode == 0 and result.calls.count('tools/repair_arm64.py') == repairs


def test_mxnet_that_cannot_be_repaired(make_venv, tmp_path):
    """The next call repairs it, and does not install it again."""
    assert make_venv({'python3': python('3.11.7'), **ARM}, REPAIR_FAILS='yes').returncode == 1
    assert not (tmp_path / 'venv' / 'installed').exists()
    assert make_venv(ARM, MXNET='repairable').calls == ['pip>=21.3', '.[test]', 'tools/repair_arm64.py']
    assert (tmp_path / 'venv' / 'installed').exists()


def test_the_lowest_versions(make_venv, tmp_path):
    """uv installs them, with the Python for which they have wheels."""
    uv = '#!/bin/sh\necho "uv $*" >>"$PIP_LOG"\n'
    programs = {'python3.11': python('3.11.7'), 'python3.10': python('3.10.13').replace(
        'mkdir "$3/bin"', f"mkdir \"$3/bin\" && echo '{uv}' >\"$3/bin/uv\" && chmod +x \"$3/bin/uv\"")}
    result = make_venv(programs, arguments=['cpu,test', 'oldest'])
    assert result.returncode == 0, result.stderr
    assert f'with {tmp_path}/bin/python3.10 and' in result.stdout
    _pip, pip, uv, _mxnet = (tmp_path / 'pip.log').read_text().splitlines()
    assert pip.split()[-1].startswith('uv>=')
    assert uv.startswith('uv pip install ')
    assert f'--python {tmp_path}/venv/bin/python --resolution lowest-direct' in uv
    assert uv.endswith('.[cpu,test]')
