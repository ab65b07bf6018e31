"""Tests of a worker without other workers: place in the job, shards of batches, flags."""
import collections
import contextlib
import itertools
import os
import resource
import selectors
import socket
import threading
import time
from types import SimpleNamespace

import numpy
import pytest
from slow import slow

from gluon_mgpu import scratch
from gluon_mgpu.base.program import JobError
from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.distributed import horovod_workers, launchers, watch
from gluon_mgpu.distributed.horovod_workers import HorovodWorkers
from gluon_mgpu.distributed.launchers import LaunchInfo, launch_info
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, gluon, mx, np
from gluon_mgpu.parallel.trainer import trainable
from gluon_mgpu.parallel.workers import Workers
from gluon_mgpu.training.run import Run


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """Remove the variables of all launchers from the environment."""
    for names in launchers.VARIABLES.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)
    for name in (launchers.ADDRESS, launchers.PORT):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize('launcher', launchers.VARIABLES)
def test_place_reads_the_variables_of_each_launcher(monkeypatch, launcher):
    assert launch_info() == LaunchInfo()
    for name, value in zip(launchers.VARIABLES[launcher], '351'):
        monkeypatch.setenv(name, value)
    assert launch_info() == LaunchInfo(launcher, 3, 5, 1)


def test_srun_with_the_variables_of_mpiexec(monkeypatch):
    """``srun --mpi=pmi2`` sets both, but not mpiexec's local rank."""
    for name, value in {'PMI_RANK': '3', 'PMI_SIZE': '4', 'SLURM_PROCID': '3', 'SLURM_NTASKS': '4',
                        'SLURM_LOCALID': '1'}.items():
        monkeypatch.setenv(name, value)
    assert launchers.launch_info() == LaunchInfo('srun', 3, 4, 1)
    monkeypatch.setenv('MPI_LOCALRANKID', '2')
    assert launchers.launch_info() == LaunchInfo('mpiexec', 3, 4, 2)


def test_a_port_that_does_not_exist(monkeypatch):
    environ = {launchers.ADDRESS: '127.0.0.1', launchers.PORT: '99999'}
    monkeypatch.setattr(launchers.os, 'environ', environ)
    with pytest.raises(ValueError, match='HOROVOD_GLOO_RENDEZVOUS_PORT 99999: must be an integer from 1 to 65535'):
        launchers.rendezvous(LaunchInfo('srun', 0, 2, 0))
    assert 'HOROVOD_RANK' not in environ


def test_a_timeout_shorter_than_the_signs_of_life(monkeypatch):
    monkeypatch.setenv('GLUON_MGPU_WORKER_TIMEOUT', '0.5')
    with pytest.raises(ValueError, match='GLUON_MGPU_WORKER_TIMEOUT 0.5: must be at least 2 seconds'):
        watch.Watchdog(0, lambda value: [value], '127.0.0.1', 'a', print)


def test_a_timeout_that_is_no_number_is_reported_before_the_workers_connect(monkeypatch):
    """Otherwise worker 0 would report that the connection to this one was closed."""
    monkeypatch.setattr(horovod_workers, 'check_horovod', lambda: None)
    monkeypatch.setattr(launchers, 'rendezvous', lambda info: pytest.fail('connected'))
    for name, value in {'GLUON_MGPU_WORKER_TIMEOUT': 'abc', 'HOROVOD_RANK': '1', 'HOROVOD_SIZE': '2',
                        'HOROVOD_HOSTNAME': 'b'}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"^worker 1 \(b\): GLUON_MGPU_WORKER_TIMEOUT 'abc': must be a number above 0"):
        HorovodWorkers()


def test_horovodrun_within_srun(monkeypatch):
    monkeypatch.setenv('SLURM_PROCID', '0')
    monkeypatch.setenv('SLURM_NTASKS', '1')
    monkeypatch.setenv('HOROVOD_RANK', '1')
    monkeypatch.setenv('HOROVOD_SIZE', '2')
    assert launch_info() == LaunchInfo('horovodrun', 1, 2, 0)


def test_address_and_port_are_required():
    with pytest.raises(ValueError, match='srun does not say where the workers meet: on all of them, set HOROVOD_'):
        launchers.rendezvous(LaunchInfo('srun', 0, 2, 0))


