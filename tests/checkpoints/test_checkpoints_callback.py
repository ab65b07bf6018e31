"""Checkpoints of runs that are stopped: folders that vanish, files that cannot be removed."""
import os
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from stopped_runs import SendSignal, train

from gluon_mgpu.base.files import SameFolder
from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.checkpoints.callback import CheckpointCallback
from gluon_mgpu.checkpoints.run_folder import checkpoints
from gluon_mgpu.mxnet_setup.compat import gluon
from gluon_mgpu.parallel.workers import Workers
from gluon_mgpu.training.epoch import DivergenceError
from gluon_mgpu.training.run import Callback


def test_an_earlier_checkpoint_can_be_resumed_if_the_last_one_cannot_be_written(tmp_path, monkeypatch):
    write = checkpoint.write

    def full_disk(path, *args):
        if path.name != 'checkpoint-00000003.safetensors':
            raise OSError(28, 'No space left on device')
        write(path, *args)

    monkeypatch.setattr(checkpoint, 'write', full_disk)
    signals = SimpleNamespace(received=0)
    _, line = train(tmp_path, signals=signals, before=[SendSignal(signals, at=5)])
    assert line == (f'stopped in epoch 2 after 2 batches; cannot write a checkpoint to {tmp_path} (No space left on '
                    'device); the newest one is checkpoint-00000003.safetensors; resume with: again')


def test_a_new_run_in_the_folder_of_another(tmp_path):
    train(tmp_path)
    newest = checkpoints(tmp_path)[0]
    with pytest.raises(ValueError, match=f'^{re.escape(str(newest))} is of an earlier run: resume from it, or choose'):
        train(tmp_path)
    assert checkpoints(tmp_path)[0] == newest


def test_an_old_checkpoint_that_cannot_be_removed(tmp_path, monkeypatch, capsys):
    """The new one is complete; removing the old one is tried again later."""
    tried = []

    def unlink(path):
        tried.append(path.name)
        if len(tried) <= 3:
            raise PermissionError(13, 'Permission denied')
        os.unlink(path)

    monkeypatch.setattr(Path, 'unlink', unlink)
    train(tmp_path, every=1)
    assert len(checkpoints(tmp_path)) == 2 and capsys.readouterr().err == ''
    assert tried.count('checkpoint-00000001.safetensors') > 1


class Vanish(Callback):
    """Callback that removes the folder after an epoch's training, and sends a signal after its evaluation."""

    def __init__(self, folder, signals):
        self.folder, self.signals = folder, signals

    def epoch_trained(self, run):
        shutil.rmtree(self.folder)

    def epoch_end(self, run):
        self.signals.received = signal.SIGTERM


def test_a_signal_when_the_folder_is_gone(tmp_path, capsys):
    """No message says that the run continues."""
    folder, signals = tmp_path / 'run', SimpleNamespace(received=0)
    folder.mkdir()
    _, line = train(folder, signals=signals, before=[Vanish(folder, signals)])
    assert line == (f'stopped after epoch 1; cannot write a checkpoint to {folder} (No such file or directory); '
                    'there is no earlier one')
    err = capsys.readouterr().err
    assert not re.search(r'cannot write a checkpoint .*the run continues', err), err


@pytest.mark.parametrize('every', [None, 2])
def test_a_folder_replaced_by_that_of_another_run(every, tmp_path, capsys):
    """The first run notices, and neither writes nor removes anything there."""
    folder = tmp_path / 'run'
    folder.mkdir()
    theirs = ['history.csv', *(f'checkpoint-{n:08}.safetensors' for n in (1, 2, 3, 4))]

    class Replace(Callback):
        def epoch_trained(self, run):
            if len(run.history) == 1:
                shutil.rmtree(folder)
                folder.mkdir()
                for name in theirs:
                    (folder / name).write_text('of the second run')

    run, line = train(folder, every=every, callbacks=[Replace()])
    assert line == '' and len(run.history) == 3
    assert sorted(path.name for path in folder.iterdir()) == sorted(theirs)
    assert all(path.read_text() == 'of the second run' for path in folder.iterdir())
    err = capsys.readouterr().err
    assert f'cannot write a checkpoint to {folder} (it was replaced by another folder)' in err
    assert f'{folder}/history.csv cannot be written (it was replaced by another folder)' in err


def test_a_folder_replaced_while_a_checkpoint_is_written(tmp_path, monkeypatch, capsys):
    """The first run removes nothing there."""
    folder, write = tmp_path / 'run', checkpoint.write
    folder.mkdir()
    theirs = [f'checkpoint-{n:08}.safetensors' for n in (1, 2, 4)]

    def write_and_replace(path, *args):
        write(path, *args)
        if path.name.endswith('6.safetensors'):
            shutil.rmtree(folder)
            folder.mkdir()
            for name in theirs:
                (folder / name).touch()

    monkeypatch.setattr(checkpoint, 'write', write_and_replace)
    train(folder)
    assert sorted(path.name for path in folder.iterdir()) == theirs
    assert 'it was replaced by another folder' in capsys.readouterr().err


def test_damaged_files_with_higher_numbers_do_not_displace_new_checkpoints(tmp_path):
    """As after --resume auto has skipped them; they are left where they are."""
    for steps in (8, 9):
        (tmp_path / f'checkpoint-{steps:08}.safetensors').write_bytes(b'damaged')
    signals = SimpleNamespace(received=0)
    train(tmp_path, signals=signals, every=1, before=[SendSignal(signals, at=5)])
    assert [path.name for path in checkpoints(tmp_path)] == [f'checkpoint-{n:08}.safetensors' for n in (9, 8, 5, 4)]


def test_gradients_may_overflow(devices, tmp_path):
    """With ``contrib.amp``, the Trainer skips the step; a parameter that is not finite ends the run."""
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize(ctx=devices)
    net.weight.grad_req = 'add'
    net.weight.list_grad()[0][:] = float('inf')
    run = SimpleNamespace(net=net, trainer=None, workers=Workers(), synchronize=lambda: None, history=[],
                          state=lambda: {'num_steps': 1, 'num_batches': 0})
    callback = CheckpointCallback(tmp_path, every=1)
    callback._same_folder = SameFolder(tmp_path)
    run.num_steps = 1
    callback.batch_end(run)
    assert callback.last == checkpoints(tmp_path)[0]
    net.bias.set_data(net.bias.data(devices[0]) + float('nan'))
    with pytest.raises(DivergenceError, match='^bias is no longer finite'):
        callback.batch_end(run)
