"""Timer, accumulator and history of a run, with a fake clock and losses given by hand."""
import io
import itertools
import json
import re
import sys
from types import SimpleNamespace

import numpy
import pytest
from failing import failing
from history_csv import history

from gluon_mgpu.base import progress
from gluon_mgpu.checkpoints.callback import CheckpointCallback
from gluon_mgpu.mxnet_setup.compat import gluon, init, np, npx
from gluon_mgpu.parallel.workers import Workers
from gluon_mgpu.training import epoch as epoch_module
from gluon_mgpu.training.epoch import DivergenceError
from gluon_mgpu.training.history import summary
from gluon_mgpu.training.run import Callback, Run
from gluon_mgpu.training.timer import Accumulator, Timer


@pytest.fixture
def clock(monkeypatch):
    """A fake clock: a list with the time in seconds, which the test changes."""
    now = [100.0]
    monkeypatch.setattr(epoch_module.time, 'perf_counter', lambda: now[0])
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


NO_PARAMETERS = [[], []]  # a network on two devices
NOT_BEGUN = {'num_batches': 0, 'epoch_length': 0, 'loss': 0.0, 'rows': 0, 'seconds': 0.0}  # an epoch


def feed(run, batches):
    """Run one epoch. `batches` are the losses: for each batch a list of shards, each a list of rows."""
    rows = [None] * len(batches)
    for _, shards in zip(run.batches(rows), batches):
        run.record_losses([np.array(shard) for shard in shards])
    # zip requests one batch more than there are, which ends the epoch


def test_history_by_hand(tmp_path, capsys, clock):
    run = Run(num_epochs=2, folder=tmp_path)
    epochs = run.epochs(NO_PARAMETERS, lr=lambda step: 0.5 ** step)
    assert next(epochs) == 1
    for _, shards in zip(run.batches([None] * 2), [[[1.0, 2.0], [3.0]], [[6.0]]]):
        clock[0] += 0.25
        run.record_losses([np.array(shard) for shard in shards])
    clock[0] += 10  # evaluation
    epoch = run.end_epoch(test_acc=0.25)
    # (1 + 2 + 3 + 6) / 4 rows; 4 rows in half a second
    assert epoch == (1, 0.5, 3.0, 0.25, 8.0, 0.25)
    assert next(epochs) == 2
    for _ in run.batches([None]):
        clock[0] += 0.25
        run.record_losses([np.array([1.0])])
    run.end_epoch(test_acc=0.75)
    assert next(epochs, 'no more') == 'no more'
    assert [e.epoch for e in run.history] == [1, 2]
    assert run.history[1].loss == 1  # the sums of the first epoch are not in it
    assert summary(run.history, ['cpu(0)']) == "test acc: 0.75, 0.4 sec/epoch on ['cpu(0)']"
    assert summary(run.history, ['gpu(0)'], 2) == "test acc: 0.75, 0.4 sec/epoch on ['gpu(0)'], 2 workers"

    assert history(tmp_path) == [
        {'epoch': '1', 'seconds': '0.500', 'loss': '3.000000', 'test_acc': '0.2500', 'images_per_second': '8.0',
         'lr': '0.25'},
        {'epoch': '2', 'seconds': '0.250', 'loss': '1.000000', 'test_acc': '0.7500', 'images_per_second': '4.0',
         'lr': '0.125'}]
    out = capsys.readouterr().out.splitlines()
    assert out == ['epoch 1/2: loss 3.000, test acc 0.250, 0.5 s, 8 images/s',
                   'epoch 2/2: loss 1.000, test acc 0.750, 0.2 s, 4 images/s']


def test_history_is_written_after_each_epoch(tmp_path):
    run = Run(num_epochs=3, quiet=True, folder=tmp_path)
    for n in run.epochs(NO_PARAMETERS):
        feed(run, [[[1.0]]])
        run.end_epoch(0.5)
        assert len(history(tmp_path)) == n


