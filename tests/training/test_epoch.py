"""Tests of an epoch: its batches, losses and time, with a fake clock."""
import itertools

import numpy
import pytest
from epochs import NO_PARAMETERS, NOT_BEGUN, feed, train
from refused import refused

from gluon_mgpu.base import progress
from gluon_mgpu.mxnet_setup.compat import np
from gluon_mgpu.training.epoch import DivergenceError
from gluon_mgpu.training.run import Run


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
        clock[0] += 10  # evaluation
        run.end_epoch(0.5)
    assert counts == [0, 1, 2, 0, 1, 2]  # the batch just started is not finished
    assert capsys.readouterr().out.splitlines() == ['epoch 1/2: loss 0.500, test acc 0.500, 3.0 s, 1 images/s',
                                'epoch 2/2: loss 1.000, test acc 0.500, 3.0 s, 1 images/s']


def test_an_epoch_must_be_ended_and_have_losses():
    run = Run(num_epochs=2, quiet=True)
    with pytest.raises(ValueError, match=r'epoch 1 was not ended: call end_epoch\(accuracy\) after its batches'):
        for _ in run.epochs(NO_PARAMETERS):
            feed(run, [[[1.0]]])
    run = Run(num_epochs=1, quiet=True)
    for _ in run.batches([None]):
        pass
    assert 'the epoch has no losses: call record_losses(ls)' in refused(run.end_epoch, 0.5)


@pytest.mark.parametrize('accuracy, rule', [
    *[(value, 'a number of at least 0') for value in (None, 'high', -1, float('nan'))],
    *[(value, 'a share of the rows, from 0 to 1') for value in (1.5, 97.0)]])
def test_an_accuracy_that_is_no_share(accuracy, rule):
    run = Run(num_epochs=1, quiet=True)
    feed(run, [[[1.0]]])
    assert refused(run.end_epoch, accuracy) == f'accuracy {accuracy!r}: must be {rule}'
    assert run.end_epoch(0.5).accuracy == 0.5


def test_batches_are_read_once_in_an_epoch():
    run = Run(num_epochs=2, quiet=True)
    for epoch in run.epochs(NO_PARAMETERS):
        feed(run, [[[1.0]], [[2.0]]])
        if epoch == 2:
            assert refused(feed, run, [[[3.0]]]).startswith('the batches of epoch 2 were already read: call end_epoch')
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
    for number in (2, 3, 5):
        with pytest.raises(ValueError, match=f'^the run was stopped in an epoch of 4 batches, .* has {number}: resume'):
            resumed([*range(number)])
    assert resumed([1, 2, 3, 4]) == [2, 3, 4] == resumed(map(int, '1234'))  # a map has no length
    assert resumed([12, 34], num_batches=0) == [12, 34]  # not within an epoch


def test_the_seconds_before_an_interruption_count(clock):
    """Those to read the batches trained before do not."""
    def reading():
        for batch in range(3):
            clock[0] += 1
            yield batch

    run = Run(1, quiet=True)
    run.restore({**NOT_BEGUN, 'history': [], 'num_steps': 2, 'num_batches': 2, 'loss': 4.0, 'rows': 4, 'seconds': 6.0})
    for _ in run.batches(reading()):
        clock[0] += 2
        run.record_losses([np.ones(2)])
    epoch = run.end_epoch(0.5)
    assert (epoch.seconds, epoch.loss, epoch.images_per_second) == (9, 1, 6 / 9)


def test_losses_outside_the_batches():
    run = Run(num_epochs=1, quiet=True)
    next(run.epochs(NO_PARAMETERS))
    assert 'record_losses was called outside run.batches: write' in refused(run.record_losses, [np.ones(2)])


@pytest.mark.parametrize('ls, found', [
    (0.5, 'float'), ([0.5], 'float'), ([numpy.ones(2)], 'an array (2,)'),
    ([np.ones(())], 'an array ()'), ([np.ones((2, 1))], 'an array (2, 1)')])
def test_losses_that_are_not_one_per_row(ls, found):
    line = refused(Run(1, quiet=True).record_losses, ls)
    assert line.startswith('record_losses needs a list of MXNet arrays (n,), ') and f', not {found}: do not' in line


def left_early(data):
    """Return a run that is left after two batches."""
    run = Run(1, quiet=True)
    for ls in itertools.islice(run.batches(data), 2):
        run.record_losses(ls)
    run.synchronize()
    return run


def test_an_epoch_that_is_left_early():
    """Its time and its progress would be unknown; the message says how to train fewer batches."""
    data = [[np.ones(2)]] * 4
    resumed = Run(1, quiet=True)
    resumed.restore(left_early(data).state())
    for run in (left_early(data), resumed):  # some of the batches would count as the whole epoch
        assert 'not read to the end: to train on fewer, pass shorter data, such as' in refused(run.end_epoch, 0.5)
    run = Run(1, quiet=True)
    for ls in run.batches(itertools.islice(data, 2)):
        run.record_losses(ls)
    assert run.state()['num_batches'] == 2 and run.end_epoch(0.5).epoch == 1 and run.state()['num_batches'] == 0


def test_a_batch_without_rows():
    assert train(Run(num_epochs=1, quiet=True), [[[1.0, 3.0]], [], [[5.0]], []]).history[0].loss == 3.0


@pytest.mark.parametrize('num_epochs', [0, -1, 1.5, None])
def test_an_invalid_number_of_epochs(num_epochs):
    assert refused(Run, num_epochs) == f'num_epochs {num_epochs}: must be an integer of at least 1'


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
    assert {b - a for a, b in itertools.pairwise(read_at[1:-1])} == {most}


@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
@pytest.mark.parametrize('batches_after', [0, 1, 20])
def test_a_loss_that_is_not_finite_ends_the_run(bad, batches_after):
    run = Run(num_epochs=1, quiet=True)
    with pytest.raises(DivergenceError, match=r'the loss is (nan|inf) in epoch 1, batch 2: use a smaller .* rate'):
        feed(run, [[[1.0, 1.0]], [[bad]], *[[[1.0]]] * batches_after])
    assert run.history == []


def test_means_of_shards():
    """With mx.nd, they have the shape (1,). Loss and images/s would be wrong, and the step itself as well."""
    def run_of(*sizes):
        run = Run(1, quiet=True)
        for _ in run.batches([(np.ones((8, 2)), np.ones(8))]):
            run.record_losses([np.ones(size) for size in sizes])
        return run

    assert refused(run_of, 1, 1).startswith('the losses have 2 values for 8 rows: record one for each row, because')
    for sizes in ((4, 4), (2, 1)):  # y may have the rows in another axis
        assert run_of(*sizes).end_epoch(0.5).loss == 1