@pytest.mark.parametrize('rank, served, words', [
    (1, False, 'no answer from http://127.0.0.1:{port}/gluon_mgpu/ in 0.5 s: check that all 2 workers are running'),
    (1, True, 'a worker did not connect to http://127.0.0.1:{port}/gluon_mgpu/ in 0.5 s: check that all 2 workers are'
     ' running'),
    (0, True, 'worker 1 did not connect to http://127.0.0.1:{port}/gluon_mgpu/ in 0.5 s: check that all 2 workers are'
     ' running'),
])
def test_a_missing_worker(job, monkeypatch, rank, served, words):
    with socket.create_server(('127.0.0.1', 0)) as free:
        port = free.getsockname()[1]
    if served:
        launchers._serve(('127.0.0.1', port))
    monkeypatch.setattr(launchers, 'PATIENCE', 0.5)
    monkeypatch.setattr(launchers.os, 'environ', {launchers.ADDRESS: '127.0.0.1', launchers.PORT: str(port)})
    with pytest.raises(ValueError, match=words.format(port=port)):
        launchers.rendezvous(LaunchInfo('srun', rank, 2, 0))


def test_a_launcher_that_sets_only_some_variables(monkeypatch):
    """Other launchers need only the documented ones; Horovod would abort without the rest."""
    environ = {'HOROVOD_RANK': '1', 'HOROVOD_SIZE': '2', 'HOROVOD_LOCAL_RANK': '1', launchers.ADDRESS: '127.0.0.1',
               launchers.PORT: '29500'}
    monkeypatch.setattr(launchers.os, 'environ', environ)
    monkeypatch.setattr(launchers, '_meet', lambda where, found: None)
    launchers.rendezvous(launch_info())
    of_horovodrun = {'LOCAL_RANK': '0', 'LOCAL_SIZE': '1', 'CROSS_RANK': '1', 'CROSS_SIZE': '2', 'HOSTNAME': 'worker1',
                     'RANK': '1', 'SIZE': '2'}
    assert of_horovodrun.items() <= {name[len('HOROVOD_'):]: value for name, value in environ.items()}.items()
    environ.update({'HOROVOD_LOCAL_RANK': '1', 'HOROVOD_LOCAL_SIZE': '2'})  # what horovodrun sets stays
    launchers.rendezvous(launch_info())
    assert (environ['HOROVOD_LOCAL_RANK'], environ['HOROVOD_LOCAL_SIZE']) == ('1', '2')


@pytest.mark.parametrize('variables, words', [
    ({'HOROVOD_RANK': 'a'}, "HOROVOD_RANK 'a': must be an integer"),
    ({launchers.PORT: 'b'}, "HOROVOD_GLOO_RENDEZVOUS_PORT 'b': must be an integer"),
    ({'HOROVOD_RANK': '2'}, 'HOROVOD_RANK 2: must be an integer from 0 to 1')])
def test_invalid_variables(monkeypatch, variables, words):
    monkeypatch.setattr(launchers.os, 'environ', {
        'HOROVOD_RANK': '1', 'HOROVOD_SIZE': '2', launchers.ADDRESS: '127.0.0.1', launchers.PORT: '29500', **variables})
    with pytest.raises(ValueError, match=f'^{words}$'):
        launchers.rendezvous(launch_info())


def test_a_lost_worker_is_named_before_horovods_own_error(monkeypatch):
    """Horovod may notice it first. Then the watchdog, which prints its name and exits, needs a moment."""
    done = []
    watchdog = SimpleNamespace(leave=lambda failed: done.append('leave'))
    timer = SimpleNamespace(start=lambda: done.append('timer'))
    monkeypatch.setattr('gluon_mgpu.distributed.horovod_workers.time.sleep', lambda seconds: done.append(seconds))
    monkeypatch.setattr('gluon_mgpu.distributed.horovod_workers.threading.Timer', lambda *args: timer)
    monkeypatch.setattr('gluon_mgpu.distributed.horovod_workers.atexit.register', lambda function: None)
    for error in (RuntimeError('Connection closed by peer'), ValueError('another')):
        workers = object.__new__(HorovodWorkers)
        workers.size, workers._watchdog, workers._hvd = 2, watchdog, SimpleNamespace(shutdown=None)
        workers.__exit__(type(error), error, None)
    assert done == [1, 'leave', 'timer', 'leave', 'timer']


