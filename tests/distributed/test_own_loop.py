"""The program of docs/own-project.md with two workers."""
import json
import re
import subprocess
import sys

import numpy
import pytest
from docs_code import SEMANTICS, program

START = """
import mxnet as mx
import numpy
mx.random.seed(0)
rng = numpy.random.default_rng(0)
images, numbers = rng.normal(size=(25, 1, 8, 8)).astype('float32'), rng.normal(size=(25, 3)).astype('float32')
y = rng.integers(0, 10, 25).astype('float32')  # the last batch has 1 row, none for the second worker
"""
ALONE = """
devices = [mx.cpu(0), mx.cpu(1)]
net, trainer = state = make(devices)
for start in range(0, len(y), batch_size):
    train_batch(state, *(array[start:start + batch_size] for array in (images, numbers, y)), devices)
"""
END = """
print('norms:', [float(numpy.square(param.data().asnumpy()).sum()) for param in net.collect_params().values()
                 if param.grad_req != 'null'])
"""


@pytest.mark.parametrize('semantics', SEMANTICS)
def test_two_workers_equal_one_process(semantics, job, tmp_path):
    before, after = program(semantics), program(semantics, 'workers').partition('\nwith d2l.HorovodWorkers')
    (tmp_path / 'alone.py').write_text(before + START + ALONE + END)
    (tmp_path / 'workers.py').write_text(''.join([before, START, *after[1:], END]))
    alone = subprocess.run([sys.executable, tmp_path / 'alone.py'], capture_output=True, text=True, check=True)
    text = job.completed(2, sys.executable, tmp_path / 'workers.py')
    expected, *of_workers = map(json.loads, re.findall(r'norms: (\[.*\])', alone.stdout + text))
    assert len(of_workers) == 2 and of_workers[0] == of_workers[1]
    numpy.testing.assert_allclose(of_workers[0], expected, rtol=1e-4)  # float32; the sums are in another order
