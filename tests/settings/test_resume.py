"""A run resumed from a checkpoint gives exactly the same results as an uninterrupted one."""
import contextlib
import functools
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
from gluon_mgpu.checkpoints import checkpoint, checkpoint_callback as callback
from gluon_mgpu.checkpoints.checkpoint_callback import CheckpointCallback
from gluon_mgpu.checkpoints.run_folder import checkpoints, lock_folder
from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.mxnet_setup.compat import gluon
from gluon_mgpu.networks.loss import cross_entropy
from gluon_mgpu.parallel.accumulation import concise_in_parts, scratch_in_parts
from gluon_mgpu.parallel.allreduce import ALGORITHMS
from gluon_mgpu.parallel.clipping import ClippingTrainer
from gluon_mgpu.parallel.sync_batch_norm.synchronized import SyncBatchNorm
from gluon_mgpu.parallel.sync_batch_norm.train_batch import train_batch_synchronized
from gluon_mgpu.programs import predict
from gluon_mgpu.programs.onnx import export
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
    return [(e.epoch, e.loss, e.accuracy, e.lr) for e in run.history], bits(arrays)


def bits(arrays):
    return {name: [(a.dtype, a.shape, a.tobytes()) for a in kept] for name, kept in arrays.items()}


def checkpoint_after(num_steps, folder):
    return folder / f'checkpoint-{num_steps:08}.safetensors'


@pytest.mark.parametrize('k', [2, slow(1), slow(4)])
@pytest.mark.parametrize('algorithm', [None, *map(slow, ALGORITHMS)])
def test_lenet(k, algorithm, device_list, data, tmp_path, keep_all):
    options = {'allreduce': ALGORITHMS[algorithm]} if algorithm else {}
    whole = train(scratch, device_list(k), data, tmp_path / 'whole', **options)
    for step in (1, 3, 5, 9):  # 5: after all batches of an epoch, before its evaluation
        assert train(scratch, device_list(k), data, tmp_path / str(step),
                     resume=checkpoint_after(step, tmp_path / 'whole'), **options) == whole
    assert len(whole[0]) == EPOCHS


@pytest.mark.parametrize('k', [slow(1), 2, slow(3)])
@pytest.mark.parametrize('settings', [
    {'optimizer_params': {'momentum': 0.9}}, slow({'optimizer': 'adam'}),
    slow({'optimizer_params': {'momentum': 0.9}, 'train_batch': train_batch_synchronized}),
    {'Trainer': functools.partial(ClippingTrainer, clip_norm=0.1)}])
def test_other_optimizers_resume_within_an_epoch(settings, k, device_list, data, tmp_path, keep_all):
    devices = device_list(k)
    wrap = SyncBatchNorm if 'train_batch' in settings else lambda net: net
    plain = train(concise, devices, data, tmp_path / 'plain', net=small_resnet(devices))
    whole = train(concise, devices, data, tmp_path / 'whole', net=wrap(small_resnet(devices)), **settings)
    assert whole != plain
    for step in (3, 5, 9):
        assert train(concise, devices, data, tmp_path / str(step), net=wrap(small_resnet(devices)),
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
        return [(e.epoch, e.loss, e.accuracy) for e in run.history], bits(checkpoint.read(checkpoints(folder)[0])[1])

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
            return {'train_batch': scratch_in_parts(scratch.train_batch, 2)}
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Flatten(), gluon.nn.Dense(10))
        return {'net': net, 'optimizer_params': {'momentum': 0.9, 'wd': 0.01},
                'train_batch': concise_in_parts(concise.train_batch, 2)}

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
    line = f'resuming from {program.out}/checkpoint-00000008.safetensors, the end of the run: to train longer'
    assert (status, err) == (0, '') and line in out
    assert 'epoch 1' not in out and out.splitlines()[-1] == last_line
    status, out, _ = program.start('--num-epochs', 3, '--resume', 'auto')
    assert status == 0 and 'epoch 3/3' in out and 'epoch 2/3' not in out and 'num_epochs 3 instead of 2' in out
    assert [row['epoch'] for row in history(program.out)] == ['1', '2', '3']
    assert len(checkpoints(program.out)) == 2