def test_a_run_continues_after_completed_epochs():
    run = Run(num_epochs=3, quiet=True)
    run.restore({'history': [[1, 2.0, 1.5, 0.4, 100.0], [2, 2.0, 1.0, 0.5, 100.0]], 'num_steps': 2, **NOT_BEGUN})
    epochs = []
    for epoch in run.epochs(NO_PARAMETERS):
        epochs.append(epoch)
        feed(run, [[[1.0]]])
        run.end_epoch(0.5)
    assert epochs == [3] and [e.epoch for e in run.history] == [1, 2, 3]


def test_quiet_shows_only_warnings(capsys):
    run = Run(num_epochs=1, quiet=True)
    for _ in run.epochs(NO_PARAMETERS):
        feed(run, [[[1.0]], [[1.0]]])
        run.end_epoch(0.5)
    run.print_summary(['cpu(0)'])
    captured = capsys.readouterr()
    assert captured.out == captured.err == ''
    run.warn('a full disk')
    assert capsys.readouterr() == ('', 'a full disk\n')


def test_a_bar_counts_the_finished_batches_of_each_epoch(clock, monkeypatch, capsys):
    bars = []

    class Bar(progress.ProgressBar):
        def __init__(self, shown=True, **options):
            progress.tqdm.__init__(self, **options, disable=not shown)  # as on a terminal
            bars.append(self)

    monkeypatch.setattr(progress, 'ProgressBar', Bar)
    run = Run(num_epochs=2)
    counts = []
    for epoch in run.epochs(NO_PARAMETERS):
        for _ in run.batches([None] * 3):
            clock[0] += 1
            run.record_losses([np.array([epoch / 2])])
            counts.append(bars[-1].n)
        assert (bars[-1].n, bars[-1].total) == (3, 3)
        clock[0] += 10 * epoch  # evaluation
        run.end_epoch(0.5)
    assert counts == [0, 1, 2, 0, 1, 2]  # the batch just started is not finished
    out, err = capsys.readouterr()
    assert 'epoch 2/2: trained in 3.0 s, evaluating' in err
    assert out.splitlines() == ['epoch 1/2: loss 0.500, test acc 0.500, 3.0 s, 1 images/s',
                                'epoch 2/2: loss 1.000, test acc 0.500, 3.0 s, 1 images/s, evaluated in 20.0 s']


class Recorder(Callback):
    """Callback that records its calls, with the numbers of batches and epochs at that time."""

    def __init__(self):
        self.calls = []


for name in ('epoch_begin', 'batch_end', 'epoch_trained', 'epoch_end', 'train_end'):
    def record(self, run, name=name):
        self.calls.append((name, run.state()['num_batches'], len(run.history)))
    setattr(Recorder, name, record)


def test_callbacks():
    callback = Recorder()
    run = Run(num_epochs=2, quiet=True, callbacks=[Callback(), callback])
    for _ in run.epochs(NO_PARAMETERS):
        feed(run, [[[1.0]], [[1.0]]])
        run.end_epoch(0.5)
    run.close()  # a second time: nothing happens
    assert callback.calls == [
        ('epoch_begin', 0, 0), ('batch_end', 1, 0), ('batch_end', 2, 0), ('epoch_trained', 2, 0), ('epoch_end', 0, 1),
        ('epoch_begin', 0, 1), ('batch_end', 1, 1), ('batch_end', 2, 1), ('epoch_trained', 2, 1), ('epoch_end', 0, 2),
        ('train_end', 0, 2)]


@pytest.mark.parametrize('given', [lambda found: found[0], lambda found: (callback for callback in found), tuple])
def test_callbacks_in_any_form(given):
    callback = Recorder()
    run = Run(num_epochs=1, quiet=True, callbacks=given([callback]))
    for _ in run.epochs(NO_PARAMETERS):
        feed(run, [[[1.0]]])
        run.end_epoch(0.5)
    assert [name for name, *_ in callback.calls] == ['epoch_begin', 'batch_end', 'epoch_trained', 'epoch_end',
                                                     'train_end']


def test_no_callbacks():
    assert Run(1, callbacks=None).callbacks == Run(1).callbacks == []
    for wrong in (5, print, Recorder, [Recorder], 'x'):
        with pytest.raises(ValueError, match='^callback .*: must be an object of a class derived from Callback'):
            Run(1, callbacks=wrong)


