"""Truncated, altered and forged files are rejected with one line, within a second and with little memory.

They are read in a subprocess that may use 256 MB more, so that a crash or a large allocation fails the test.
"""
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from runs import outcome, run

from gluon_mgpu.checkpoints import checkpoint

READ_ALL = """
import resource, sys, time
sys.path[:0] = [{tests!r}]
from gluon_mgpu.data import idx
import faults_of_files

size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**28, size + 2**28))
slowest, rejected = 0, 0
for what, content in faults_of_files.{kind}({long}):
    with open({path!r}, 'wb') as file:
        file.write(content)
    began = time.process_time()
    try:
        faults_of_files.READERS[{kind!r}]({path!r})
        sys.exit(f'accepted: {{what}}')
    except ValueError as error:
        if len(str(error).splitlines()) != 1:
            sys.exit(f'{{what}}: {{error}}')
        rejected += 1
    slowest = max(slowest, time.process_time() - began)
    if slowest > 1:
        sys.exit(f'{{what}}: took {{slowest:.1f}} s')
print(rejected)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='memory can be limited only on Linux')
def test_damaged_files_are_rejected(tmp_path, long, count):
    def read_all(kind):
        code = READ_ALL.format(tests=str(Path(__file__).parent), kind=kind, long=long, path=str(tmp_path / kind))
        return subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=False, timeout=600)

    kinds = {'checkpoints': 'a corrupted checkpoint', 'images': 'a corrupted IDX file',
             'labels': 'a corrupted IDX file'}
    with ThreadPoolExecutor(2) as pool:
        for what, done in zip(kinds.values(), pool.map(read_all, kinds)):
            assert done.returncode == 0, done.stdout + done.stderr
            assert int(done.stdout) > 50
            count(f'{what}: rejected within a second', int(done.stdout))


@pytest.mark.slow
def test_resume_auto_falls_back_to_the_previous_checkpoint(scratch_command, uninterrupted, complete_run, count):
    """--resume auto reports a broken checkpoint and uses the previous one; --resume PATH rejects it."""
    newest = complete_run / 'checkpoint-00000024.safetensors'
    newest.write_bytes(newest.read_bytes()[:-7])
    rejected = run([*scratch_command, '--resume', newest])
    assert rejected.returncode == 2
    assert re.fullmatch(rf'scratch: {newest}: truncated or altered, or not a checkpoint of gluon_mgpu',
                        rejected.stderr.splitlines()[-1])
    done = run([*scratch_command, '--out-dir', complete_run, '--resume', 'auto'])
    assert done.returncode == 0, done.stderr
    assert f'{newest}: truncated or altered' in done.stderr and '; skipped' in done.stderr
    assert f'resuming from {complete_run}/checkpoint-00000016.safetensors' in done.stdout
    assert outcome(complete_run) == uninterrupted
    count('the newest checkpoint broken: the previous one resumed with equal results')


def test_reading_a_checkpoint_runs_no_code(tmp_path):
    """A pickle that creates a file when it is loaded is rejected without being loaded."""
    import pickle

    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / 'run',)

    (tmp_path / 'a').write_bytes(pickle.dumps(Trap()))
    with pytest.raises(checkpoint.CheckpointError, match='not a checkpoint of gluon_mgpu'):
        checkpoint.read(tmp_path / 'a')
    assert not (tmp_path / 'run').exists()
