"""Runs: what they continue, print and refuse."""
import io
import json
import random
import sys

import numpy
import pytest
from epochs import NO_PARAMETERS, NOT_BEGUN, feed, train
from refused import refused
from two_workers import OfTwo, Shard

from gluon_mgpu.mxnet_setup.compat import gluon, np
from gluon_mgpu.training.run import Run
from gluon_mgpu.training.seeds import seed_all


def test_a_run_continues_after_completed_epochs():
    run = Run(num_epochs=3, quiet=True)
    run.restore({'history': [[1, 2.0, 1.5, 0.4, 100.0], [2, 2.0, 1.0, 0.5, 100.0]], 'num_steps': 2, **NOT_BEGUN})
    assert [epoch.epoch for epoch in train(run).history] == [1, 2, 3]


def test_quiet_shows_only_warnings(capsys):
    run = train(Run(num_epochs=1, quiet=True))
    run.print_summary(['cpu(0)'])
    run.warn('a full disk')
    assert capsys.readouterr() == ('', 'a full disk\n')


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


@pytest.mark.parametrize('one', [numpy.float32(1), np.array(1)])
def test_numbers_of_numpy_and_mxnet_can_be_stored(one):
    run = Run(num_epochs=1, quiet=True)
    train(run, lr=lambda step: one, test_acc=one)
    assert json.loads(json.dumps(run.state()))['history'] == [list(run.history[0])]
    assert (run.history[0].accuracy, run.history[0].lr) == (1, 1)


def test_a_huge_loss_fits_the_line(capsys):
    train(Run(1), [[[9.76e28]]])
    assert capsys.readouterr().out.startswith('epoch 1/1: loss 9.76e+28, test acc 0.500, ')


def test_a_run_cannot_be_used_again():
    """It would train nothing, but initialize the caller's network again."""
    run = train(Run(num_epochs=1, quiet=True))
    for again in (run.check_data, lambda: next(run.epochs(NO_PARAMETERS))):
        assert 'this Run ended after 1 of 1 epoch: create a new Run' in refused(again)


def test_batches_that_can_be_read_only_once():
    one, many = Run(1, quiet=True), Run(2, quiet=True)
    one.check_data(iter([(1, 1)]), [(1, 1)])
    many.check_data([(1, 1)], range(3))
    for once in ((n for n in [(1, 1)]), map(abs, [(1, 1)]), zip([(1, 1)])):
        with pytest.raises(ValueError, match='a (generator|map|zip) can be read only once, not in 2 epochs: pass'):
            many.check_data([(1, 1)], once)
    batches = iter([[[1.0]]])
    with pytest.raises(ValueError, match='train_iter has no batches in epoch 2: pass batches that can be read again'):
        for _ in many.epochs(NO_PARAMETERS):
            for shards in many.batches(batches):
                many.record_losses([np.array(shard) for shard in shards])
            many.end_epoch(0.5)


def test_a_wrong_seed_or_folder():
    for seed in ('x', -1, True):
        line = refused(next, Run(1).epochs(NO_PARAMETERS, seed=seed))
        assert line == f'seed {seed!r}: must be an integer of at least 0'
    for folder in (__file__, 'missing'):
        assert refused(Run, 1, folder=folder) == f'folder {folder}: must be an existing folder'


def test_settings_have_names():
    """A folder would otherwise become `quiet`: nothing printed, nothing written."""
    with pytest.raises(TypeError, match='positional argument'):
        Run(10, 'runs/mine')


def test_batches_that_do_not_know_their_number():
    class Sampler(list):
        __len__ = None

    data = gluon.data.DataLoader(gluon.data.SimpleDataset([1, 2]), batch_sampler=Sampler([[0], [1]]))
    Run(2, quiet=True).check_data(data)
    assert len([*data]) == 2


def test_too_few_epochs_for_a_resumed_run():
    """It would have the parameters of epoch 2 and the accuracy of epoch 1."""
    state = {**NOT_BEGUN, 'history': [[1, 2.0, 1.5, 0.4, 100.0]], 'num_steps': 12}
    within_epoch_2 = {**state, 'num_batches': 4, 'rows': 4}
    after_epoch_2 = {**state, 'history': [*state['history'], [2, 2.0, 1.5, 0.4, 100.0]]}
    for too_far in (within_epoch_2, after_epoch_2):
        line = refused(Run(1, quiet=True).restore, too_far)
        assert 'num_epochs 1: must be at least 2, the epoch that the run has reached' in line
        Run(2, quiet=True).restore(too_far)
    Run(1, quiet=True).restore(state)


@pytest.mark.parametrize('error', [BrokenPipeError(32, 'Broken pipe'), OSError(28, 'No space left on device'),
                                   ValueError('I/O operation on closed file.')])
def test_a_line_that_cannot_be_printed_does_not_end_training(error, monkeypatch, capsys):
    class Gone(io.StringIO):
        def write(self, text):
            raise error

    monkeypatch.setattr(sys, 'stdout', Gone())
    run = train(Run(num_epochs=2))
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


def test_workers_get_the_parameters_once_with_the_first_batch():
    """Without running statistics if the run is resumed: each worker has its own."""
    class Recording(OfTwo):
        def broadcast_parameters(self, net, *args, statistics=True):
            calls.append((args, statistics, run.num_steps))

    calls, state = [], None
    for num_epochs in (2, 3):
        run = Run(num_epochs, quiet=True, workers=Recording())
        if state:
            run.restore(state)
        for _ in run.epochs(NO_PARAMETERS):
            for _ in run.batches(Shard([('X', 'y'), ('other', 'y')])):
                run.record_losses([np.zeros(1)])
            run.end_epoch(0.5)
        state = run.state()
    assert calls == [(('X',), True, 0), (('X',), False, 4)] and run.num_steps == 6


def test_each_epoch_has_its_own_random_numbers():
    """The same as in another run with the same seed, and when it is resumed."""
    def draws(seed, state=None):
        run, found = Run(num_epochs=3, quiet=True), []
        if state:
            run.restore(state)
        for _ in run.epochs(NO_PARAMETERS, seed=seed):
            for _ in run.batches([1]):
                found.append((float(np.random.uniform()), numpy.random.random(), random.random()))
                run.record_losses([np.ones(1)])
            run.end_epoch(0.5)
        return found

    first, second, third = draws(0)
    assert len({*first, *second, *third}) == 9
    assert draws(0) == [first, second, third] and not {first, second, third} & {*draws(1)}
    assert draws(0, {**NOT_BEGUN, 'history': [[1, 2.0, 1.5, 0.5, 100.0]], 'num_steps': 1}) == [second, third]


def test_the_random_numbers_of_an_epoch_stay_when_the_package_changes():
    """A run that was started with an earlier version resumes with the same ones."""
    seed_all(0, 1)
    assert numpy.random.get_state()[1][0] == 1817441348  # SeedSequence((0, 1)) % 2**31


@pytest.mark.parametrize('state', [None, [], {}, {**NOT_BEGUN, 'history': [[1]], 'num_steps': 1}])
def test_what_is_no_state_is_refused(state):
    run = Run(num_epochs=3, quiet=True)
    with pytest.raises(ValueError, match='is missing or malformed|its history is malformed'):
        run.restore(state)
    assert run.history == [] and run.num_steps == 0