def test_a_diverged_run_can_be_continued_with_another_rate(program):
    flags = ['--out-dir', program.out, '--num-epochs', 2, '--lr']
    status, _, err = program.start('--num-epochs', 2, '--lr', 1e30)
    assert status == 2 and 'use a smaller learning rate' in err
    _, _, err = program.start('--num-epochs', 2, '--lr', 0.1)
    assert err.endswith('give another --out-dir, or, to resume the run in it, --resume auto\n')
    assert program('--resume', 'auto', *flags, 0.1)[0] == 0


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


@pytest.mark.parametrize('flags, message', [
    (['--batch-size', 32], '--batch-size 32: {path} has 16, and a resumed run cannot change it; leave it as it'),
    (['--seed', 1], '--seed 1: {path} has 0'), (['--dataset', 'glyphs'], '--dataset glyphs: {path} has mnist'),
    (['--validation-size', 8], '--validation-size 8: {path} has none'),
    (['--train-size', 48], 'digest of the train images and labels '),
    (['--test-size', 8], 'digest of the test images and labels ')])
def test_flags_of_another_run_are_rejected(flags, message, program):
    program.start('--num-epochs', 1)
    message = message.format(path=checkpoints(program.out)[0])
    assert error_of(program, '--resume', program.out, *flags).startswith(f'scratch: {message}')


def test_another_chapter_is_rejected(program):
    program.start('--num-epochs', 1)
    line = error_of(program, '--resume', program.out, chapter=concise)
    assert line == f'concise: {program.out} is a run of scratch, not of concise: resume it with that program'
    (program.out / 'config.json').write_text('[' * 100000)
    assert 'is not the folder of a run: its config.json is missing' in error_of(program, '--resume', program.out)


@pytest.mark.parametrize('name, value', [('shares', '3,1'), ('label_smoothing', 0.1)])
def test_a_run_with_a_setting_that_no_longer_exists(name, value, program):
    """As of version 3, which recorded it also where it was not used."""
    program.start('--num-epochs', 1)
    config = program.config()
    (program.out / 'config.json').write_text(json.dumps({**config, name: value}))
    assert error_of(program, '--resume', program.out) == (
        f'scratch: {program.out} was trained with {name} {value}, which this version of gluon_mgpu does not have: '
        'resume it with version 3, or start a new run')
    (program.out / 'config.json').write_text(json.dumps({**config, 'shares': None, 'label_smoothing': 0.0,
                                                         'export': None, 'process': {'pid': 1}}))
    assert program('--resume', program.out, '--num-epochs', 2)[0] == 0


def test_a_run_recorded_before_settings_existed(program):
    """They have their defaults, and a change from them is a change."""
    program.start('--num-epochs', 1)
    config = {name: value for name, value in program.config().items() if name not in ('accumulate', 'lr_schedule')}
    (program.out / 'config.json').write_text(json.dumps(config))
    replace_metadata(checkpoints(program.out)[0], {'config': config})
    assert program('--resume', program.out, '--num-epochs', 2)[0] == 0
    assert program.config()['resumed'][0]['changed'] == {'num_epochs': [1, 2]}
    assert program.config()['accumulate'] == 1


def test_an_earlier_checkpoint_is_used_only_if_no_newer_one_would_be_lost(program):
    program.start('--num-epochs', 2)
    older, newer = checkpoints(program.out)[::-1]
    status, _, err = program('--resume', older)
    assert (status, err) == (2, f'scratch: {newer} would be lost: resume from it, or move it elsewhere first\n')
    newer.rename(program.out.parent / 'elsewhere')
    status, out, _ = program('--resume', older)
    assert status == 0 and 'epoch 2/2' in out
    assert newer.exists()


