"""Tests that all functions reject several CPU contexts with OMP_NUM_THREADS above 1, which hang in MXNet 1.9."""
import os
import subprocess
import sys

import pytest

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR

CALLS = """
import numpy
import gluon_mgpu as d2l
from gluon_mgpu import concise, scratch
from gluon_mgpu.devices import check_devices, devices_from, parse_devices
from gluon_mgpu.mxnet_setup.compat import autograd, gluon, mx, np

two = [mx.cpu(0), mx.cpu(1)]
X, y = np.ones((4, 1, 28, 28)), np.zeros(4)
params = [scratch.get_params(scratch.init_params(), device) for device in two]
net = gluon.nn.Dense(10)
net.initialize(ctx=two)
trainer = gluon.Trainer(net.collect_params(), 'sgd')
calls = {
    'scratch.train': lambda: scratch.train(2, 256, 0.2, data=(None, None)),
    'scratch.train, devices': lambda: scratch.train(2, 256, 0.2, devices=two, data=(None, None)),
    'concise.train': lambda: concise.train(2, 256, 0.2, data=(None, None)),
    'try_all_gpus': d2l.try_all_gpus,
    'try_gpu': lambda: [d2l.try_gpu(i) for i in range(2)],
    'devices_from': lambda: devices_from(2),
    'parse_devices': lambda: parse_devices('cpu:0-1'),
    'check_devices': lambda: check_devices(two),
    'split_and_load': lambda: d2l.split_and_load(X, two),
    'split_batch': lambda: d2l.split_batch(numpy.ones((4, 2)), numpy.ones(4), two),
    'scratch.train_batch': lambda: scratch.train_batch(X, y, params, two, 0.1),
    'concise.train_batch': lambda: concise.train_batch(X, y, net, None, trainer, two),
    'evaluate_accuracy_gpus': lambda: d2l.evaluate_accuracy_gpus(net, [(X, y)]),
    'evaluate_accuracy_gpus, own split': lambda: d2l.evaluate_accuracy_gpus(net, [(X, y)], split_f=print),
}
for name, call in calls.items():
    try:
        call()
        print(name, 'is accepted')
    except ValueError as error:
        print(name, '2 threads of OpenMP with 2 CPU contexts hang' in str(error))

# One device may have all threads
one = two[:1]
print(len(d2l.split_and_load(X, one)), d2l.try_gpu(0), check_devices(one))
l, = scratch.train_batch(X, y, params[:1], one, 0.1)
print(l.shape[0], d2l.evaluate_accuracy_gpu(net, [(X, y)]) >= 0)
"""


@pytest.mark.slow
@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 does not hang there')
def test_all_functions_reject_two_cpu_contexts_and_accept_one():
    done = subprocess.run([sys.executable, '-c', CALLS], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, 'OMP_NUM_THREADS': '2'})
    assert done.returncode == 0, done.stderr
    *calls, last, least = done.stdout.splitlines()
    assert len(calls) == 14
    assert [call for call in calls if not call.endswith(' True')] == []
    assert (last, least) == ('1 cpu(0) [cpu(0)]', '4 True')