def test_train_end_is_called_after_an_error():
    callback = Recorder()
    run = Run(num_epochs=2, quiet=True, callbacks=[callback])
    with pytest.raises(DivergenceError):
        for _ in run.epochs(NO_PARAMETERS):
            feed(run, [[[float('nan')]], [[1.0]], [[1.0]]])
    assert [name for name, *_ in callback.calls] == ['epoch_begin', 'batch_end', 'train_end']


def test_train_end_of_all_callbacks_is_called_after_an_error_in_one():
    class Failing(Callback):
        def train_end(self, run):
            raise ValueError('no')

    callback = Recorder()
    with pytest.raises(ValueError, match='no'):
        Run(num_epochs=1, quiet=True, callbacks=[Failing(), callback]).close()
    assert [name for name, *_ in callback.calls] == ['train_end']


@pytest.mark.parametrize('net', [
    lambda: [[np.array([1.0]), np.array([1.0])], [np.array([1.0]), np.array([numpy.nan])]],
    lambda: [[np.array([1.0]), np.array([numpy.inf])]],
    lambda: dense(numpy.inf)], ids=['second device', 'one device', 'block'])
def test_a_parameter_that_is_not_finite_ends_the_run(net):
    """relu(NaN) is 0, so the loss may stay finite."""
    run = Run(num_epochs=2, quiet=True)
    with pytest.raises(DivergenceError, match=r'(parameter 1|weight) is no longer finite after epoch 1: use a '
                                              'smaller learning rate'):
        for _ in run.epochs(net()):
            feed(run, [[[1.0]]])
    assert run.history == []


def dense(value):
    net = gluon.nn.Dense(1, in_units=1)
    net.initialize(init.Constant(value))
    return net


def test_an_epoch_must_be_ended_and_have_losses():
    run = Run(num_epochs=2, quiet=True)
    with pytest.raises(ValueError, match=r'epoch 1 was not ended: call end_epoch\(test_acc\) after its batches'):
        for _ in run.epochs(NO_PARAMETERS):
            feed(run, [[[1.0]]])
    run = Run(num_epochs=1, quiet=True)
    for _ in run.batches([None]):
        pass
    with pytest.raises(ValueError, match=r'the epoch has no losses: call record_losses\(ls\)'):
        run.end_epoch(0.5)


