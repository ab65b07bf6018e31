"""Tests of detecting lost workers."""
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

import pytest
from slow import slow

from gluon_mgpu.distributed import watch
from gluon_mgpu.distributed.horovod_workers import HorovodWorkers

pytestmark = pytest.mark.usefixtures('no_launcher')


def test_a_timeout_shorter_than_the_signs_of_life(monkeypatch):
    monkeypatch.setenv('GLUON_MGPU_WORKER_TIMEOUT', '0.5')
    with pytest.raises(ValueError, match='GLUON_MGPU_WORKER_TIMEOUT 0.5: must be at least 2 seconds'):
        watch.Watchdog(0, lambda value: [value], '127.0.0.1', 'a', print)


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


@pytest.mark.parametrize('words', [b'', slow(b'GET'), b'GET / HTTP/1.1\r\n\r\n'])
def test_other_connections_do_not_block_the_workers(monkeypatch, words):
    """They connect before the workers do, and some send nothing."""
    monkeypatch.setattr(watch, 'BEAT', 0.25)
    monkeypatch.setenv('GLUON_MGPU_WORKER_TIMEOUT', '1')
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


@pytest.mark.slow
@pytest.mark.usefixtures('fast_signs_of_life')
def test_a_slow_worker_is_named_and_not_ended(monkeypatch):
    monkeypatch.setattr(watch, 'STALL', 0.4)
    lines = []
    with watchdogs(monkeypatch, lines) as both:
        both[0].record('a sum', 'batch 1')
        both[1].record('a sum', 'batch 1')
        time.sleep(0.6)  # no worker waits
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_a_worker_that_cannot_connect_is_named(monkeypatch):
    monkeypatch.setattr(watch, 'PATIENCE', 0.1)
    with pytest.raises(ValueError, match=r'^worker 1 of 2 \(b\) did not connect to worker 0 at 127.0.0.1 in 0.1 s'):
        watch.Watchdog(0, lambda value: [value, (None, b'', 'b')], '127.0.0.1', 'a', print)


@pytest.fixture
def one_end(monkeypatch):
    """A function that returns a watchdog of worker 0 or 1, a connection to it, and lists of its lines and statuses."""
    monkeypatch.setattr(watch, 'BEAT', 0.1)
    monkeypatch.setenv('GLUON_MGPU_WORKER_TIMEOUT', '2')
    lines, statuses = [], []
    with contextlib.ExitStack() as stack:
        def start(rank, size=2):
            others = [(None, bytes([other] * 16), 'abc'[other]) for other in range(size)]
            if rank:
                listener = stack.enter_context(socket.create_server(('127.0.0.1', 0)))
                others[0] = (listener.getsockname(), *others[0][1:])
            ends = []

            def allgather(value):
                if not rank:
                    ends.append(stack.enter_context(socket.create_connection(value[0])))
                    ends[0].sendall(bytes([1] * 16))
                return [value if other == rank else others[other] for other in range(size)]

            dog = watch.Watchdog(rank, allgather, '127.0.0.1', 'abc'[rank], lambda *line: lines.append(line))

            def end(status):
                statuses.append((status, time.monotonic()))
                dog._leaving = True  # ends the thread

            monkeypatch.setattr(watch.os, '_exit', end)
            if rank:
                ends.append(stack.enter_context(listener.accept()[0]))
                ends[0].recv(16)
            stack.callback(lambda: [connection.close() for connection in dog._others])
            return dog, ends[0], lines, statuses
        yield start


def until(condition, seconds=5):
    """Wait until a condition holds; return the seconds that it took."""
    started = time.monotonic()
    while not condition() and time.monotonic() < started + seconds:
        time.sleep(0.01)
    return time.monotonic() - started


def test_signs_of_life_come_in_time(one_end):
    dog, connection, _, statuses = one_end(0)
    connection.settimeout(5)
    deadline, received = time.monotonic() + 1.5, b''
    while time.monotonic() < deadline:
        connection.sendall(watch.ALIVE)
        received += connection.recv(4096)
    assert 5 <= received.count(watch.ALIVE) <= 20 and not statuses  # 15 without delays
    dog.leave()


def test_a_silent_worker_is_lost_after_the_timeout(one_end):
    """Not after a multiple of it."""
    _, _, lines, statuses = one_end(0)
    assert 1.5 < until(lambda: statuses) < 5
    assert [status for status, _ in statuses] == [1] and lines == [
        ('worker 1 of 2 (b) has not answered for 2 s: it is stopped, or its machine or the network failed', True)]


@pytest.mark.parametrize('before', [b'', watch.ALIVE * 3, b'a sum\tbatch 1\n' + watch.ALIVE])
@pytest.mark.parametrize('byte, expected', [(watch.FAILED, 'worker 1 of 2 (b) has failed'), (watch.END, ''),
                                            (watch.LEAVE, None)])
def test_a_message_of_a_worker_may_come_with_others(before, byte, expected, one_end):
    dog, connection, lines, statuses = one_end(0)
    connection.sendall(before + byte)
    until(lambda: statuses if expected is not None else not dog._heard, 3)
    assert [status for status, _ in statuses] == [1] * (expected is not None)
    assert [line for line, _ in lines] == [expected] * bool(expected)
    dog._thread.join(5)
    assert not dog._thread.is_alive()


@pytest.mark.parametrize('rank, size', [(1, 2), (1, 3), (2, 3)])
def test_if_worker_0_is_lost_worker_1_prints_the_line(rank, size, one_end):
    _, connection, lines, statuses = one_end(rank, size)
    connection.close()
    until(lambda: statuses)
    line = (f'worker 0 of {size} (a) was killed or has crashed', True)
    assert [status for status, _ in statuses] == [1] and lines == [line] * (rank == 1)


def test_a_worker_that_is_leaving_does_not_end_the_job(one_end):
    """The others may be gone already."""
    dog, connection, lines, statuses = one_end(0)
    dog._leaving = True
    dog._end('worker 1 was killed')
    connection.close()
    dog._receive(next(iter(dog._others)))
    dog.leave()
    assert (lines, statuses) == ([], [])
