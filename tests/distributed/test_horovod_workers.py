"""Tests of a worker without other workers: parameters, signals, flags."""
from types import SimpleNamespace

import numpy
import pytest
from trainers import trainable

from gluon_mgpu import scratch
from gluon_mgpu.base.program import JobError
from gluon_mgpu.distributed import horovod_workers, launchers
from gluon_mgpu.distributed.horovod_workers import HorovodWorkers
from gluon_mgpu.distributed.launchers import LaunchInfo
from gluon_mgpu.distributed.trainer import HorovodTrainer
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, autograd, gluon, mx, np

pytestmark = pytest.mark.usefixtures('no_launcher')


def test_a_port_that_does_not_exist(monkeypatch):
    environ = {launchers.ADDRESS: '127.0.0.1', launchers.PORT: '99999'}
    monkeypatch.setattr(launchers.os, 'environ', environ)
    with pytest.raises(ValueError, match='HOROVOD_GLOO_RENDEZVOUS_PORT 99999: must be an integer from 1 to 65535'):
        launchers.rendezvous(LaunchInfo('srun', 0, 2, 0))
    assert 'HOROVOD_RANK' not in environ


def test_a_timeout_that_is_no_number_is_reported_before_the_workers_connect(monkeypatch):
    """Otherwise worker 0 would report that the connection to this one was closed."""
    monkeypatch.setattr(horovod_workers, 'check_horovod', lambda: None)
    monkeypatch.setattr(launchers, 'rendezvous', lambda info: pytest.fail('connected'))
    for name, value in {'GLUON_MGPU_WORKER_TIMEOUT': 'abc', 'HOROVOD_RANK': '1', 'HOROVOD_SIZE': '2',
                        'HOROVOD_HOSTNAME': 'b'}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"^worker 1 \(b\): GLUON_MGPU_WORKER_TIMEOUT 'abc': must be a number above 0"):
        HorovodWorkers()


def test_workers_connect_only_once_per_process(monkeypatch):
    """The second time, Horovod would use the old addresses, and abort or hang."""
    monkeypatch.setattr('gluon_mgpu.distributed.horovod_workers.check_horovod', lambda: None)
    monkeypatch.setattr(HorovodWorkers, '_initialized', True)
    monkeypatch.setenv('HOROVOD_RANK', '0')
    monkeypatch.setenv('HOROVOD_SIZE', '2')
    with pytest.raises(ValueError, match='^Horovod can connect workers only once per process'):
        HorovodWorkers()


@pytest.mark.parametrize('flags, words', [
    (['--horovod', '--num-gpus', '2'], 'each worker has one device'),
    (['--horovod', '--devices', 'cpu:0'], 'each worker has one device'),
    (['--horovod', '--allreduce', 'ring'], 'each worker has one device'),
    (['--horovod', '--shares', '3,1'], 'leave out --num-gpus, --devices, --shares and --allreduce'),
])
def test_flags_that_exclude_each_other(capsys, flags, words):
    assert scratch.main(flags) == 2
    assert words in capsys.readouterr().err


def test_horovodrun_without_the_flag_horovod(monkeypatch, capsys):
    monkeypatch.setenv('HOROVOD_RANK', '0')
    monkeypatch.setenv('HOROVOD_SIZE', '2')
    assert scratch.main([]) == 2
    assert 'horovodrun has started 2 workers, and each would train alone: add --horovod' in capsys.readouterr().err


def test_a_pending_signal_is_not_reset_by_an_older_result():
    """The older result was sent before the signal, but is read after it."""
    workers = HorovodWorkers.__new__(HorovodWorkers)  # without Horovod: one worker, so that a sum is its own value
    workers._signum, workers._signals = 0, SimpleNamespace(received=0)
    workers._allreduce = lambda array, kind: array
    of_all = workers.allgather_async([1.5])
    workers._signals.received = 15
    assert workers.allgather('a') == ['a'] and workers.pending_signal() == 15
    assert of_all() == [[1.5]] and workers.pending_signal() == 15


