"""A run resumed from a checkpoint gives exactly the same results as an uninterrupted one."""
import contextlib
import functools
import re
import shutil

import numpy
import pytest
from history_csv import history
from loops import small_resnet
from slow import slow

from gluon_mgpu import concise, scratch
from gluon_mgpu.checkpoints import checkpoint, checkpoint_callback as callback
from gluon_mgpu.checkpoints.checkpoint_callback import CheckpointCallback
from gluon_mgpu.checkpoints.run_folder import checkpoints, lock_folder, write_config
from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.mxnet_setup.compat import gluon
from gluon_mgpu.parallel.accumulation import concise_in_parts, scratch_in_parts
from gluon_mgpu.parallel.allreduce import ALGORITHMS
from gluon_mgpu.parallel.clipping import ClippingTrainer
from gluon_mgpu.parallel.sync_batch_norm.synchronized import SyncBatchNorm
from gluon_mgpu.parallel.sync_batch_norm.train_batch import train_batch_synchronized
from gluon_mgpu.programs import predict
from gluon_mgpu.programs.onnx import export
from gluon_mgpu.training.run import Run
from gluon_mgpu.training.schedules import schedule

ROWS, BATCH, EPOCHS = 42, 10, 2  # five steps per epoch, the last of two rows: with four devices, some get none
SCHEDULE = schedule('cosine', 0.1, 10, warmup_steps=4)
MOMENTUM = {'momentum': 0.9, 'wd': 0.01}


@pytest.fixture
def data():
    rng = numpy.random.default_rng(0)
    images, labels = rng.integers(0, 255, (ROWS, 28, 28), 'uint8'), rng.integers(0, 9, ROWS)
    return lambda: [BatchIterator(images, labels, BATCH, 'random', shuffle) for shuffle in (True, False)]


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
    arrays = {name: [(a.dtype, a.shape, a.tobytes()) for a in kept] for name, kept in last_arrays(folder).items()}
    return [(e.epoch, e.loss, e.accuracy, e.lr) for e in run.history], arrays


def last_arrays(folder):
    return checkpoint.read(checkpoints(folder)[0])[1]


def checkpoint_after(num_steps, folder):
    return folder / f'checkpoint-{num_steps:08}.safetensors'


@pytest.mark.parametrize('k', [2, slow(1), slow(4)])
@pytest.mark.parametrize('chapter, options', [
    (scratch, {}), *(slow(scratch, {'allreduce': allreduce}) for allreduce in ALGORITHMS.values()),
    (scratch, {'lr': SCHEDULE, 'train_batch': scratch_in_parts(scratch.train_batch, 2)}),
    (concise, {'lr': SCHEDULE, 'train_batch': concise_in_parts(concise.train_batch, 2), 'optimizer_params': MOMENTUM}),
    slow(concise, {'optimizer': 'adam'}), (concise, {'Trainer': functools.partial(ClippingTrainer, clip_norm=0.1)}),
    slow(concise, {'optimizer_params': MOMENTUM, 'train_batch': train_batch_synchronized})])
def test_within_an_epoch(chapter, options, k, device_list, data, tmp_path, keep_all):
    """Also after all batches of an epoch, before its evaluation: the fifth step."""
    devices = device_list(k)

    def trained(name, **more):
        net = {} if chapter is scratch else {'net': small_resnet(devices)}
        if options.get('train_batch') is train_batch_synchronized:
            net = {'net': SyncBatchNorm(net['net'])}
        return train(chapter, devices, data, tmp_path / name, **options, **net, **more)

    whole = trained('whole')
    for step in (1, 3, 5, 9):
        assert trained(str(step), resume=checkpoint_after(step, tmp_path / 'whole')) == whole
    assert len(whole[0]) == EPOCHS


def test_random_numbers_after_an_epoch(devices, tmp_path):
    """NumPy's for a DataLoader that shuffles, MXNet's for dropout, whose state cannot be read: epochs seed both."""
    rng = numpy.random.default_rng(0)
    rows = gluon.data.ArrayDataset(rng.random((ROWS, 6), 'float32'), rng.integers(0, 9, ROWS))

    def trained(name, **options):
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Dropout(0.5), gluon.nn.Dense(10))
        return train(concise, devices[:1], lambda: [gluon.data.DataLoader(rows, BATCH, shuffle) for shuffle in (1, 0)],
                     tmp_path / name, every=None, net=net, **options)

    trained('first', num_epochs=1)
    assert trained('second', resume=checkpoint_after(5, tmp_path / 'first')) == trained('whole')


