"""Checkpoints of runs that are stopped: folders that vanish, files that cannot be written."""
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from stopped_runs import SendSignal, train
from trainers import trainable
from two_workers import OfTwo

from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.checkpoints.checkpoint_callback import CheckpointCallback
from gluon_mgpu.checkpoints.run_folder import BEST, checkpoints
from gluon_mgpu.mxnet_setup.compat import gluon
from gluon_mgpu.training.epoch import DivergenceError
from gluon_mgpu.training.run import Callback, Run


def full_disk_at(monkeypatch, *names):
    """Let writing each of these files fail once; return the list of the files that are written."""
    write, left, written = checkpoint.write, [*names], []

    def full_at_first(path, *args):
        if path.name in left:
            left.remove(path.name)
            raise OSError(28, 'No space left on device')
        written.append(path.name)
        write(path, *args)

    monkeypatch.setattr(checkpoint, 'write', full_at_first)
    return written


def name_of(steps):
    return f'checkpoint-{steps:08}.safetensors'


def test_an_earlier_checkpoint_can_be_resumed_if_the_last_one_cannot_be_written(tmp_path, monkeypatch):
    full_disk_at(monkeypatch, name_of(5))
    signals = SimpleNamespace(received=0)
    _, line = train(tmp_path, signals=signals, before=[SendSignal(signals, at=5)])
    assert line == (f'stopped in epoch 2 after 2 batches; {tmp_path / name_of(5)} cannot be written (No space left on '
                    f'device); the newest one is {name_of(3)}; resume with: again')


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
    assert line == (f'stopped after epoch 1; {folder / name_of(3)} cannot be written (No such file or directory); '
                    'there is no earlier one')
    err = capsys.readouterr().err
    assert not re.search(r'safetensors cannot be written .*the run continues', err), err


def test_damaged_files_with_higher_numbers_do_not_displace_new_checkpoints(tmp_path):
    """As after --resume auto has skipped them; they are left where they are."""
    for steps in (8, 9):
        (tmp_path / name_of(steps)).write_bytes(b'damaged')
    signals = SimpleNamespace(received=0)
    train(tmp_path, signals=signals, every=1, before=[SendSignal(signals, at=5)])
    assert [path.name for path in checkpoints(tmp_path)] == [*map(name_of, (9, 8, 5, 4))]


def test_gradients_may_overflow(devices, tmp_path):
    """With ``contrib.amp``, the Trainer skips the step; a parameter that is not finite ends the run."""
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize(ctx=devices)
    net.weight.grad_req = 'add'
    net.weight.list_grad()[0][:] = float('inf')
    run, callback = Run(1), CheckpointCallback(tmp_path, every=1)
    run.net, run.num_steps = net, 1
    callback.batch_end(run)
    assert callback.last == checkpoints(tmp_path)[0]
    net.bias.set_data(net.bias.data(devices[0]) + float('nan'))
    with pytest.raises(DivergenceError, match='^bias is no longer finite'):
        callback.batch_end(run)


def test_rank_0_alone_writes_and_removes_files(tmp_path):
    """The workers of one machine share the folder."""
    unfinished = tmp_path / 'checkpoint-00000003.safetensors.a1b2c3d4.part'
    unfinished.touch()
    train(tmp_path, workers=OfTwo(1), keep_best=True)
    assert [*tmp_path.glob('*.safetensors*')] == [unfinished]
    train(tmp_path, workers=OfTwo(0), keep_best=True)
    assert len(checkpoints(tmp_path)) == 2 and (tmp_path / BEST).exists() and not unfinished.exists()


def test_an_old_checkpoint_that_cannot_be_removed(tmp_path, monkeypatch):
    def unlink(path):
        raise PermissionError(path)

    monkeypatch.setattr(Path, 'unlink', unlink)
    run, _ = train(tmp_path)
    assert run.complete and len(checkpoints(tmp_path)) == 3


def accuracies_of(path):
    """Return the test accuracies in the history of a checkpoint."""
    return [epoch[3] for epoch in checkpoint.read(path)[0]['metadata']['run']['history']]


@pytest.mark.parametrize('every', [None, 100])
def test_the_best_epoch_is_written_before_its_checkpoint(every, tmp_path, monkeypatch, capsys):
    """A run that is killed between the two trains the epoch again; it would not write the best one again.

    A resumed run knows which one was the best.
    """
    written, accuracies = full_disk_at(monkeypatch), [0.5, 0.7, 0.7, 0.6, 0.8]
    train(tmp_path, every=every, accuracies=accuracies[:3], keep_best=True)
    assert written == [BEST, name_of(3), BEST, name_of(6), name_of(9)]
    for num_epochs, best in ((4, 2), (5, 5)):
        newest = checkpoints(tmp_path)[0]
        train(tmp_path, every=every, accuracies=accuracies[:num_epochs], keep_best=True, resume=newest)
        assert accuracies_of(tmp_path / BEST) == accuracies[:best]
    assert capsys.readouterr().err == ''


def test_a_best_epoch_that_cannot_be_written(tmp_path, monkeypatch, capsys):
    """The checkpoints are written all the same."""
    full_disk_at(monkeypatch, BEST)
    train(tmp_path, accuracies=[0.5, 0.7, 0.6], keep_best=True)
    assert [path.name for path in checkpoints(tmp_path)] == [name_of(9), name_of(6)]
    assert capsys.readouterr().err == (f'{tmp_path / BEST} cannot be written (No space left on device); the newest one '
                                       f'is {name_of(3)}; the run continues\n')


@pytest.mark.parametrize('frozen', [False, True])
@pytest.mark.parametrize('parts, message', [
    ([], "0.weight: checkpoints will not have the optimizer's state of 4 parameters"),
    ([0], "1.weight: checkpoints will not have the optimizer's state of 2 parameters"), ([0, 1], '')])
def test_parameters_of_a_trainer_that_the_run_does_not_know(parts, message, frozen, devices, tmp_path, capsys):
    """As with a Trainer each for a backbone and a head. A resumed run would begin with a new momentum."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(4, in_units=3), gluon.nn.Dense(2, in_units=4))
    net.initialize(ctx=devices)
    params = [param for part in parts for param in trainable(net[part])]
    trainer = gluon.Trainer(params, 'sgd', {'momentum': 0.9}) if parts else None
    if frozen:
        for param in trainable(net):
            param.grad_req = 'write' if param in params else 'null'
    next(Run(1, callbacks=CheckpointCallback(tmp_path)).epochs(net, trainer))
    warning = (f"run.epochs got no Trainer of {message}; use one Trainer for all, or grad_req 'null' for those that "
               'stay\n')
    assert capsys.readouterr().err == (warning if message and not frozen else '')
