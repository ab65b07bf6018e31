"""Memory does not grow from epoch to epoch, or from one call of `train` to the next in the same process."""
import itertools
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

EPOCHS, LAST_EPOCHS = 16, 8  # the first ones allocate memory and are not compared
CALLS, LAST_CALLS = 7, 4

BEGIN = """
import resource
import sys
import numpy
from gluon_mgpu import concise, scratch
from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.mxnet_setup.compat import mx
from gluon_mgpu.training.run import Callback
from gluon_mgpu.training.run import Run

def print_size():
    with open('/proc/self/statm') as file:
        print('MB', int(file.read().split()[1]) * resource.getpagesize() / 2**20)

def batches(n):  # of 8 rows, and a last one of 3
    return BatchIterator(numpy.zeros((n, 28, 28), 'uint8'), numpy.zeros(n, 'int32'), 8, 'zeros')

def train(rows, run):
    chapter = {'scratch': scratch, 'concise': concise}[sys.argv[1]]
    chapter.train(2, 8, 0.01, devices=[mx.cpu(0), mx.cpu(1)], data=(batches(rows), batches(11)), run=run)
"""

ONE_CALL = f"""{BEGIN}
class Size(Callback):
    def epoch_end(self, run):
        print_size()

train(19, Run({EPOCHS}, quiet=True, callbacks=[Size()]))
"""

SEVERAL_CALLS = f"""{BEGIN}
for _ in range({CALLS}):
    train(11, Run(1, quiet=True))
    print_size()
"""

pytestmark = [pytest.mark.slow,
              pytest.mark.skipif(not Path('/proc/self/statm').exists(), reason='needs /proc')]


def sizes(program, chapter, **environment):
    """Run a program; return the sizes of its memory that it prints, in MB."""
    done = subprocess.run([sys.executable, '-c', program, chapter], capture_output=True, text=True, check=False,
                          env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    memory = [float(line.split()[1]) for line in done.stdout.splitlines() if line[:2] == 'MB']
    assert memory[0] > 50  # the unit is MB
    return memory


@pytest.mark.parametrize('chapter', ['scratch', 'concise'])
def test_memory_does_not_grow_from_epoch_to_epoch(chapter):
    """Each epoch includes a smaller last batch and an evaluation.

    The median growth shows a leak, because a leak grows in every epoch: when only one operator per network was kept
    instead of eight, each epoch took 3 MB more with LeNet and 20 MB more with ResNet-18. A buffer that is allocated
    now and then, such as one for a device that is ahead of the others, does not change the median.
    """
    memory = sizes(ONE_CALL, chapter)
    assert len(memory) == EPOCHS
    assert median(after - before for before, after in itertools.pairwise(memory[-LAST_EPOCHS - 1:])) < 0.5


@pytest.mark.parametrize(('chapter', 'one_copy'), [('scratch', 0.5), ('concise', 44.7)])
def test_memory_does_not_grow_from_call_to_call(chapter, one_copy):
    """A network that is not freed would keep at least its parameters, of which one copy takes `one_copy` MB.

    The test uses MXNet's default ring of four scratch areas instead of 53. Each area grows to the largest size that
    was needed, and with 53 areas this takes about 20 calls of `concise.train`.
    """
    memory = sizes(SEVERAL_CALLS, chapter, MXNET_CPU_TEMP_COPY='4')
    assert len(memory) == CALLS
    assert memory[-1] - memory[-1 - LAST_CALLS] < LAST_CALLS * one_copy