def test_a_job_that_was_suspended_continues(monkeypatch):
    """After Ctrl-Z and fg, no byte has come for long, and no worker is lost."""
    here, there = socket.socketpair()
    here.setblocking(False)
    dog = object.__new__(watch.Watchdog)
    dog.rank, dog.silence, dog.names, dog.report = 0, 2, ['a', 'b'], print
    dog._others, dog._heard, dog._leaving = {here: 1}, {here: 100.0}, False
    dog._compare = lambda: None
    dog._selector = selectors.DefaultSelector()
    ended, times = [], iter([100.0, 200.0, 200.1])

    def monotonic():
        now = next(times)
        dog._leaving = now > 200
        return now

    monkeypatch.setattr(watch, 'time', SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(watch.os, '_exit', ended.append)
    dog._watch()
    assert ended == []
    here.close()
    there.close()


def test_workers_connect_only_once_per_process(monkeypatch):
    """The second time, Horovod would use the old addresses, and abort or hang."""
    monkeypatch.setattr('gluon_mgpu.distributed.horovod_workers.check_horovod', lambda: None)
    monkeypatch.setattr(HorovodWorkers, '_initialized', True)
    monkeypatch.setenv('HOROVOD_RANK', '0')
    monkeypatch.setenv('HOROVOD_SIZE', '2')
    with pytest.raises(ValueError, match='^Horovod can connect workers only once per process'):
        HorovodWorkers()


@pytest.mark.parametrize('words', [b'', slow(b'GET'), b'GET / HTTP/1.1\r\n\r\n'])
def test_other_connections_do_not_block_the_workers(monkeypatch, words):
    """They connect before the workers do, and some send nothing."""
    monkeypatch.setenv('GLUON_MGPU_WORKER_TIMEOUT', '2')
    ended, watches, strangers, values = [], {}, [], {}
    monkeypatch.setattr(watch.os, '_exit', ended.append)
    everybody = threading.Barrier(2)

    def be_worker(rank):
        def allgather(value):
            values[rank] = value
            if rank == 0:
                strangers.extend(socket.create_connection(value[0]) for _ in range(3))
                for stranger in strangers:
                    stranger.sendall(words)
            everybody.wait()
            return [values[0], values[1]]
        watches[rank] = watch.Watchdog(rank, allgather, '127.0.0.1', f'of the test, {rank}', print)

    threads = [threading.Thread(target=be_worker, args=[rank], daemon=True) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=4)
    assert len(watches) == 2 and not ended
    for each in watches.values():
        each.leave()
    assert not ended
    for connection in [*strangers, *watches[0]._others, *watches[1]._others]:
        connection.close()


@pytest.fixture
def fast_signs_of_life(monkeypatch):
    monkeypatch.setattr(watch, 'BEAT', 0.1)


@pytest.mark.usefixtures('fast_signs_of_life')
def test_many_open_files(monkeypatch):
    """The connections have descriptors above 1023, which select() rejects. Worker 1 leaves."""
    ended, watches, everybody, values = [], {}, threading.Barrier(2), {}
    monkeypatch.setattr(watch.os, '_exit', ended.append)

    def be_worker(rank):
        def allgather(value):
            values[rank] = value
            everybody.wait()
            return [values[0], values[1]]
        watches[rank] = watch.Watchdog(rank, allgather, '127.0.0.1', f'of the test, {rank}', print)

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    with contextlib.ExitStack() as files:
        files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        while files.enter_context(open(os.devnull)).fileno() < 1100:
            pass
        thread = threading.Thread(target=be_worker, args=(1,), daemon=True)
        thread.start()
        be_worker(0)
        thread.join(10)
        time.sleep(3 * watch.BEAT)  # each hears from the other
        assert watches[0]._thread.is_alive() and watches[1]._thread.is_alive()
        watches[1].leave()
        watches[0]._thread.join(10)
        assert ended == [] and watches[0]._heard == {}
        for connection in [*watches[0]._others, *watches[1]._others]:
            connection.close()


@contextlib.contextmanager
def watchdogs(monkeypatch, lines):
    """Two workers; `lines` gets the messages of rank 0, and whether the job ends."""
    everybody, values, found = threading.Barrier(2), {}, {}
    monkeypatch.setattr(watch.os, '_exit', lambda status: setattr(found[0], '_leaving', True))

    def be_worker(rank):
        def allgather(value):
            values[rank] = value
            everybody.wait()
            return [values[0], values[1]]
        found[rank] = watch.Watchdog(rank, allgather, '127.0.0.1', 'ab'[rank], lambda *line: lines.append(line))

    thread = threading.Thread(target=be_worker, args=(1,))
    thread.start()
    be_worker(0)
    thread.join(10)
    yield found[0], found[1]
    for each in found.values():
        each.leave()
        for connection in each._others:
            connection.close()


def wait_for(lines, number=1):
    """Wait until there are as many lines."""
    deadline = time.monotonic() + 10
    while len(lines) < number and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.mark.usefixtures('fast_signs_of_life')
def test_workers_that_take_part_in_different_exchanges(monkeypatch):
    lines = []
    with watchdogs(monkeypatch, lines) as both:
        for each in both:
            for number in range(1000):
                each.record('a sum', f'number {number}')
        both[0].record('an evaluation', '\u00e9\nn')
        time.sleep(3 * watch.BEAT)
        assert not lines  # worker 1 may be slow
        both[1].record('the end of its program', '')
        wait_for(lines)
    assert lines == [('worker 0 of 2 (a) is at an evaluation (\u00e9 n), and worker 1 of 2 (b) at the end of its '
                      'program: all workers must take the same steps, with as many batches and evaluations', True)]


def test_exchanges_of_other_threads_come_in_any_order():
    workers, noted = object.__new__(HorovodWorkers), []
    workers._watchdog, workers._thread = SimpleNamespace(record=lambda *args: noted.append(args)), threading.get_ident()
    workers._numbers = collections.defaultdict(itertools.count)
    thread = threading.Thread(target=workers.record, args=['a sum'])
    for call in (lambda: workers.record('a sum'), thread.start, thread.join, lambda: workers.record('a sum')):
        call()
    assert noted == [('a sum', 'number 1'), ('a sum', 'number 2')]


@pytest.mark.usefixtures('fast_signs_of_life')
def test_a_slow_worker_is_named_and_not_ended(monkeypatch):
    monkeypatch.setattr(watch, 'STALL', 0.4)
    lines = []
    with watchdogs(monkeypatch, lines) as both:
        both[0].record('a sum', 'batch 1')
        both[1].record('a sum', 'batch 1')
        time.sleep(0.6)  # nobody waits
        assert not lines
        both[1].record('a sum', 'batch 2')
        wait_for(lines)
        time.sleep(0.6)  # named once
        both[0].record('a sum', 'batch 2')
        time.sleep(0.4)
        assert lines == [('worker 0 of 2 (a) has not come in 0.4 s to a sum (batch 2): others wait', False)]
        both[0].record('a sum', 'batch 3')
        wait_for(lines, 2)
    assert lines[1:] == [('worker 1 of 2 (b) has not come in 0.4 s to a sum (batch 3): others wait', False)]


def test_the_others_wait_for_a_late_worker(monkeypatch):
    """Worker 0 waits for worker 2 for longer than a lost worker is silent, and names it; worker 1 prints nothing."""
    monkeypatch.setattr(watch, 'BEAT', 0.25)
    monkeypatch.setenv('GLUON_MGPU_WORKER_TIMEOUT', '1')
    monkeypatch.setattr(watch, 'PATIENCE', 2)
    ended, lines, addresses = [], [], []

    def end(status):
        ended.append(status)
        watches[0]._leaving = True  # ends the thread

    monkeypatch.setattr(watch.os, '_exit', end)
    there, watches = threading.Event(), []

    def allgather(value):
        addresses.append(value[0])
        there.set()
        return [value, (None, bytes(16), 'b'), (None, b'token of c', 'c')]

    def be_worker_1():
        there.wait(10)
        watches.append(watch.Watchdog(1, lambda value: [(addresses[0], b'', 'a'), value, (None, b'', 'c')],
                                      '127.0.0.1', 'b', lines.append))

    monkeypatch.setattr(watch.secrets, 'token_bytes', bytes)
    thread = threading.Thread(target=be_worker_1, daemon=True)
    thread.start()
    with pytest.raises(ValueError, match=r'^worker 2 of 3 \(c\) did not connect to worker 0'):
        watch.Watchdog(0, allgather, '127.0.0.1', 'a', print)
    thread.join(10)
    watches[0]._thread.join(10)
    watches[0].leave()
    assert (ended, lines) == ([1], [])
    for connection in watches[0]._others:
        connection.close()


def test_a_slow_network_delays_the_first_bytes(monkeypatch):
    """A lost packet is sent again after a second or more."""
    monkeypatch.setattr(watch, 'PATIENCE', 3)
    with contextlib.ExitStack() as stack:
        def allgather(value):
            connection = stack.enter_context(socket.create_connection(value[0]))
            timer = threading.Timer(1, lambda: connection.sendall(bytes(range(16))))
            stack.callback(timer.join)
            timer.start()
            return [value, (None, bytes(range(16)), 'b')]
        watchdog = watch.Watchdog(0, allgather, '127.0.0.1', 'a', print)
        assert list(watchdog._others.values()) == [1]
        watchdog.leave()
        for connection in watchdog._others:
            connection.close()


def test_worker_0_cannot_be_reached():
    with socket.create_server(('127.0.0.1', 0)) as listener:
        closed = listener.getsockname()
    with pytest.raises(ValueError, match=r'^b, process 7 cannot connect to worker 0 at 127.0.0.1 \(Connection refused\)'
                                         ': check that no firewall'):
        watch.Watchdog(1, lambda value: [(closed, b'', 'a'), value], '127.0.0.1', 'b, process 7', print)


def test_a_missing_network_interface(monkeypatch):
    monkeypatch.setattr(launchers.os, 'environ', {launchers.ADDRESS: '127.0.0.1', launchers.PORT: '29500',
                                                  'HOROVOD_GLOO_IFACE': 'eth99'})
    with pytest.raises(ValueError, match='HOROVOD_GLOO_IFACE eth99: not a network interface of this machine, which has '
                                         r'.*\blo\b.*; horovodrun --network-interfaces needs'):
        launchers.rendezvous(LaunchInfo('horovodrun', 1, 2, 0))


def test_a_worker_that_cannot_start_names_its_machine(monkeypatch):
    monkeypatch.setattr(horovod_workers, 'check_horovod', lambda: None)
    monkeypatch.setattr(launchers.os, 'environ', {'HOROVOD_RANK': '1', 'HOROVOD_SIZE': '2', 'HOROVOD_LOCAL_RANK': '0',
                                                  'HOROVOD_HOSTNAME': 'b'})
    with pytest.raises(ValueError, match=r'^worker 1 \(b\): horovodrun does not say where the workers meet'):
        horovod_workers.HorovodWorkers()


def test_a_worker_that_cannot_connect_is_named(monkeypatch):
    monkeypatch.setattr(watch, 'PATIENCE', 0.1)
    with pytest.raises(ValueError, match=r'^worker 1 of 2 \(b\) did not connect to worker 0 at 127.0.0.1 in 0.1 s'):
        watch.Watchdog(0, lambda value: [value, (None, b'', 'b')], '127.0.0.1', 'a', print)


@pytest.mark.parametrize('n, k', [(10, 3), (2, 3), (7, 1), (256, 4), (23, 5)])
@pytest.mark.parametrize('shuffle', [True, False])
def test_the_shards_of_all_workers_are_the_batches(n, k, shuffle):
    images = numpy.arange(n, dtype='uint8').repeat(4).reshape(n, 2, 2)
    labels = numpy.arange(n)
    whole = BatchIterator(images, labels, 5, 'test', shuffle, seed=1)
    parts = [BatchIterator(images, labels, 5, 'test', shuffle, seed=1, shard=(i, k)) for i in range(k)]
    assert len({part.digest for part in parts}) == 1
    for _ in range(2):  # epochs
        for (X, y), *others in zip(whole, *parts):
            assert numpy.concatenate([y_part.asnumpy() for _, y_part in others]).tolist() == y.asnumpy().tolist()
            assert (numpy.concatenate([X_part.asnumpy() for X_part, _ in others]) == X.asnumpy()).all()


def test_different_rows_have_different_digests():
    images, labels = numpy.zeros((10, 2, 2), 'uint8'), numpy.zeros(10, 'uint8')

    def digest(images, labels):
        return BatchIterator(images, labels, 5, 'test', shard=(0, 2)).digest
    other = images.copy()
    other[3, 1, 1] = 1
    assert len({digest(images, labels), digest(other, labels), digest(images, labels + 1),
                digest(images[:9], labels[:9])}) == 4


def test_the_shard_of_another_worker_is_rejected():
    run = Run(1, quiet=True)
    run.workers.rank, run.workers.size = 1, 2
    images = numpy.zeros((10, 28, 28), 'uint8')
    with pytest.raises(ValueError, match="rank 1: .* not yield this worker's shard; .* shard=workers.shard"):
        next(run.batches(BatchIterator(images, images[:, 0, 0], 5, 'test', shard=(0, 2))))


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
    line = 'Horovod does not support MXNet 2' if MXNET_MAJOR >= 2 else 'Horovod is not installed: tools/'
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


@pytest.mark.parametrize('error', [RuntimeError, ValueError])
def test_late_errors_of_the_engine_are_discarded_after_one(error, monkeypatch):
    """The engine raises MXNetError, a RuntimeError, or one of Python's errors."""
    cleared = []
    monkeypatch.setattr('gluon_mgpu.parallel.workers.clear_engine_errors', lambda: cleared.append(True))
    with pytest.raises(error), Workers().engine_errors_cleared():
        raise error
    with pytest.raises(KeyboardInterrupt), Workers().engine_errors_cleared():  # a checkpoint may be written after it
        raise KeyboardInterrupt
    assert cleared == [True]