def test_an_infinite_constant_does_not_end_the_run(tmp_path):
    """Such as that of a mask. A statistic of batch norm would."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.BatchNorm(in_channels=1), dense(1))
    net.initialize()
    net[1].bias.grad_req = 'null'
    net[1].bias.set_data(np.array([-numpy.inf]))
    run = Run(num_epochs=1, quiet=True, callbacks=[CheckpointCallback(tmp_path)])
    for _ in run.epochs(net):
        feed(run, [[[1.0]]])
        run.end_epoch(0.5)
    assert run.complete
    net[0].running_mean.set_data(np.array([numpy.inf]))
    with pytest.raises(DivergenceError, match='0.running_mean is no longer finite'):
        run = Run(num_epochs=1, quiet=True)
        for _ in run.epochs(net):
            feed(run, [[[1.0]]])


@pytest.mark.parametrize('test_acc, rule', [
    *[(value, 'a number of at least 0') for value in (None, 'high', -1, float('nan'))],
    *[(value, 'a share of the rows, from 0 to 1') for value in (1.5, 97.0)]])
def test_an_accuracy_that_is_no_share(test_acc, rule):
    run = Run(num_epochs=1, quiet=True)
    feed(run, [[[1.0]]])
    with pytest.raises(ValueError, match=f'^test_acc {test_acc!r}: must be {rule}$'):
        run.end_epoch(test_acc)
    assert run.end_epoch(0.5).test_acc == 0.5


def test_batches_are_read_once_in_an_epoch():
    run = Run(num_epochs=2, quiet=True)
    for epoch in run.epochs(NO_PARAMETERS):
        feed(run, [[[1.0]], [[2.0]]])
        if epoch == 2:
            with pytest.raises(ValueError, match=r'^the batches of epoch 2 were already read: call end_epoch'):
                feed(run, [[[3.0]]])
        run.end_epoch(0.5)
    assert len(run.history) == 2


def test_the_state_counts_batches_and_not_losses():
    """Here, a batch has two parts, and one batch no losses."""
    run = Run(num_epochs=1, quiet=True)
    for number in run.batches([1, 2, 3]):
        for _ in range(2 if number > 1 else 0):
            run.record_losses([np.ones(1)])
    state = run.state()
    assert (state['num_batches'], state['num_steps'], state['rows']) == (3, 3, 4)
    resumed = Run(num_epochs=1, quiet=True)
    resumed.restore({**state, 'num_batches': 2})
    assert resumed.state()['num_batches'] == 2
    assert list(resumed.batches([1, 2, 3])) == [3] and resumed.state()['num_batches'] == 3


def test_a_run_resumed_within_an_epoch_needs_as_many_batches():
    run = Run(num_epochs=2, quiet=True)
    for _ in run.batches([1, 2, 3, 4]):
        run.record_losses([np.ones(1)])
        run.synchronize()
        if run.state()['num_batches'] == 1:
            break
    state = run.state()
    assert (state['num_batches'], state['epoch_length']) == (1, 4)

    def resumed(train_iter, **changes):
        run = Run(num_epochs=2, quiet=True)
        run.restore({**state, **changes})
        return list(run.batches(train_iter))
    with pytest.raises(ValueError, match='^the run was stopped in an epoch of 4 batches, and train_iter has 2: resume'):
        resumed([12, 34])
    assert resumed([1, 2, 3, 4]) == [2, 3, 4] == resumed(map(int, '1234'))  # a map has no length
    assert resumed([12, 34], num_batches=0) == [12, 34]  # not within an epoch


def test_the_seconds_before_an_interruption_count(clock):
    run = Run(1, quiet=True)
    run.restore({**NOT_BEGUN, 'history': [], 'num_steps': 2, 'num_batches': 2, 'loss': 4.0, 'rows': 4, 'seconds': 6.0})
    for _ in run.batches([None] * 3):
        clock[0] += 2
        run.record_losses([np.ones(2)])
    epoch = run.end_epoch(0.5)
    assert (epoch.seconds, epoch.loss, epoch.images_per_second) == (8, 1, 6 / 8)


def test_a_learning_rate_that_the_caller_changes():
    class Plateau:
        rate = 0.5

        def __call__(self, step):
            return self.rate

    run, lr = Run(num_epochs=2, quiet=True), Plateau()
    for _ in run.epochs(NO_PARAMETERS, lr=lr):
        feed(run, [[[1.0]]])
        run.end_epoch(0.5)
        lr.rate /= 2
    assert [epoch.lr for epoch in run.history] == [0.5, 0.25]


def test_an_error_of_the_engine_does_not_end_the_next_run(devices):
    """MXNet raises the error of one device, and keeps that of the other for the next wait."""
    run = Run(num_epochs=1, quiet=True)
    with pytest.raises(RuntimeError, match='Check failed'):
        for _ in run.batches([1, 2]):
            run.record_losses([failing(device)[0] for device in devices])
    npx.waitall()


def test_losses_outside_the_batches():
    run = Run(num_epochs=1, quiet=True)
    for _ in run.epochs(NO_PARAMETERS):
        with pytest.raises(ValueError, match='record_losses was called outside run.batches: write'):
            run.record_losses([np.ones(2)])
        break


@pytest.mark.parametrize('one', [numpy.float32(1), np.array(1)])
def test_numbers_of_numpy_and_mxnet_can_be_stored(one):
    run = Run(num_epochs=1, quiet=True)
    for _ in run.epochs(NO_PARAMETERS, lr=lambda step: one):
        feed(run, [[[1.0]]])
        run.end_epoch(one)
    assert json.loads(json.dumps(run.state()))['history'] == [list(run.history[0])]
    assert (run.history[0].test_acc, run.history[0].lr) == (1, 1)


@pytest.mark.parametrize('shape', [(), (2, 1)])
def test_losses_that_are_not_one_per_row(shape):
    with pytest.raises(ValueError, match=rf'arrays \(n,\), .*, not an array {re.escape(str(shape))}: do not'):
        Run(1, quiet=True).record_losses([np.ones(shape)])


@pytest.mark.parametrize('ls, found', [(0.5, 'float'), ([0.5], 'float'), ([numpy.ones(2)], r'an array \(2,\)')])
def test_losses_that_are_no_arrays_of_mxnet(ls, found):
    with pytest.raises(ValueError, match=f'^record_losses needs a list of MXNet arrays .*, not {found}: do not'):
        Run(1, quiet=True).record_losses(ls)


def test_what_is_no_network_is_refused_before_training():
    with pytest.raises(ValueError, match='^int: expected a Gluon network, a list of arrays, or a list of such lists'):
        next(Run(1, quiet=True).epochs(5))


def test_an_epoch_that_is_left_early():
    """Its time and its progress would be unknown; the message says how to train fewer batches."""
    run, data = Run(1, quiet=True), [[np.ones(2)]] * 4
    for ls in run.batches(data):
        run.record_losses(ls)
        if run.state()['num_batches'] == 2:
            break
    with pytest.raises(ValueError, match='not read to the end: to train on fewer, pass shorter data, such as'):
        run.end_epoch(0.5)
    run = Run(1, quiet=True)
    for ls in run.batches(itertools.islice(data, 2)):
        run.record_losses(ls)
    assert run.state()['num_batches'] == 2 and run.end_epoch(0.5).epoch == 1 and run.state()['num_batches'] == 0


def test_a_batch_without_rows():
    run = Run(num_epochs=1, quiet=True)
    for _ in run.epochs(NO_PARAMETERS):
        feed(run, [[[1.0, 3.0]], [], [[5.0]], []])
        run.end_epoch(0.5)
    assert run.history[0].loss == 3.0


@pytest.mark.parametrize('num_epochs', [0, -1, 1.5, None])
def test_an_invalid_number_of_epochs(num_epochs):
    with pytest.raises(ValueError, match='num_epochs .*: must be an integer of at least 1'):
        Run(num_epochs)


@pytest.mark.parametrize('seconds, most', [(0.001, 16), (0.05, 5), (0.2, 1), (2, 1)])
def test_waits_four_times_a_second_or_every_sixteenth_batch(clock, seconds, most):
    """`most` is the number of batches between two waits."""
    run = Run(num_epochs=1, quiet=True)
    started, read = [], []

    class Loss:
        size, ndim = 2, 1

        def wait_to_read(self):
            pass

        def asnumpy(self):
            read.append(len(started))
            return numpy.ones(self.size)

    for epoch in run.epochs(NO_PARAMETERS):
        for batch in run.batches(range(50)):
            clock[0] += seconds
            started.append(batch)
            run.record_losses([Loss()])
        run.end_epoch(epoch / 2)
    assert len(read) == 50
    read_at = sorted(set(read))
    assert {b - a for a, b in zip(read_at[1:], read_at[2:-1])} == {most}


@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
@pytest.mark.parametrize('batches_after', [0, 1, 20])
def test_a_loss_that_is_not_finite_ends_the_run(bad, batches_after):
    run = Run(num_epochs=1, quiet=True)
    with pytest.raises(DivergenceError, match=r'the loss is (nan|inf) in epoch 1, batch 2: use a smaller .* rate'):
        feed(run, [[[1.0, 1.0]], [[bad]], *[[[1.0]]] * batches_after])
    assert run.history == []


@pytest.mark.parametrize('losses, line', [
    ([2.0, 0.5, 21.0], 'the loss has grown from 2 to 21: use a smaller learning rate\n'),
    ([5.3e7, 1.8e22], 'the loss has grown from 5.3e+07 to 1.8e+22: use a smaller learning rate\n'),
    ([2.0, 1e9, 20.0], ''), ([1e-6, 9.0], ''), ([-5.0, 9.0], ''), ([1e9], '')])
def test_a_loss_that_grows_and_stays_finite(losses, line, capsys):
    run = Run(len(losses), quiet=True)
    for epoch in run.epochs(NO_PARAMETERS):
        feed(run, [[[losses[epoch - 1]]]])
        run.end_epoch(0.5)
    assert capsys.readouterr().err == line


def test_a_run_cannot_be_used_again():
    """It would train nothing, but initialize the caller's network again."""
    run = Run(num_epochs=1, quiet=True)
    for _ in run.epochs(NO_PARAMETERS):
        feed(run, [[[1.0]]])
        run.end_epoch(0.5)
    for again in (run.check_data, lambda: next(run.epochs(NO_PARAMETERS))):
        with pytest.raises(ValueError, match='this Run ended after 1 of 1 epochs: create a new Run'):
            again()


