"""The arrays and the dtype that a step takes, and crashes of MXNet."""
import multiprocessing
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from bfloat16 import needs_bfloat16
from slow import slow
from steps_to_check import (
    LOSS,
    LR,
    NO_SUM_OF_TWO,
    ONLY_1,
    check_two,
    concise_step,
    copy_with_gradient,
    crash_without_rows,
    make_arrays,
    make_nd,
    make_network,
    step_from_scratch,
    step_of_nd,
    step_with_trainer,
)

from gluon_mgpu import check_data_parallel
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, init, mx, npx
from gluon_mgpu.networks.precision import Cast, conv2d
from gluon_mgpu.parallel.step import params_with_gradients
from gluon_mgpu.programs.check import trials


@pytest.mark.slow
@needs_bfloat16
@pytest.mark.parametrize('sums', [True, False])
def test_bfloat16(image_batches, sums):
    """MXNet cannot cast float64 to bfloat16."""
    def make(devices):
        nn, net = gluon.nn, gluon.nn.HybridSequential()
        net.add(Cast('bfloat16'), conv2d(16, kernel_size=3, dtype='bfloat16'), nn.Activation('relu'), Cast('float32'),
                nn.Dense(10))
        net.initialize(init=init.Xavier(), ctx=devices)
        trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': LR}, update_on_kvstore=False)
        if not sums:
            trainer._allreduce_grads = lambda: None
        net.hybridize()  # which bfloat16 needs
        return net, LOSS, trainer
    report = check_data_parallel(make, concise_step, [(X[..., :8, :8], y) for X, y in image_batches])
    assert report.ok is sums, report
    assert 'in its own dtype' in report.title


def test_a_step_that_computes_in_float32(batches):
    def make(devices):
        return [[copy_with_gradient(param.astype('float32'), param.ctx) for param in params]
                for params in make_arrays(devices)]

    def train_batch(state, X, y, devices, mistake=''):
        step_from_scratch(state, X.astype('float32'), y, devices, mistake)
    report = check_data_parallel(make, train_batch, batches)
    assert report.ok and 'in its own dtype' in report.title
    assert max(row[1] for row in report.parameters) < 1e-4
    report = check_two(make, partial(train_batch, mistake='misses the last device'), batches)
    assert 'the gradient of cpu(1) counts 0 times' in report.diagnosis[0]


