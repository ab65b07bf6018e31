"""Files that are truncated, altered or made up: each refused in one line, at once, with little memory.

All are read in a process of their own that has 256 MB to live on: what took more, or crashed, would end it.
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
slowest, refused = 0, 0
for what, content in faults_of_files.{kind}({long}):
    with open({path!r}, 'wb') as file:
        file.write(content)
    began = time.perf_counter()
    try:
        faults_of_files.READERS[{kind!r}]({path!r})
        sys.exit(f'read as if it were whole: {{what}}')
    except ValueError as error:
        if len(str(error).splitlines()) != 1:
            sys.exit(f'{{what}}: {{error}}')
        refused += 1
    slowest = max(slowest, time.perf_counter() - began)
    if slowest > 1:
        sys.exit(f'{{what}}: took {{slowest:.1f}} s')
print(refused)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='limits memory as Linux does')
def test_each_is_refused(tmp_path, long, count):
    def read_all(kind):
        code = READ_ALL.format(tests=str(Path(__file__).parent), kind=kind, long=long, path=str(tmp_path / kind))
        return subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=False, timeout=600)

    kinds = {'checkpoints': 'a corrupted checkpoint', 'images': 'a corrupted IDX file',
             'labels': 'a corrupted IDX file'}
    with ThreadPoolExecutor(2) as pool:
        for what, done in zip(kinds.values(), pool.map(read_all, kinds)):
            assert done.returncode == 0, done.stdout + done.stderr
            assert int(done.stdout) > 50
            count(f'{what}: refused within a second', int(done.stdout))


@pytest.mark.slow
def test_the_checkpoint_before_is_taken(scratch_command, whole, complete, count):
    """With --resume auto, a broken newest one is told and passed over; with PATH it is refused."""
    newest = complete / 'checkpoint-00000024.safetensors'
    newest.write_bytes(newest.read_bytes()[:-7])
    refused = run([*scratch_command, '--resume', newest])
    assert refused.returncode == 2
    assert re.fullmatch(rf'scratch: {newest}: truncated or altered, or not a checkpoint of gluon_mgpu',
                        refused.stderr.splitlines()[-1])
    done = run([*scratch_command, '--out-dir', complete, '--resume', 'auto'])
    assert done.returncode == 0, done.stderr
    assert f'{newest}: truncated or altered' in done.stdout and '; trying the previous checkpoint' in done.stdout
    assert f'resuming from {complete}/checkpoint-00000016.safetensors' in done.stdout
    assert outcome(complete) == whole
    count('the newest checkpoint broken: the one before resumed to the bit')


def test_no_checkpoint_runs_code(tmp_path):
    """A pickle that would write a file when it is loaded: it is no checkpoint, and not loaded."""
    import pickle

    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / 'run',)

    (tmp_path / 'a').write_bytes(pickle.dumps(Trap()))
    with pytest.raises(checkpoint.CheckpointError, match='not a checkpoint of gluon_mgpu'):
        checkpoint.read(tmp_path / 'a')
    assert not (tmp_path / 'run').exists()