@pytest.mark.parametrize('before, after', [(2, 1), slow(1, 3)])
def test_lenet_on_another_number_of_devices(before, after, device_list, data, tmp_path, keep_all):
    train(scratch, device_list(before), data, tmp_path / 'whole')
    train(scratch, device_list(after), data, tmp_path / 'other', resume=checkpoint_after(3, tmp_path / 'whole'))
    others = last_arrays(tmp_path / 'other')
    for name, [array] in last_arrays(tmp_path / 'whole').items():
        # k devices equal one to 1e-6 in float32: the order of the sums differs
        numpy.testing.assert_allclose(others[name][0], array, rtol=1e-6, atol=1e-6)


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


def test_flags_default_to_those_of_the_run(program, tmp_path):
    """Switches and limits can be switched off."""
    program.start('--num-epochs', 1, '--seed', 3, '--lr', 0.3, '--quiet', '--keep-best', '--patience', 9,
                  '--allreduce', 'ring')
    status, out, err = program.resume('--num-epochs', 2)
    assert status == 0, err
    config = program.config
    assert (config['seed'], config['lr'], config['batch_size'], config['num_epochs']) == (3, 0.3, 16, 2)
    assert config['devices'] == [str(d) for d in program.devices] and config['quiet']
    [note] = config['resumed']
    assert (note['from'], note['changed']) == ('checkpoint-00000004.safetensors', {'num_epochs': [1, 2]})
    shutil.copytree('data', 'moved')
    status, out, err = program('--resume', program.newest, '--num-epochs', 3, '--lr', 0.2, '--num-gpus', 1,
                               '--data-dir', 'moved', '--no-quiet', '--no-keep-best', '--patience', 'none',
                               '--allreduce', 'none')
    assert status == 0, err
    changed = program.config['resumed'][1]['changed']
    assert len(changed.pop('devices')[1]) == len(program.config['devices']) == 1
    assert changed == {'num_epochs': [2, 3], 'lr': [0.3, 0.2], 'quiet': [True, False], 'keep_best': [True, False],
                       'patience': [9, None], 'allreduce': ['ring', None],
                       'data_dir': [str(tmp_path / 'data'), str(tmp_path / 'moved')]}
    assert 'lr 0.2 instead of 0.3' in out and 'epoch 3/3' in out


def edited(**changes):
    return lambda program: program.edit(**changes)


def forged(**changes):
    """Change the state in the checkpoint of a run, under the name of its step."""
    def forge(program):
        path = program.newest
        replace_metadata(path, run={**checkpoint.read(path)[0]['metadata']['run'], **changes})
        path.rename(checkpoint_after(changes.get('num_steps', 4), path.parent))
    return forge


def replace_metadata(path, **entries):
    record, arrays = checkpoint.read(path)
    metadata = {**record.pop('metadata'), **entries}
    checkpoint.write(path, checkpoint.Snapshot(arrays, record), metadata)


def exchange_with_another_run(program):
    """Of which no setting differs."""
    program.start('--num-epochs', 1, out='other')
    shutil.copy(checkpoints('other')[0], program.newest)


def error_of(program, *flags, main=scratch):
    """Check that a command fails and changes nothing; return its error message."""
    before = {path: path.read_bytes() for path in program.out.iterdir()}
    status, _, err = program(*flags, chapter=main)
    assert status == 2 and {path: path.read_bytes() for path in program.out.iterdir()} == before
    line, = err.splitlines()
    return line


@pytest.mark.parametrize('change, flags, message', [
    (edited(), ['--batch-size', 32], '--batch-size 32: {path} has 16, and a resumed run cannot change it; leave it as'),
    (edited(), ['--dataset', 'glyphs'], '--dataset glyphs: {path} has mnist'),
    (edited(), ['--validation-size', 8], '--validation-size 8: {path} has none'),
    (edited(), ['--train-size', 48], 'digest of the train images and labels '),
    (edited(), ['--test-size', 8], 'digest of the test images and labels '),
    # The checkpoint says which run it is, also at the end of an epoch
    (edited(seed=1), [], '--seed 1: {path} has 0'), (edited(run_id='x'), [], 'run_id x: {path} has '),
    (exchange_with_another_run, [], 'run_id '),
    (edited(chapter='concise'), [], '{out} is a run of concise, not of scratch: resume it with that program'),
    (edited(chapter=None), [], '{out} is not the folder of a run: its config.json is missing'),
    (edited(lr='x'), [], "{out}/config.json: lr 'x': must be"), (edited(devices=[5]), [], "'5' names no device"),
    *((edited(**{name: value}), [], f'{{out}} was trained with {name} {value}, which this version of gluon_mgpu does '
       'not have: resume it with version 3, or start a new run')
      for name, value in {'shares': '3,1', 'label_smoothing': 0.1}.items()),
    (forged(num_steps=5, num_batches=1, epoch_length=4), ['--num-epochs', 1],
     '--num-epochs 1: must be at least 2, the epoch that the run has reached'),
    (forged(history=1), [], '{path} is not a checkpoint of a run, history of its state is missing or malformed')])
