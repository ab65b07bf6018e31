"""A training run does not grow: the engine is given no new scratch areas after the first epochs."""
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """
import sys
from gluon_mgpu import concise
from gluon_mgpu import scratch
from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.mxnet_setup.compat import mx
from gluon_mgpu.training.run import TrainingLog
import numpy

class Log(TrainingLog):
    def end_epoch(self, *args):
        super().end_epoch(*args)
        with open('/proc/self/statm') as file:
            print('MB', *(int(pages) * 4 // 1024 for pages in file.read().split()[:2]))

def batches(n):  # 2 of 8 rows, and a last one of 3
    return BatchIterator(numpy.zeros((n, 28, 28), 'uint8'), numpy.zeros(n, 'int32'), 8, 'zeros')

train = {'scratch': scratch.train, 'concise': concise.train}[sys.argv[1]]
train(2, 8, 0.01, num_epochs=10, devices=[mx.cpu(0), mx.cpu(1)], data=(batches(19), batches(11)),
      log=Log(10, quiet=True))
"""


@pytest.mark.skipif(not Path('/proc/self/statm').exists(), reason='needs /proc')
@pytest.mark.parametrize('chapter', ['scratch', 'concise'])
def test_memory_is_the_same_after_every_epoch(chapter):
    """Also with a smaller last batch, and evaluation in between. MB of addresses, and of memory."""
    done = subprocess.run([sys.executable, '-c', TRAIN, chapter], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sizes = [[int(word) for word in line.split()[1:]] for line in done.stdout.splitlines() if line[:2] == 'MB']
    assert len(sizes) == 10
    addresses, memory = zip(*sizes[2:])
    assert memory[0] > 50  # it is megabytes that were measured
    assert max(memory) - memory[0] < 16  # now and then two buffers of 9 MB are in use at once, where it was one
    assert max(addresses) - addresses[0] < 16
