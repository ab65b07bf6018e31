"""Memory does not grow: from epoch to epoch of a run, and from one call of `train` to the next in one process."""
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

EPOCHS, JUDGED = 16, 8  # the last 8 of 16
CALLS, JUDGED_CALLS = 7, 4

BEGIN = """
import resource
import sys
import numpy
from gluon_mgpu import concise, scratch
from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.mxnet_setup.compat import mx
from gluon_mgpu.training.run import Callback
from gluon_mgpu.training.run import Run

def print_sizes():
    with open('/proc/self/statm') as file:
        print('MB', *(int(pages) * resource.getpagesize() / 2**20 for pages in file.read().split()[:2]))

def batches(n):  # of 8 rows, and a last one of 3
    return BatchIterator(numpy.zeros((n, 28, 28), 'uint8'), numpy.zeros(n, 'int32'), 8, 'zeros')

def train(rows, run):
    chapter = {'scratch': scratch, 'concise': concise}[sys.argv[1]]
    chapter.train(2, 8, 0.01, devices=[mx.cpu(0), mx.cpu(1)], data=(batches(rows), batches(11)), run=run)
"""

ONE_CALL = f"""{BEGIN}
class Sizes(Callback):
    def epoch_end(self, run):
        print_sizes()

train(19, Run({EPOCHS}, quiet=True, callbacks=[Sizes()]))
"""

SEVERAL_CALLS = f"""{BEGIN}
for _ in range({CALLS}):
    train(11, Run(1, quiet=True))
    print_sizes()
"""

pytestmark = [pytest.mark.slow,
              pytest.mark.skipif(not Path('/proc/self/statm').exists(), reason='needs /proc')]


def sizes(program, chapter, **environment):
    """Run a program; return the addresses and the memory, in MB, that it has printed."""
    done = subprocess.run([sys.executable, '-c', program, chapter], capture_output=True, text=True, check=False,
                          env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    lines = [[float(word) for word in line.split()[1:]] for line in done.stdout.splitlines() if line[:2] == 'MB']
    addresses, memory = zip(*lines)
    assert memory[0] > 50  # it is megabytes that were measured
    return addresses, memory


@pytest.mark.parametrize('chapter', ['scratch', 'concise'])
def test_memory_does_not_grow_from_epoch_to_epoch(chapter):
    """Also with a smaller last batch, and evaluation in between.

    What leaks, leaks in every epoch: with one operator kept per network instead of eight, each epoch lays out new
    ones, and took 3 MB more with LeNet and 20 MB more with ResNet-18. What is allocated once in a while, such as a
    buffer more for the device that happens to be ahead, leaves most epochs as they were. So the median tells.
    """
    addresses, memory = sizes(ONE_CALL, chapter)
    assert len(memory) == EPOCHS
    addresses, memory = addresses[-JUDGED - 1:], memory[-JUDGED - 1:]
    assert median(after - before for before, after in zip(memory, memory[1:])) < 0.5
    assert addresses[-1] - addresses[0] < 2 * 256 + 16  # the heap grows by 256 MB at a time (`runtime.ALLOCATOR`)


@pytest.mark.parametrize(('chapter', 'one_copy'), [('scratch', 0.5), ('concise', 44.7)])
def test_memory_does_not_grow_from_call_to_call(chapter, one_copy):
    """A network that is left behind keeps its parameters, and `one_copy` is what one copy of them takes, in MB.

    With MXNet's own ring of four scratch areas instead of 53: each area grows to the largest use made of it, which
    takes some 20 calls of `concise.train` until all 53 have done so.
    """
    _, memory = sizes(SEVERAL_CALLS, chapter, MXNET_CPU_TEMP_COPY='4')
    assert len(memory) == CALLS
    assert memory[-1] - memory[-1 - JUDGED_CALLS] < JUDGED_CALLS * one_copy
