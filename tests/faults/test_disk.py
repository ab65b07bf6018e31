"""A full disk, a folder that vanishes or may not be written: training goes on and says so, or ends if asked to."""
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runs import listing, outcome, run

from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.checkpoints.callback import checkpoints

pytestmark = pytest.mark.slow
LIMIT = 2**18  # bytes: half of LeNet's checkpoint


def full_disk():
    """For this process, no file may be larger; what writes more gets an error, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


def test_a_full_disk(scratch_command, whole, begun, count):
    before = {path: Path(path).read_bytes() for path in listing(begun)}
    flags = ['--num-epochs', '3', '--resume', begun]
    done = run([*scratch_command, *flags], preexec_fn=full_disk)
    assert done.returncode == 0, done.stderr
    line = rf'no checkpoint can be written in {begun} \(File too large\), the last one is checkpoint-0*8.safetensors'
    assert re.findall(rf'{line}; training continues', done.stderr) and 'Traceback' not in done.stderr
    assert done.stderr.count('training continues') == 1  # in the last epoch, of both
    assert 'epoch 3/3' in done.stdout and 'test acc: ' in done.stdout
    kept = begun / 'checkpoint-00000008.safetensors'
    assert kept.read_bytes() == before[str(kept)] and [p.name for p in checkpoints(begun)] == [kept.name]
    assert not list(begun.glob('*.part'))
    # With space again, it goes on from there
    assert run([*scratch_command, *flags]).returncode == 0
    assert outcome(begun) == whole
    count('a disk that is full: trained on, resumed to the bit')


def test_a_full_disk_when_checkpoints_are_required(scratch_command, begun, count):
    flags = ['--num-epochs', '9', '--require-checkpoint', '--resume', begun]
    done = run([*scratch_command, *flags], preexec_fn=full_disk)
    assert done.returncode == 1
    assert re.fullmatch(rf'scratch: no checkpoint can be written in {begun} \(File too large\), the last one is '
                        r'checkpoint-00000008\.safetensors', done.stderr.splitlines()[-1])
    assert 'Traceback' not in done.stderr and 'epoch 4/9' not in done.stdout
    count('a disk that is full, with --require-checkpoint: ended')


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own that holds one checkpoint, and not a second beside it."""
    folder = tmp_path / 'disk'
    folder.mkdir()
    if run(['mount', '-t', 'tmpfs', '-o', 'size=700000', 'tmpfs', folder]).returncode:
        pytest.skip('may not mount a file system here')
    yield folder
    run(['umount', folder])


def test_a_file_system_that_is_full(scratch_command, small_disk, count):
    out = small_disk / 'run'
    done = run([*scratch_command, '--out-dir', out])
    assert done.returncode == 0, done.stderr
    assert 'No space left on device' in done.stderr and 'Traceback' not in done.stderr
    assert [p.name for p in checkpoints(out)] == ['checkpoint-00000008.safetensors']
    checkpoint.read(checkpoints(out)[0])
    count('a file system that is full: trained on')


def test_a_folder_that_vanishes(scratch_command, tmp_path, count):
    out = tmp_path / 'run'
    command = [*scratch_command, '--out-dir', str(out)]
    command.remove('--no-plot')
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith('epoch 1/'):
                process.send_signal(signal.SIGSTOP)
                while out.exists():  # until it stands still, it may write something there
                    shutil.rmtree(out, ignore_errors=True)
                process.send_signal(signal.SIGCONT)
                break
        out_text, err = process.stdout.read(), process.stderr.read()
    assert process.returncode == 0, err
    assert 'Traceback' not in err and 'test acc: ' in out_text
    assert 'No such file or directory): training continues' in err
    assert f'{out}/accuracy.png cannot be written' in err
    count('a folder that vanishes: trained on')


@pytest.fixture
def write_protect(request, tmp_path):
    """A folder, and a function that makes it one that may not be written, by anyone: root may write everywhere else."""
    if os.getuid():
        yield tmp_path, lambda: tmp_path.chmod(0o555)
        tmp_path.chmod(0o755)
    else:
        folder = request.getfixturevalue('small_disk')
        yield folder, lambda: run(['mount', '-o', 'remount,ro', folder])


def test_a_folder_that_may_not_be_written(scratch_command, write_protect, count):
    folder, protect = write_protect
    protect()
    before = listing(folder)
    done = run([*scratch_command, '--out-dir', folder / 'run'])
    assert done.returncode == 2
    assert re.fullmatch(r"scratch: \[Errno \d+\] (Permission denied|Read-only file system): '.*run'\n", done.stderr)
    assert listing(folder) == before
    count('a folder that may not be written: refused')


def test_a_folder_that_may_no_longer_be_written(scratch_command, write_protect, count):
    folder, protect = write_protect
    with subprocess.Popen([*scratch_command, '--num-epochs', '6', '--out-dir', str(folder)], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert any(line.startswith('epoch 1/') for line in process.stdout)
        while not checkpoints(folder):
            assert process.poll() is None
        protect()
        out, err = process.stdout.read(), process.stderr.read()
    assert process.returncode == 0 and 'test acc: ' in out, err
    assert re.search(r'\((Permission denied|Read-only file system)\).*training continues', err)
    assert 'Traceback' not in err
    checkpoint.read(checkpoints(folder)[0])
    count('a folder that may no longer be written: trained on')


@pytest.mark.parametrize('redirection', ['| head -1', '> /dev/full', '2>&-', '>&- 2>&-', '> /dev/full 2> /dev/full'])
def test_output_that_cannot_be_written(redirection, scratch_command, whole, tmp_path, count):
    """Training does not depend on it."""
    command = f'{shlex.join([*scratch_command, "--out-dir", str(tmp_path / "run")])} {redirection}'
    done = run(['bash', '-c', f'set -o pipefail; {command}'])
    assert done.returncode == 0, done.stderr
    assert outcome(tmp_path / 'run') == whole
    if redirection in ('| head -1', '> /dev/full'):
        reason, times = ('Broken pipe', 1) if 'head' in redirection else ('No space left on device', 5)
        lines = [line for line in done.stderr.splitlines() if 'storage.cc' not in line]  # MXNet 2 prints one of its own
        assert lines == [f'stdout cannot be written ({reason})'] * times
    count('an output that cannot be written: trained on')


def test_output_that_cannot_be_written_is_an_error_where_it_is_the_result(complete):
    command = shlex.join([sys.executable, '-m', 'gluon_mgpu.plot', str(complete), '--out', str(complete / 'a.png')])
    done = run(['bash', '-c', f'{command} > /dev/full'])
    assert (done.returncode, done.stderr) == (2, 'plot: [Errno 28] No space left on device\n')
