"""Runs with --validation-size: training rows that are held out and evaluated instead of the test rows."""
import re
import signal
from pathlib import Path

import idx_files
import pytest
from devices_flag import devices_flag
from history_csv import history
from slow import slow

from gluon_mgpu import concise, scratch
from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.checkpoints.run_folder import BEST, checkpoints, read_config
from gluon_mgpu.programs import predict
from gluon_mgpu.settings import cli
from gluon_mgpu.training import evaluate
from gluon_mgpu.training.callback import Callback

HELD_OUT = ['--train-size', '42', '--validation-size', '11']  # of 48: two batches of 31 rows, the last of 15


@pytest.fixture
def train(tmp_path, monkeypatch, capsys, devices):
    """A function that trains in a new folder, or resumes in it; returns its exit status, standard output and errors."""
    arrays = idx_files.dataset(48, 20)
    idx_files.write(tmp_path / 'data/mnist', arrays)
    monkeypatch.chdir(tmp_path)

    def run(folder, *flags, chapter=scratch, on=devices):
        words = ['--resume', folder] if (tmp_path / folder).exists() else [
            '--dataset', 'mnist', '--data-dir', 'data', '--batch-size', '16', '--num-epochs', '2', '--no-plot',
            *devices_flag(on), '--out-dir', folder]
        status = chapter.main([*words, *map(str, flags)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def evaluated(monkeypatch):
    """The number of rows, the devices of all completed evaluations of scratch, in order."""
    found = []

    def record(net, data_iter, **options):
        accuracy = evaluate.evaluate_accuracy_gpus(net, data_iter, **options)
        found.append((data_iter.num_rows, options['devices']))
        return accuracy

    for module in scratch, cli:
        monkeypatch.setattr(module, 'evaluate_accuracy_gpus', record)
    return found


def bits(path):
    return {name: [array.tobytes() for array in arrays] for name, arrays in checkpoint.read(path)[1].items()}


def results(folder, column='validation_acc'):
    """Return the epochs of a run, and all bits of its last checkpoint."""
    epochs = [(row['epoch'], row['loss'], row[column]) for row in history(folder)]
    return epochs, bits(checkpoints(folder)[0])


@pytest.mark.parametrize('k', [2, slow(1), slow(3)])
@pytest.mark.parametrize('chapter', [scratch, slow(concise)])
def test_it_trains_as_on_fewer_rows(chapter, k, train, device_list, capsys, monkeypatch):
    """The last rows of the training set are evaluated, and the test rows once, with the result of `predict`."""
    status, out, _ = train('held', *HELD_OUT, chapter=chapter, on=device_list(k))
    assert status == 0
    train('few', '--train-size', 31, chapter=chapter, on=device_list(k))
    held, few = results('held'), results('few', 'test_acc')
    assert held[1] == few[1] and [epoch[:2] for epoch in held[0]] == [epoch[:2] for epoch in few[0]]
    lines = out.splitlines()
    if k == 2:
        assert lines[1].startswith('31 training, 11 validation and 20 test images, batches of 16, ')
    summary, line = lines[-2:]
    accuracy = float(history('held')[-1]['validation_acc'])
    assert summary.startswith(f'validation acc: {accuracy:.2f}, ') and accuracy in [round(i / 11, 4) for i in range(12)]
    last = history('few')[-1]['test_acc']
    assert line == f'test acc: {last} on 20 test images, after the last epoch'
    assert 'test acc' not in '\n'.join(lines[:-1])
    monkeypatch.setattr(predict, 'draw_predictions', lambda *args: None)
    for folder in 'held', 'few':
        assert predict.main([folder]) == 0
        assert capsys.readouterr().out.startswith(f'test acc: {last} on 20 test images, after ')


def test_the_test_rows_are_evaluated_once(train, evaluated, devices):
    """On the devices of the training."""
    on = devices[:2]
    assert train('run', *HELD_OUT, on=on)[0] == 0
    assert evaluated == [(rows, on) for rows in (11, 11, 20)]
    del evaluated[:]
    train('plain', on=on)
    assert evaluated == [(20, on)] * 2


@pytest.mark.parametrize('chapter', [scratch, slow(concise)])
@pytest.mark.parametrize('steps', [1, 2, 3])
def test_a_resumed_run_equals_an_uninterrupted_one(steps, chapter, train, monkeypatch):
    """Within an epoch and after one. It keeps the rows, and evaluates the test rows at its end only."""
    _, out, _ = train('whole', *HELD_OUT, chapter=chapter)

    class Stop(Callback):
        def batch_end(self, run):
            if run.num_steps == steps:
                signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr('gluon_mgpu.settings.cli.Job._callbacks', lambda job: [Stop()])
        status, stopped, _ = train('run', *HELD_OUT, chapter=chapter)
    assert status == 143 and 'test acc' not in stopped
    status, again, err = train('run', chapter=chapter)
    assert (status, err) == (0, '') and again.splitlines()[-1] == out.splitlines()[-1]
    assert results('run') == results('whole')
    config = read_config(Path('run'))
    assert (config['train_size'], config['validation_size'], config['resumed'][0]['changed']) == (42, 11, {})


def test_a_signal_after_the_last_epoch(train, monkeypatch, evaluated):
    """The test rows are not evaluated; the printed command evaluates them."""
    class Stop(Callback):
        def epoch_end(self, run):
            if run.complete:
                signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr('gluon_mgpu.settings.cli.Job._callbacks', lambda job: [Stop()])
        status, out, err = train('run', *HELD_OUT)
    assert status == 143 and 'test acc' not in out
    assert 'stopped after epoch 2; resume with: python -m gluon_mgpu.scratch --resume auto --out-dir run' in err
    status, out, _ = train('run')
    assert status == 0 and re.match(r'test acc: [01]\.\d{4} on 20 test images', out.splitlines()[-1])
    assert [rows for rows, *_ in evaluated] == [11, 11, 20]


def test_the_best_epoch_and_patience_follow_the_validation_rows(train, monkeypatch):
    """The accuracy on the test rows, which is asked for at the end, is another one."""
    accuracies = iter([0.5, 0.75, 0.25, 0.5, 0.9])
    monkeypatch.setattr(scratch, 'evaluate_accuracy_gpus', lambda net, rows, **options: (
        next(accuracies) if rows.num_rows == 11 else 1))
    status, out, _ = train('run', *HELD_OUT, '--keep-best', '--patience', 2, '--num-epochs', 9)
    assert status == 0 and len(history('run')) == 4
    assert len(checkpoint.read(f'run/{BEST}')[0]['metadata']['run']['history']) == 2
    assert 'epoch 4/9: loss ' in out and ', validation acc 0.500, ' in out


def test_a_resumed_run_has_the_same_rows(train, tmp_path):
    train('run', *HELD_OUT)
    train('plain', '--train-size', 31)
    for folder, size, recorded in ('run', 10, 11), ('run', 'none', 11), ('plain', 11, 'none'):
        status, _, err = train(folder, '--validation-size', size)
        path = checkpoints(folder)[0]
        assert status == 2 and err.startswith(f'scratch: --validation-size {size}: {path} has {recorded}, and a ')
    assert train('run', *HELD_OUT, '--num-epochs', 3)[0] == 0
    status, _, err = train('run', '--train-size', 43)
    assert status == 2 and err.startswith('scratch: digest of the train images and labels ')
    arrays = idx_files.dataset(48, 20)
    arrays['train-images-idx3-ubyte.gz'][41] ^= 1  # the last row that is held out
    idx_files.write(tmp_path / 'data/mnist', arrays)
    status, _, err = train('run')
    assert status == 2 and err.startswith('scratch: digest of the validation images and labels ')


def test_the_curve_names_the_rows(train, figures):
    train('run', *HELD_OUT, '--plot', '--num-epochs', 1)
    assert figures[-1].axes[0].get_ylabel() == 'validation accuracy (share)'
