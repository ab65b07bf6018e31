"""Runs with --validation-size: training rows that are held out and evaluated instead of the test rows."""
from pathlib import Path

import idx_files
import pytest
from history_csv import history
from slow import slow

from gluon_mgpu import concise, scratch
from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.checkpoints.run_folder import BEST, checkpoints
from gluon_mgpu.programs import predict
from gluon_mgpu.settings import cli
from gluon_mgpu.training import evaluate

HELD_OUT = ['--num-epochs', 2, '--train-size', 42, '--validation-size', 11]  # two batches of 31 rows, the last of 15


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


def results(folder, column='validation_acc'):
    """Return the epochs of a run, and all bits of its last checkpoint."""
    epochs = [(row['epoch'], row['loss'], row[column]) for row in history(folder)]
    _, arrays = checkpoint.read(checkpoints(folder)[0])
    return epochs, {name: [array.tobytes() for array in kept] for name, kept in arrays.items()}


@pytest.mark.parametrize('k', [2, slow(1), slow(3)])
@pytest.mark.parametrize('chapter', [scratch, slow(concise)])
def test_it_trains_as_on_fewer_rows(chapter, k, program, device_list, monkeypatch):
    """The last rows of the training set are evaluated, and the test rows once, with the result of `predict`."""
    status, out, _ = program.start(*HELD_OUT, out='held', chapter=chapter, devices=device_list(k))
    assert status == 0
    program.start('--num-epochs', 2, '--train-size', 31, out='few', chapter=chapter, devices=device_list(k))
    held, few = results('held'), results('few', 'test_acc')
    assert held[1] == few[1] and [epoch[:2] for epoch in held[0]] == [epoch[:2] for epoch in few[0]]
    lines = out.splitlines()
    if k == 2:
        assert lines[1].startswith('31 training, 11 validation and 16 test images, batches of 16, ')
    summary, line = lines[-2:]
    accuracy = float(history('held')[-1]['validation_acc'])
    assert summary.startswith(f'validation acc: {accuracy:.2f}, ') and accuracy in [round(i / 11, 4) for i in range(12)]
    last = history('few')[-1]['test_acc']
    assert line == f'test acc: {last} on 16 test images, after the last epoch'
    assert 'test acc' not in '\n'.join(lines[:-1])
    monkeypatch.setattr(predict, 'draw_predictions', lambda *args: None)
    for folder in 'held', 'few':
        assert program(folder, chapter=predict)[1].startswith(f'test acc: {last} on 16 test images, after ')


def test_the_test_rows_are_evaluated_once(program, evaluated, devices):
    """On the devices of the training."""
    assert program.start(*HELD_OUT)[0] == 0
    assert evaluated == [(rows, devices) for rows in (11, 11, 16)]
    del evaluated[:]
    program.start('--num-epochs', 2, out='plain')
    assert evaluated == [(16, devices)] * 2


@pytest.mark.parametrize('chapter', [scratch, slow(concise)])
@pytest.mark.parametrize('method, num_steps', [('batch_end', 1), ('batch_end', 2), ('batch_end', 3), ('epoch_end', 4)])
def test_a_resumed_run_equals_an_uninterrupted_one(method, num_steps, chapter, program, stopped, evaluated):
    """Within an epoch and after one. It keeps the rows, and evaluates the test rows at its end only."""
    _, out, _ = program.start(*HELD_OUT, out='whole', chapter=chapter)
    del evaluated[:]
    with stopped(method, num_steps):
        status, again, _ = program.start(*HELD_OUT, chapter=chapter)
    assert status == 143 and 'test acc' not in again
    status, again, err = program.resume(chapter=chapter)
    assert (status, err) == (0, '') and again.splitlines()[-1] == out.splitlines()[-1]
    assert results(program.out) == results('whole')
    assert chapter is concise or [rows for rows, _ in evaluated] == [11, 11, 16]
    assert (program.config['train_size'], program.config['validation_size']) == (42, 11)
    assert program.config['resumed'][0]['changed'] == {}


def test_the_best_epoch_and_patience_follow_the_validation_rows(program, monkeypatch):
    """The accuracy on the test rows, which is asked for at the end, is another one."""
    accuracies = iter([0.5, 0.75, 0.25, 0.5, 0.9])
    monkeypatch.setattr(scratch, 'evaluate_accuracy_gpus', lambda net, rows, **options: (
        next(accuracies) if rows.num_rows == 11 else 1))
    status, out, _ = program.start(*HELD_OUT, '--keep-best', '--patience', 2, '--num-epochs', 9)
    assert status == 0 and len(history(program.out)) == 4
    assert len(checkpoint.read(program.out / BEST)[0]['metadata']['run']['history']) == 2
    assert 'epoch 4/9: loss ' in out and ', validation acc 0.500, ' in out


def test_a_resumed_run_has_the_same_rows(program):
    program.start(*HELD_OUT)
    for size in (10, 'none'):
        status, _, err = program.resume('--validation-size', size)
        assert status == 2
        assert err.startswith(f'scratch: --validation-size {size}: {program.newest} has 11, and a resumed run ')
    assert program.start(*HELD_OUT, '--num-epochs', 3, '--resume', 'auto')[0] == 0
    status, _, err = program.resume('--train-size', 43)
    assert status == 2 and err.startswith('scratch: digest of the train images and labels ')
    arrays = idx_files.dataset(64, 16)
    arrays['train-images-idx3-ubyte.gz'][41] ^= 1  # the last row that is held out
    idx_files.write(Path('data/mnist'), arrays)
    status, _, err = program.resume()
    assert status == 2 and err.startswith('scratch: digest of the validation images and labels ')


def test_the_curve_names_the_rows(program, figures):
    program.start(*HELD_OUT, '--plot', '--num-epochs', 1)
    assert figures[-1].axes[0].get_ylabel() == 'validation accuracy (share)'