def test_workers_that_share_a_gpu_are_rejected():
    workers = object.__new__(HorovodWorkers)
    workers.hosts = 'a', 'a', 'b'
    for valid in (['', ''], ['1f', '2f', '3f']):
        workers._check_own_gpu(valid)
    for workers.rank in (0, 1):
        with pytest.raises(JobError, match='workers 0 and 1 have the same GPU .a, UUID 1f.: start at most') as caught:
            workers._check_own_gpu(['1f', '1f', '2f'])
        assert caught.value.reported is (workers.rank != 0)


def test_the_flag_horovod_without_horovod(monkeypatch, capsys):
    import importlib.util
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, 'find_spec',
                        lambda name, *args: None if name == 'horovod' else find_spec(name, *args))
    assert scratch.main(['--horovod']) == 2
    line = 'Horovod does not support MXNet 2' if MXNET_MAJOR >= 2 else 'Horovod is not installed: build it with tools/'
    assert line in capsys.readouterr().err


def parameters_after_broadcast(net, *args):
    """Let rank 1 take the parameters of rank 0, which are all 2."""
    workers = object.__new__(HorovodWorkers)
    workers.device = mx.cpu(1)
    workers.check_equal = lambda facts: None
    workers.on_rank_0 = lambda function: [numpy.full(value.shape, 2) for value in function()]
    workers.broadcast_parameters(net, *args)
    return [param.data().asnumpy() for param in trainable(net)]


class TwoInputs(HybridBlock):
    def __init__(self, **options):
        super().__init__()
        self.first, self.second = gluon.nn.Dense(2, **options), gluon.nn.Dense(2, **options)

    def forward(self, X, Z):
        return self.first(X) + self.second(Z)


class OneList(gluon.Block):
    """As in D2L, gets its inputs as one list."""

    def __init__(self):
        super().__init__()
        self.both = TwoInputs()

    def forward(self, inputs):
        X, Z = inputs
        return self.both(X, Z)


@pytest.mark.parametrize('rows', [3, 0])
def test_parameters_of_a_network_with_two_inputs(rows):
    X, Z = np.zeros((rows, 4)), np.zeros((rows, 3))
    for net, args in ((TwoInputs(), (X, Z)), (OneList(), ([X, Z],)), (TwoInputs(in_units=4), (X,))):
        net.initialize(ctx=mx.cpu(1))
        params = parameters_after_broadcast(net, *args)
        assert len(params) == 4 and all((param == 2).all() for param in params)


def test_a_network_that_gets_no_shapes_from_the_first_batch():
    net = TwoInputs()
    net.initialize(ctx=mx.cpu(1))
    with pytest.raises(ValueError, match=r'^the network cannot get its shapes from the first batch \(.*\): call'):
        parameters_after_broadcast(net, np.zeros((3, 4)))


def test_running_statistics_may_differ_between_workers():
    """The book's `net.collect_params()` has them, and the first forward pass has changed them."""
    net, compared = gluon.nn.BatchNorm(in_channels=3), {}
    net.initialize()
    workers = SimpleNamespace(size=2, check_equal=lambda facts, *remedy: compared.update(facts),
                              record=lambda exchange: None, _allreduce=lambda array, kind, number: array)
    trainer = HorovodTrainer(workers, 0, net.collect_params(), 'sgd', {'learning_rate': 0.1})
    with autograd.record():
        l = net(np.ones((4, 3)))
    l.backward()
    trainer.step(4)
    assert [name for name in compared if 'checksum' in name] == [f'the checksum of parameter {i} of the Trainer'
                                                                 for i in (0, 1)]  # gamma and beta


@pytest.mark.parametrize('clip_norm', [None, 0.1])
def test_only_steps_that_ignore_stale_gradients_exchange_which_are_fresh(clip_norm):
    """That exchange blocks."""
    net, exchanges = gluon.nn.Dense(2, in_units=3), []
    net.initialize()
    workers = SimpleNamespace(size=1, allgather=lambda value: exchanges.append(value) or [value])
    trainer = HorovodTrainer(workers, 0, trainable(net), 'sgd', {'learning_rate': 0.1}, clip_norm)
    for ignore_stale_grad, expected in ((False, 0), (True, 1)):
        with autograd.record():
            l = net(np.ones((4, 3)))
        l.backward()
        trainer.step(4, ignore_stale_grad)
        assert len(exchanges) == expected