def test_workers_get_the_parameters_once_with_the_first_batch():
    class OfTwo(Workers):
        size = 2

        def allgather(self, value):
            return [value, value]

        def broadcast_parameters(self, net, *args, statistics=True):
            calls.append((args, statistics, run.num_steps))

    class Shard(list):
        shard = (0, 2)

    calls, run = [], Run(2, quiet=True, workers=OfTwo(SimpleNamespace(received=0)))
    for _ in run.epochs(NO_PARAMETERS):
        for _ in run.batches(Shard([('X', 'y'), ('other', 'y')])):
            run.record_losses([np.zeros(1)])
        run.end_epoch(0.5)
    assert calls == [(('X',), True, 0)] and run.num_steps == 4


def test_batches_that_can_be_read_only_once():
    one, many = Run(1, quiet=True), Run(2, quiet=True)
    one.check_data(iter([1]), [1])
    many.check_data([1], range(3))
    for once in ((n for n in [1]), map(abs, [1]), zip([1])):
        with pytest.raises(ValueError, match='a (generator|map|zip) can be read only once, not in 2 epochs: pass'):
            many.check_data([1], once)
    batches = iter([[[1.0]]])
    with pytest.raises(ValueError, match='train_iter has no batches in epoch 2: pass batches that can be read again'):
        for _ in many.epochs(NO_PARAMETERS):
            for shards in many.batches(batches):
                many.record_losses([np.array(shard) for shard in shards])
            many.end_epoch(0.5)