def test_what_cannot_be_resumed(change, flags, message, program):
    program.start('--num-epochs', 1)
    change(program)
    line = error_of(program, '--resume', program.out, *flags)
    assert line.startswith(f'scratch: {message.format(path=program.newest, out=program.out)}')


def test_predict_and_export_refuse_forged_checkpoints(program):
    program.start('--num-epochs', 1)
    forged(loss=None)(program)
    for main in (predict, export):
        message = f'{program.newest}: must be from a run of scratch or concise; '
        assert message in error_of(program, program.newest, main=main)


def test_a_run_recorded_before_settings_existed(program):
    """They have their defaults, and a change from them is a change. Those that no longer exist were not used."""
    program.start('--num-epochs', 1)
    config = {name: value for name, value in program.config.items() if name not in ('accumulate', 'lr_schedule')}
    config |= {'shares': None, 'label_smoothing': 0.0, 'export': None, 'process': {'pid': 1}}
    write_config(program.out, config)
    replace_metadata(program.newest, config=config)
    assert program.resume('--num-epochs', 2)[0] == 0
    assert program.config['resumed'][0]['changed'] == {'num_epochs': [1, 2]}
    assert program.config['accumulate'] == 1


def test_an_earlier_checkpoint_is_used_only_if_no_newer_one_would_be_lost(program):
    program.start('--num-epochs', 2)
    newer, older = checkpoints(program.out)
    line = error_of(program, '--resume', older)
    assert line == f'scratch: {newer} would be lost: resume from it, or move it elsewhere first'
    newer.rename('elsewhere')
    status, out, _ = program('--resume', older)
    assert status == 0 and 'epoch 2/2' in out
    assert newer.exists()


def test_what_is_no_run_is_named_with_a_remedy(program, tmp_path):
    (tmp_path / 'x.png').write_bytes(b'a picture')
    line = 'scratch: . is not the folder of a run: its config.json is missing or damaged\n'
    for flags in (['--resume', 'x.png'], ['--resume', 'auto', '--out-dir', '.']):
        assert program(*flags) == (2, '', line)


@pytest.mark.parametrize('newest', ['of another version', 'damaged'])
def test_resume_auto_keeps_checkpoints_that_may_be_intact(newest, program):
    """A run from the beginning, or from an earlier checkpoint, would replace them."""
    program.start('--num-epochs', 1)
    path = program.newest
    content = path.read_bytes()
    path.write_bytes(content[:-1] if newest == 'damaged' else content.replace(rb'\"version\":1', rb'\"version\":2'))
    flags = ['--out-dir', program.out, '--resume', 'auto', '--lr', 0.3]
    if newest == 'damaged':
        status, out, _ = program(*flags)
        assert status == 0 and 'has no complete checkpoint: starting anew; lr 0.3 instead of 0.2' in out
    else:
        message = f'scratch: {path}: version 2, but this gluon_mgpu reads version 1'
        assert error_of(program, *flags).startswith(message)


def test_control_characters_in_the_files_of_a_run(program, tmp_path):
    """From config.json and names of folders, in messages and among the changes."""
    program.out = tmp_path / 'a\x1b[31mb'
    program.start('--num-epochs', 1)
    changes = {'platform': '\x1b]0;title\x07', 'numpy': '\x9b31m', 'data_dir': '\x1b[2J'}
    program.edit(**changes)
    config = program.config
    replace_metadata(program.newest, config=config)
    printed = [*program.resume(), *program.resume('--data-dir', 'data'),
               *program(program.out, chapter=predict), *program(program.out, chapter=export)]
    with contextlib.ExitStack() as stack:
        lock_folder(program.out, stack)
        program.edit(**changes)
        printed += program.resume()
    text = ''.join(map(str, printed))
    assert not re.search('[\x00-\x09\x0b-\x1f\x7f-\x9f]', text)
    for name in (r'a\x1b[31mb', r'\x1b]0;title\x07 ', r'\x9b31m', r'\x1b[2J'):
        assert name.strip() in text, name