def contents(folder):
    return {path: path.read_bytes() for path in folder.iterdir()}


def error_of(program, *flags, chapter=scratch):
    """Check that a command fails and changes nothing; return its error message."""
    before = contents(program.out)
    status, _, err = program(*flags, chapter=chapter)
    assert status == 2 and contents(program.out) == before
    line, = err.splitlines()
    return line


@pytest.mark.parametrize('flags', [['--lr', 0.3], ['--seed', 1], []])
def test_a_checkpoint_of_another_run(flags, program):
    """Also of one that only has another learning rate, or none of its settings differs."""
    program.start('--num-epochs', 2)
    mine, program.out = program.out, program.out.parent / 'other'
    program.start('--num-epochs', 2, *flags)
    theirs, program.out = checkpoints(program.out)[0], mine
    copied = mine / 'checkpoint-00000088.safetensors'
    shutil.copy(theirs, copied)
    assert f': {copied} has ' in error_of(program, '--resume', copied)
    copied.rename(mine / theirs.name)
    assert f': {mine / theirs.name} has ' in error_of(program, '--resume', mine)


@pytest.mark.parametrize('every', [None, 3])
def test_the_best_epoch_is_kept(every, devices, data, tmp_path, monkeypatch):
    """Also if it is resumed after the best epoch, and if the newest checkpoints are within epochs."""
    accuracies = iter([0.5, 0.7, 0.7, 0.6, 0.8])
    end_epoch = Run.end_epoch
    monkeypatch.setattr(Run, 'end_epoch', lambda run, accuracy: end_epoch(run, next(accuracies)))
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


def test_what_is_no_run_is_named_with_a_remedy(program, tmp_path):
    (tmp_path / 'x.png').write_bytes(b'a picture')
    line = 'scratch: . is not the folder of a run: its config.json is missing or damaged\n'
    for flags in (['--resume', 'x.png'], ['--resume', 'auto', '--out-dir', '.']):
        assert program(*flags) == (2, '', line)
    (tmp_path / 'config.json').write_text('[]')
    assert program('--resume', 'x.png') == (2, '', line)


def test_switches_can_be_switched_off(program):
    program.start('--num-epochs', 1, '--quiet', '--keep-best', '--patience', 9, '--allreduce', 'ring')
    status, out, _ = program('--resume', program.out, '--no-quiet', '--no-keep-best', '--num-epochs', 2, '--patience',
                             'none', '--allreduce', 'none')
    assert status == 0 and 'epoch 2/2' in out
    assert program.config()['resumed'][0]['changed'] == {
        'num_epochs': [1, 2], 'keep_best': [True, False], 'quiet': [True, False], 'patience': [9, None],
        'allreduce': ['ring', None]}


@pytest.mark.parametrize('name, which', [('train-labels-idx1-ubyte.gz', 'train'),
                                         ('t10k-labels-idx1-ubyte.gz', 'test')])
def test_other_data_under_the_same_name_is_rejected(name, which, program, tmp_path):
    program.start('--num-epochs', 1)
    shutil.copytree(tmp_path / 'data', tmp_path / 'moved')
    assert program('--resume', program.out, '--data-dir', tmp_path / 'moved')[0] == 0
    idx_files.write(tmp_path / 'new/mnist', idx_files.dataset(64, 16, seed=1))
    [path] = (tmp_path / 'moved').rglob(name)
    shutil.copy(next((tmp_path / 'new').rglob(name)), path)
    line = error_of(program, '--resume', program.out, '--data-dir', tmp_path / 'moved', '--num-epochs', 2)
    assert line.startswith(f'scratch: digest of the {which} images and labels ')


