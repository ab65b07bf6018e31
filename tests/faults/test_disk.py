"""A full disk, and a folder that vanishes: training continues."""
import re
import resource
import shlex
import shutil
import signal
from pathlib import Path

import new_process
import pytest
from runs import listing, outcome, run, start

from gluon_mgpu.checkpoints.run_folder import checkpoints

pytestmark = pytest.mark.slow
LIMIT = 2**18  # bytes: half of LeNet's checkpoint


def limit_file_size():
    """Limit the size of files in this process, so that writing a checkpoint fails as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


def test_a_full_disk(scratch_command, uninterrupted, short_run, count):
    before = {path: Path(path).read_bytes() for path in listing(short_run)}
    flags = ['--num-epochs', '3', '--resume', short_run]
    done = run([*scratch_command, *flags], preexec_fn=limit_file_size)
    assert done.returncode == 0, done.stderr
    assert re.search(r'safetensors cannot be written \(File too large\); the newest one is '
                     'checkpoint-0*8.safetensors; the run continues', done.stderr) and 'Traceback' not in done.stderr
    assert done.stderr.count('the run continues') == 1  # one warning for both epochs
    assert 'epoch 3/3' in done.stdout and 'test acc: ' in done.stdout
    kept = short_run / 'checkpoint-00000008.safetensors'
    assert kept.read_bytes() == before[str(kept)] and [p.name for p in checkpoints(short_run)] == [kept.name]
    assert not list(short_run.glob('*.part'))
    # With free space again, the run resumes from there
    assert run([*scratch_command, *flags]).returncode == 0
    assert outcome(short_run) == uninterrupted
    count('a full disk: training continued, resumed with equal results')


def test_a_folder_that_vanishes(scratch_command, tmp_path, count):
    out = tmp_path / 'run'
    command = [*scratch_command, '--num-epochs', '9', '--out-dir', str(out)]
    command.remove('--no-plot')
    with start(command, 'epoch 1/') as process:
        process.send_signal(signal.SIGSTOP)
        while out.exists():  # until it has stopped, it may still write there
            shutil.rmtree(out, ignore_errors=True)
        process.send_signal(signal.SIGCONT)
        out_text, err = process.communicate()
    assert process.returncode == 0, err
    assert 'Traceback' not in err and 'test acc: ' in out_text
    assert 'No such file or directory); the run continues' in err
    assert f'{out}/accuracy.png cannot be written' in err
    count('a folder that vanishes: training continued')


@pytest.mark.parametrize('redirection', ['| head -1', '> /dev/full', '2>&-', '>&- 2>&-', '> /dev/full 2> /dev/full'])
def test_output_that_cannot_be_written(redirection, scratch_command, uninterrupted, tmp_path, count):
    """Training continues, because its results are in files."""
    command = f'{shlex.join([*scratch_command, "--out-dir", str(tmp_path / "run")])} {redirection}'
    done = run(['bash', '-c', f'set -o pipefail; {command}'])
    assert done.returncode == 0, done.stderr
    assert outcome(tmp_path / 'run') == uninterrupted
    if redirection in ('| head -1', '> /dev/full'):
        reason = 'Broken pipe' if 'head' in redirection else 'No space left on device'
        assert new_process.errors(done.stderr) == [f'stdout cannot be written ({reason})']
    count('an output that cannot be written: training continued')
