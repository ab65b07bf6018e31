"""Callbacks of a run, and early stopping, from accuracies given by hand."""
import json
from types import SimpleNamespace

import idx_files
import pytest
import stopped_runs
from epochs import NO_PARAMETERS, feed, train
from history_csv import history
from refused import refused
from two_workers import OfTwo, Shard

from gluon_mgpu import scratch
from gluon_mgpu.checkpoints.checkpoint_callback import CheckpointCallback
from gluon_mgpu.checkpoints.run_folder import checkpoints
from gluon_mgpu.mxnet_setup.compat import np
from gluon_mgpu.training.callback import Callback, Patience
from gluon_mgpu.training.epoch import DivergenceError
from gluon_mgpu.training.run import Run


def run_with(accuracies, *callbacks, num_epochs=None):
    """Train one batch per epoch, each with the next test accuracy; return the run."""
    run = Run(num_epochs or len(accuracies), quiet=True, callbacks=callbacks)
    for epoch in run.epochs([[np.zeros(1)]]):
        feed(run, [[[0.0]]])
        run.end_epoch(accuracies[epoch - 1])
    return run


@pytest.mark.parametrize('patience, accuracies, num_trained', [
    (1, [0.1, 0.2, 0.2, 0.3], 3),        # an equal accuracy is no improvement
    (2, [0.1, 0.2, 0.2, 0.3], 4),
    (2, [0.5, 0.1, 0.2, 0.6], 3),        # better than the epoch before is no improvement
    (2, [0.1, 0.3, 0.2, 0.4, 0.1, 0.2, 0.9], 6),
    (3, [0.5, 0.4, 0.3], 3),
])
def test_patience(patience, accuracies, num_trained):
    run = run_with(accuracies, Patience(patience))
    assert len(run.history) == num_trained and run.complete


def test_patience_must_be_a_number_of_epochs():
    assert 'patience 0: must be an integer of at least 1' in refused(Patience, 0)


@pytest.mark.parametrize('where', ['first', 'last'])
def test_a_run_that_a_callback_stops_is_complete(where, tmp_path):
    """The last checkpoint is written whatever the order; resumed, the run trains nothing, or continues."""
    def callbacks(resume=None, patience=1):
        found = [CheckpointCallback(tmp_path, every=100, resume=resume), Patience(patience)]
        return found if where == 'last' else found[::-1]

    accuracies = [0.1, 0.3, 0.2, 0.4, 0.1]
    run_with(accuracies, *callbacks())
    newest, = checkpoints(tmp_path)
    assert newest.name == 'checkpoint-00000003.safetensors'
    again = run_with(accuracies, *callbacks(newest))
    assert len(again.history) == 3 and again.complete and again.num_steps == 3
    assert len(run_with(accuracies, *callbacks(newest, patience=2)).history) == 5


def test_a_run_interrupted_before_its_end_stops_at_the_same_epoch(tmp_path):
    accuracies = [0.1, 0.3, 0.2, 0.1, 0.4]
    whole = run_with(accuracies, Patience(2))
    run_with(accuracies, CheckpointCallback(tmp_path), num_epochs=3)
    resumed = run_with(accuracies, CheckpointCallback(tmp_path, resume=checkpoints(tmp_path)[0]), Patience(2))
    assert len(whole.history) == len(resumed.history) == 4


def test_a_run_resumed_within_an_epoch_ends_after_it(tmp_path):
    """Its parameters are half-trained, and the accuracies are of earlier epochs."""
    signals, accuracies = SimpleNamespace(received=0), (0.3, 0.2, 0.1, 0.1)
    stopped_runs.train(tmp_path, signals, callbacks=[stopped_runs.SendSignal(signals, at=7)], accuracies=accuracies)
    newest, *_ = checkpoints(tmp_path)
    resumed, _ = stopped_runs.train(tmp_path, resume=newest, callbacks=[Patience(1)], accuracies=accuracies)
    assert [epoch.accuracy for epoch in resumed.history] == [0.3, 0.2, 0.1] and resumed.num_steps == 9


def test_all_workers_stop_if_the_callback_of_one_asks_for_it():
    """Here the callback of the other worker stops after two epochs."""
    def of_other(value):
        if not isinstance(value, bool):
            return value
        asked.append(value)
        return len(asked) == 3  # the first time before the first epoch

    class Never(Callback):
        def should_stop(self, run):
            assert len(run.history) > 0
            return False

    asked = []
    run = Run(5, quiet=True, callbacks=[Never()], workers=OfTwo(0, of_other))
    data = Shard([[np.zeros(1)]])
    for _ in run.epochs([[np.zeros(1)]]):
        for _ in run.batches(data):
            run.record_losses([np.zeros(1)])
        run.end_epoch(0.5)
    assert run.complete and len(run.history) == 2 and asked == [False] * 3


def test_the_flag(tmp_path, monkeypatch, capsys):
    idx_files.write(tmp_path / 'mnist', idx_files.dataset(16, 16))
    accuracies = iter([0.5, 0.4, 0.3, 0.6])
    monkeypatch.setattr(scratch, 'evaluate_accuracy_gpus', lambda *args, **options: next(accuracies))
    out = tmp_path / 'run'
    flags = ['--dataset', 'mnist', '--data-dir', str(tmp_path), '--devices', 'cpu:0', '--no-plot', '--num-epochs', '9']
    assert scratch.main([*flags, '--patience', '2', '--out-dir', str(out)]) == 0
    assert len(history(out)) == 3 and json.loads((out / 'config.json').read_text())['patience'] == 2
    assert capsys.readouterr().out.splitlines()[-1].startswith('test acc: 0.30')
    assert scratch.main(['--resume', str(out)]) == 0 and len(history(out)) == 3  # it is complete
    assert scratch.main(['--resume', str(out), '--patience', '3', '--num-epochs', '4']) == 0
    assert len(history(out)) == 4


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
    train(run, [[[1.0]], [[1.0]]])
    run.close()  # a second time: nothing happens
    assert callback.calls == [
        ('epoch_begin', 0, 0), ('batch_end', 1, 0), ('batch_end', 2, 0), ('epoch_trained', 2, 0), ('epoch_end', 0, 1),
        ('epoch_begin', 0, 1), ('batch_end', 1, 1), ('batch_end', 2, 1), ('epoch_trained', 2, 1), ('epoch_end', 0, 2),
        ('train_end', 0, 2)]


@pytest.mark.parametrize('given', [lambda found: found[0], lambda found: (callback for callback in found), tuple])
def test_callbacks_in_any_form(given):
    callback = Recorder()
    train(Run(num_epochs=1, quiet=True, callbacks=given([callback])))
    assert callback.calls[-1] == ('train_end', 0, 1)


def test_no_callbacks():
    assert Run(1, callbacks=None).callbacks == Run(1).callbacks == []


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
    assert 'no' in refused(Run(num_epochs=1, quiet=True, callbacks=[Failing(), callback]).close)
    assert [name for name, *_ in callback.calls] == ['train_end']