@pytest.mark.parametrize('newest', ['of another version', 'damaged'])
def test_resume_auto_keeps_checkpoints_that_may_be_intact(newest, program):
    """A run from the beginning, or from an earlier checkpoint, would replace them."""
    program.start('--num-epochs', 1)
    [path] = checkpoints(program.out)
    content = path.read_bytes()
    path.write_bytes(content[:-1] if newest == 'damaged' else content.replace(rb'\"version\":1', rb'\"version\":2'))
    status, out, err = program('--out-dir', program.out, '--resume', 'auto')
    if newest == 'damaged':
        assert status == 0 and 'has no complete checkpoint: starting anew' in out
    else:
        assert status == 2 and err.startswith(f'scratch: {path}: version 2, but this gluon_mgpu reads version 1')
        assert path.read_bytes() != content and checkpoints(program.out) == [path]


def test_fewer_epochs_than_the_run_has_started(program):
    program.start('--num-epochs', 2, '--checkpoint-every', 3)
    checkpoints(program.out)[0].unlink()  # as if the run had been stopped in epoch 2
    assert checkpoints(program.out)[0].name == 'checkpoint-00000006.safetensors'
    line = error_of(program, '--resume', program.out, '--num-epochs', 1)
    assert line == 'scratch: --num-epochs 1: must be at least 2, the epoch that the run has reached'


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


@pytest.mark.parametrize('change', [
    {'seed': 1}, {'batch_size': 32}, {'dataset': 'glyphs'}, {'validation_size': 8}, {'run_id': 'x'},
    {'test_digest': None, 'test_size': 8}, {'train_digest': None, 'train_size': 48}])
def test_an_edited_configuration_does_not_make_it_another_run(change, program):
    """The checkpoint says which run it is, also at the end of an epoch."""
    program.start('--num-epochs', 1)
    config = {**program.config(), **change}
    config = {key: value for key, value in config.items() if value is not None}
    (program.out / 'config.json').write_text(json.dumps(config))
    line = error_of(program, '--resume', program.out, '--num-epochs', 2)
    assert f': {checkpoints(program.out)[0]} has ' in line and 'a resumed run cannot change it' in line


def forge(path, run=None, **config):
    """Write a checkpoint with some entries of its metadata replaced, and a valid checksum."""
    metadata = checkpoint.read(path)[0]['metadata']
    replace_metadata(path, {'config': {**metadata['config'], **config}, 'run': {**metadata['run'], **(run or {})}})


def replace_metadata(path, entries):
    record, arrays = checkpoint.read(path)
    metadata = {**record.pop('metadata'), **entries}
    checkpoint.write(path, checkpoint.Snapshot(arrays, record), metadata)


@pytest.mark.parametrize('change, words', [
    ({'num_steps': 10**13}, 'num_steps, num_batches, epoch_length or rows of its state is missing or malformed'),
    ({'history': 1}, 'its history is not a list')])
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


def test_control_characters_in_the_files_of_a_run(program, tmp_path):
    """From config.json and names of folders, in messages and among the changes."""
    program.out = tmp_path / 'a\x1b[31mb'
    program.start('--num-epochs', 1)
    config = {**program.config(), 'platform': '\x1b]0;title\x07', 'numpy': '\x9b31m', 'data_dir': '\x1b[2J'}
    (program.out / 'config.json').write_text(json.dumps(config))
    replace_metadata(checkpoints(program.out)[0], {'config': config})
    printed = [*program('--resume', program.out), *program('--resume', program.out, '--data-dir', 'data'),
               *program(program.out, chapter=predict), *program(program.out, chapter=export)]
    with contextlib.ExitStack() as stack:
        lock_folder(program.out, stack)
        (program.out / 'config.json').write_text(json.dumps(config))
        printed += program('--resume', program.out)
    text = ''.join(map(str, printed))
    assert not re.search('[\x00-\x09\x0b-\x1f\x7f-\x9f]', text)
    for name in (r'a\x1b[31mb', r'\x1b]0;title\x07 ', r'\x9b31m', r'\x1b[2J'):
        assert name.strip() in text, name