def step_with_empty_shards(state, X, y, devices):
    """The commonest step of all."""
    net, trainer = state
    X_shards, y_shards = (gluon.utils.split_and_load(a, devices, even_split=False) for a in (X, y))
    with autograd.record():
        ls = [LOSS(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
    for l in ls:
        l.backward()
    trainer.step(len(X))


CRASHED = ('batches of 2 rows are not checked, because MXNet ends the process with SIGFPE, as some operators do for '
           'arrays without rows, such as those of split_and_load(even_split=False): leave them out')


@pytest.mark.skipif(sys.platform != 'linux', reason='the step runs in a forked process')
def test_a_crash_does_not_end_the_check(batches, capfd):
    """A crash by hand, because not every build of MXNet has one; verdicts on the other batches remain."""
    report = check_data_parallel(make_network, crash_without_rows, batches)
    assert report.ok and 'over batches of 12, 10, 12, 7 rows' in report.title, report
    assert report.notes[0].replace('SIGABRT', 'SIGFPE') == CRASHED  # MXNet 2 may abort while it handles the signal
    report = check_two(partial(make_network, kvstore=None), crash_without_rows, batches)
    assert re.search(NO_SUM_OF_TWO, report.diagnosis[0])
    # MXNet 2 says which memory it uses when it first does
    assert [line for line in ''.join(capfd.readouterr()).splitlines() if 'StorageManager' not in line] == []


@pytest.mark.skipif(sys.platform != 'linux', reason='the step runs in a forked process')
def test_a_step_with_a_thread_pool(batches, monkeypatch):
    """The forked process lacks the threads; it is waited for once."""
    hung, pool = [], ThreadPoolExecutor(1)
    kill = multiprocessing.process.BaseProcess.kill
    monkeypatch.setattr(trials, 'SECONDS', 0.2)
    monkeypatch.setattr(multiprocessing.process.BaseProcess, 'kill', lambda process: [
        hung.append(process.exitcode is None), kill(process)])
    report = check_data_parallel(make_network, lambda *args: pool.submit(step_with_trainer, *args).result(), batches)
    assert report.ok and '12, 10, 12, 2, 7 rows' in report.title and hung == [True]
    wrong = partial(step_with_trainer, mistake='a stale gradient')
    report = check_data_parallel(make_network, lambda *args: pool.submit(wrong, *args).result(), batches)
    assert not report.ok and sum(hung) == 2


@pytest.mark.parametrize('kvstore, ok', [('device', True), slow(None, False)])
def test_empty_shards_of_mxnet(kvstore, ok, batches):
    report = check_data_parallel(partial(make_network, kvstore=kvstore), step_with_empty_shards, batches)
    assert report.ok is ok, report
    if MXNET_MAJOR == 1 and ok:
        assert report.notes[0] == CRASHED


@pytest.mark.slow
def test_a_crash_in_a_notebook(tmp_path):
    """The functions of a notebook are in __main__ alone; other threads run."""
    code = """
import threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
import gc
import gluon_mgpu as d2l
import steps_to_check as t
gc.freeze()  # the check collects garbage
def train_batch(state, X, y, devices):
    t.crash_without_rows(state, X, y, devices)
report = d2l.check_data_parallel(lambda devices: t.make_network(devices), train_batch, t.batches_of_six_numbers())
print(report.notes[0])
"""
    folders = Path(__file__).parents
    env = {**os.environ, 'PYTHONPATH': os.pathsep.join(map(str, (folders[2], folders[1], folders[0])))}
    result = subprocess.run([sys.executable, '-'], input=code, cwd=tmp_path, env=env, text=True, capture_output=True)
    assert result.returncode == 0 and result.stdout.strip().replace('SIGABRT', 'SIGFPE') == CRASHED, result  # MXNet 2


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_an_error_of_a_step_that_cannot_compute_in_float64(dtype, batches):
    """NumPy's default in the batches does not hide it, and the batches stay as they are."""
    def train_batch(state, X, y, devices):
        step_with_trainer(state, X.astype('float32'), y, devices)
        raise KeyError('a name')
    batches = [(X.astype(dtype), y) for X, y in batches]
    before = [X.copy() for X, _ in batches]
    with pytest.raises(KeyError, match='a name'):
        check_data_parallel(make_network, train_batch, batches)
    assert all(X.dtype == dtype and (old == X).all() for (X, _), old in zip(batches, before))


def test_a_layer_that_cannot_be_cast(batches):
    class Layer(gluon.nn.Dense):
        def cast(self, dtype):
            raise TypeError('only float32')
    report = check_data_parallel(partial(make_network, layers=lambda: [Layer(4)]), step_with_trainer, batches)
    assert report.ok and 'in its own dtype' in report.title, report


def make_nd_network(devices, kvstore='device', layers=()):
    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.hidden, self.out = gluon.nn.Dense(5), gluon.nn.Dense(4)

        def hybrid_forward(self, F, X):
            return self.out(F.Activation(self.hidden(X), act_type='tanh'))
    net = gluon.nn.HybridSequential()
    net.add(Net(), *layers)
    net.initialize(init.Normal(0.5), ctx=devices)
    net.hybridize()
    return net, gluon.Trainer(params_with_gradients(net), 'adam', {'learning_rate': LR}, kvstore=kvstore)


def step_of_nd_network(state, X, y, devices):
    step_with_empty_shards(state, X, y, devices)
    assert type(X) is mx.nd.NDArray


@ONLY_1
def test_a_step_written_with_nd(batches):
    """Without npx.reset_np or as_nd_ndarray; afterwards, NumPy's semantics are as before."""
    report = check_data_parallel(make_nd, step_of_nd, batches)
    assert report.ok and 'in float64, over batches of 12, 10, 12, 2, 7 rows' in report.title, report
    report = check_two(make_nd, partial(step_of_nd, mistake=True), batches)
    assert 'the update is 0.5 times that of one device, as if 8 rows were divided by 16' in report.diagnosis[0]
    in_threads = []
    thread = threading.Thread(target=lambda: in_threads.append((npx.is_np_array(), npx.is_np_shape())))
    thread.start()
    thread.join()
    assert [(npx.is_np_array(), npx.is_np_shape()), *in_threads] == [(True, True)] * 2


@ONLY_1
@pytest.mark.parametrize('kvstore', ['device', None])
def test_a_network_written_with_nd(kvstore, batches):
    """MXNet itself raises an error for shards without rows there."""
    report = check_two(partial(make_nd_network, kvstore=kvstore), step_of_nd_network, batches)
    assert report.ok is (kvstore is not None), report
    if report.ok:
        assert report.notes[0].startswith('batches of 1 row are not checked, because the step raises MXNetError')
    else:
        assert re.search(NO_SUM_OF_TWO, report.diagnosis[0])


@ONLY_1
def test_a_hybridized_network_written_with_nd(batches):
    def make(devices):
        return make_nd_network(devices, layers=[gluon.nn.PReLU(), gluon.nn.Dense(4)])
    report = check_two(make, step_of_nd_network, batches)
    assert report.diagnosis[0] == 'WRONG if hybridized: the gradient of the slope of PReLU (1.alpha) is wrong.', report


@ONLY_1
def test_nd_in_a_step_on_several_devices_alone(batches):
    def train_batch(state, X, y, devices):
        if len(devices) > 1:
            assert mx.nd.add_n(X, X).shape == X.shape
        step_with_empty_shards(state, X, y, devices)
    assert check_data_parallel(make_network, train_batch, batches).ok


@ONLY_1
def test_a_program_that_has_left_numpy_semantics(batches):
    """As users did before the check knew mx.nd."""
    def step(state, X, y, devices):
        step_of_nd(state, X.as_nd_ndarray(), y.as_nd_ndarray(), devices)
    npx.reset_np()
    try:
        assert check_data_parallel(make_nd, step, batches).ok
        assert not npx.is_np_array() and not npx.is_np_shape()
    finally:
        mx.util.set_np_shape(2)
        mx.util._set_np_array(True)


@ONLY_1
def test_an_error_of_a_step_written_with_nd(batches):
    def step(state, X, y, devices):
        step_of_nd(state, X, y, devices)
        raise KeyError('a name')
    with pytest.raises(KeyError, match='a name'):
        check_data_parallel(make_nd, step, batches)


@pytest.mark.slow
def test_recurrent_layers(batches):
    """MXNet's gradients of two layers are wrong in float64."""
    def make(devices):
        net = gluon.nn.Sequential()
        net.add(gluon.nn.Lambda(lambda X: X.reshape(-1, 1, 6).swapaxes(0, 1)), gluon.rnn.LSTM(5, num_layers=2),
                gluon.nn.Lambda(lambda H: H[-1]), gluon.nn.Dense(4))
        net.initialize(init=init.Normal(0.5), ctx=devices)
        return net, gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': LR})
    report = check_data_parallel(make, step_with_trainer, batches)
    assert report.ok and 'in its own dtype' in report.title, report