def test_too_few_epochs_for_a_resumed_run():
    """It would have the parameters of epoch 2 and the accuracy of epoch 1."""
    state = {**NOT_BEGUN, 'history': [[1, 2.0, 1.5, 0.4, 100.0]], 'num_steps': 12, 'num_batches': 4, 'rows': 4}
    with pytest.raises(ValueError, match='num_epochs 1: must be at least 2, the epoch that the run has reached'):
        Run(1, quiet=True).restore(state)
    Run(2, quiet=True).restore(state)
    between_epochs = {**state, **NOT_BEGUN}
    Run(1, quiet=True).restore(between_epochs)
    with pytest.raises(ValueError, match='num_epochs 1: must be at least 2, the epoch that the run has reached'):
        Run(1, quiet=True).restore({**between_epochs, 'history': 2 * state['history']})


@pytest.mark.parametrize('error', [BrokenPipeError(32, 'Broken pipe'), OSError(28, 'No space left on device'),
                                   ValueError('I/O operation on closed file.')])
def test_a_line_that_cannot_be_printed_does_not_end_training(error, monkeypatch, capsys):
    class Gone(io.StringIO):
        def write(self, text):
            raise error

    monkeypatch.setattr(sys, 'stdout', Gone())
    run = Run(num_epochs=2)
    for _ in run.epochs(NO_PARAMETERS):
        feed(run, [[[1.0]]])
        run.end_epoch(0.5)
    run.print_summary(['cpu(0)'])
    assert len(run.history) == 2
    assert 'stdout cannot be written (' in capsys.readouterr().err
    monkeypatch.setattr(sys, 'stderr', Gone())
    run.warn('x')
    monkeypatch.setattr(sys, 'stderr', None)
    monkeypatch.setattr(sys, 'stdout', None)
    run.warn('x')
    run.print_summary(['cpu(0)'])
    for _ in Run(1).batches([1]):
        pass
