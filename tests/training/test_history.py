"""Tests of the history of a run, with a fake clock and losses given by hand."""
import pytest
from epochs import NO_PARAMETERS, feed
from history_csv import history

from gluon_mgpu.mxnet_setup.compat import np
from gluon_mgpu.training.history import EpochResult, read_history, summary, write_history
from gluon_mgpu.training.run import Run


def test_history_by_hand(tmp_path, capsys, clock):
    run = Run(num_epochs=2, folder=tmp_path)
    epochs = run.epochs(NO_PARAMETERS, lr=lambda step: 0.5 ** step)
    assert next(epochs) == 1
    for _, shards in zip(run.batches([None] * 2), [[[1.0, 2.0], [3.0]], [[6.0]]]):
        clock[0] += 0.25
        run.record_losses([np.array(shard) for shard in shards])
    clock[0] += 10  # evaluation
    epoch = run.end_epoch(accuracy=0.25)
    # (1 + 2 + 3 + 6) / 4 rows; 4 rows in half a second
    assert epoch == (1, 0.5, 3.0, 0.25, 8.0, 0.25)
    assert next(epochs) == 2
    for _ in run.batches([None]):
        clock[0] += 0.25
        run.record_losses([np.array([1.0])])
    run.end_epoch(accuracy=0.75)
    assert next(epochs, 'no more') == 'no more'
    assert [e.epoch for e in run.history] == [1, 2]
    assert run.history[1].loss == 1  # the sums of the first epoch are not in it
    assert summary(run.history, ['cpu(0)']) == 'test acc: 0.75, 0.4 sec/epoch on [cpu(0)]'
    assert summary(run.history, ['gpu(0)'], 2) == 'test acc: 0.75, 0.4 sec/epoch on [gpu(0)], 2 workers'

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


def test_an_accuracy_on_validation_rows(tmp_path, capsys, clock):
    run = Run(1, folder=tmp_path, evaluated='validation')
    for _ in run.epochs(NO_PARAMETERS):
        for _ in run.batches([None]):
            clock[0] += 0.5
            run.record_losses([np.array([1.0])])
        clock[0] += 20
        run.end_epoch(0.25)
    run.print_summary(['cpu(0)'])
    assert capsys.readouterr().out.splitlines() == [
        'epoch 1/1: loss 1.000, validation acc 0.250, 0.5 s, 2 images/s',
        'validation acc: 0.25, 0.5 sec/epoch on [cpu(0)]']
    assert read_history(tmp_path / 'history.csv') == ([(1, 0.5, 1, 0.25, 2, None)], 'validation')


HEADER = 'epoch,seconds,loss,test_acc,images_per_second'


def test_a_history_is_read_as_it_was_written(tmp_path):
    history = [EpochResult(1, 2.5, -1.5, 0.25, 8.0, 0.125), EpochResult(2, 2.0, 1.0, 1.0, 4.0, None)]
    write_history(history, tmp_path / 'history.csv')
    assert read_history(tmp_path / 'history.csv') == (history, 'test')
    (tmp_path / 'history.csv').write_text(f'{HEADER}\n1,2,3,1,5\n')  # as written by the first version
    assert read_history(tmp_path / 'history.csv') == ([(1, 2, 3, 1, 5, None)], 'test')


@pytest.mark.parametrize('text, problem', [
    ('epoch\n1\n', "lacks 'seconds'"), (f'{HEADER}\n1,x,3,1,5\n', 'is damaged, could not convert'),
    (f'{HEADER}\n2,2,3,1,5\n', 'is damaged, epoch 1 of its history is malformed'),
    (f'{HEADER}\n1,2\n', 'is damaged, float'), ('\xff', "is damaged, 'utf-8' codec can't decode")])
def test_another_file_is_named_with_its_problem(text, problem, tmp_path):
    path = tmp_path / 'history.csv'
    path.write_bytes(text.encode('latin-1'))
    with pytest.raises(ValueError) as error:
        read_history(path)
    assert str(error.value).startswith(f'{path} {problem}')
