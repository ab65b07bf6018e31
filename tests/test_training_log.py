"""The timer, the sums, and the record of a run, with a clock and losses given by hand."""
import csv

import numpy
import pytest

from gluon_mgpu.mxnet_setup.compat import np
from gluon_mgpu.training import run as training_log
from gluon_mgpu.training.run import DivergenceError, TrainingLog
from gluon_mgpu.training.timer import Accumulator, Timer


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still; add to clock[0] to move it."""
    now = [100.0]
    monkeypatch.setattr(training_log.time, 'perf_counter', lambda: now[0])
    return now


def test_timer(clock):
    timer = Timer()
    clock[0] += 2
    assert timer.stop() == 2
    timer.start()
    clock[0] += 4
    timer.stop()
    assert timer.times == [2, 4]
    assert (timer.sum(), timer.avg(), timer.cumsum()) == (6, 3, [2, 6])


def test_accumulator():
    metric = Accumulator(2)
    metric.add(1, np.array(2.5))
    metric.add(3, 4)
    assert (metric[0], metric[1]) == (4, 6.5)
    metric.reset()
    assert metric.data == [0, 0]


def feed(log, batches):
    """One epoch in which each batch has the given losses: a list of shards, each a list of rows."""
    rows = [None] * len(batches)
    for _, shards in zip(log.progress(rows), batches):
        log.add([np.array(shard) for shard in shards])


def test_history_by_hand(tmp_path, capsys):
    log = TrainingLog(num_epochs=2, path=tmp_path / 'history.csv')
    feed(log, [[[1.0, 2.0], [3.0]], [[6.0]]])
    epoch = log.end_epoch(seconds=0.5, test_acc=0.25)
    # (1 + 2 + 3 + 6) / 4 rows; 4 rows in half a second
    assert epoch == (1, 0.5, 3.0, 0.25, 8.0)
    feed(log, [[[1.0]]])
    log.end_epoch(seconds=0.25, test_acc=0.75)
    assert [e.epoch for e in log.history] == [1, 2]
    assert log.history[1].loss == 1  # the sums of the first epoch are not in it

    with open(tmp_path / 'history.csv', newline='') as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {'epoch': '1', 'seconds': '0.500', 'loss': '3.000000', 'test_acc': '0.2500', 'images_per_second': '8.0'},
        {'epoch': '2', 'seconds': '0.250', 'loss': '1.000000', 'test_acc': '0.7500', 'images_per_second': '4.0'}]
    out = capsys.readouterr().out.splitlines()
    assert out == ['epoch 1/2: loss 3.000, test acc 0.250, 0.5 s, 8 images/s',
                   'epoch 2/2: loss 1.000, test acc 0.750, 0.2 s, 4 images/s']


def test_the_file_is_there_after_each_epoch(tmp_path):
    log = TrainingLog(num_epochs=3, quiet=True, path=tmp_path / 'history.csv')
    for n in (1, 2):
        feed(log, [[[1.0]]])
        log.end_epoch(1.0, 0.5)
        assert len((tmp_path / 'history.csv').read_text().splitlines()) == 1 + n


def test_quiet_shows_nothing(capsys):
    log = TrainingLog(num_epochs=1, quiet=True)
    feed(log, [[[1.0]], [[1.0]]])
    log.end_epoch(1.0, 0.5)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ''


def test_the_bar_counts_finished_batches_of_the_whole_run(clock, monkeypatch, capsys):
    bars = []

    class Bar(training_log.tqdm):
        def __init__(self, **options):
            super().__init__(**{**options, 'disable': False})  # as on a terminal
            bars.append(self)

    monkeypatch.setattr(training_log, 'tqdm', Bar)
    log = TrainingLog(num_epochs=2)
    counts = []
    for _ in log.progress([None] * 3):
        clock[0] += 1
        log.add([np.array([0.5])])
        counts.append(bars[0].n)
    assert (bars[0].total, counts) == (6, [0, 1, 2])  # the batch just started is not finished
    log.end_epoch(1.0, 0.5)
    assert bars[0].n == 3
    for _ in log.progress([None] * 3):
        clock[0] += 1
        log.add([np.array([1.0])])
    log.end_epoch(1.0, 0.5)
    assert len(bars) == 1
    assert 'loss 0.500' in capsys.readouterr().err


@pytest.mark.parametrize('seconds, most', [(0.001, 16), (0.05, 5), (0.2, 1), (2, 1)])
def test_waits_four_times_a_second_or_every_sixteenth_batch(clock, seconds, most):
    """How many batches are started without waiting for one."""
    log = TrainingLog(num_epochs=1, quiet=True)
    started, read = [], []

    class Loss:
        size = 2

        def asnumpy(self):
            read.append(len(started))
            return numpy.ones(self.size)

    for batch in log.progress(range(50)):
        clock[0] += seconds
        started.append(batch)
        log.add([Loss()])
    log.end_epoch(1.0, 0.5)
    assert len(read) == 50
    read_at = sorted(set(read))
    assert {b - a for a, b in zip(read_at[1:], read_at[2:-1])} == {most}


@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
@pytest.mark.parametrize('batches_after', [1, 20])
def test_a_loss_that_is_no_number_ends_the_run(bad, batches_after):
    log = TrainingLog(num_epochs=1, quiet=True)
    with pytest.raises(DivergenceError, match=r'the loss is (nan|inf) in epoch 1, after 2 rows.*learning rate'):
        feed(log, [[[1.0, 1.0]], [[bad]], *[[[1.0]]] * batches_after])
        assert batches_after == 1
        log.end_epoch(1.0, 0.5)


def test_a_last_batch_that_is_no_number_is_found_too():
    log = TrainingLog(num_epochs=1, quiet=True)
    feed(log, [[[1.0]], [[float('nan')]]])
    with pytest.raises(DivergenceError):
        log.end_epoch(1.0, 0.5)
    assert log.history == []
