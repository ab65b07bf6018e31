"""Signals are recorded, and training stops at the next safe point."""
import os
import select
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from history_csv import history
from stopped_runs import SendSignal, train

from gluon_mgpu.base.program import Stopped
from gluon_mgpu.checkpoints.checkpoint_callback import CheckpointCallback
from gluon_mgpu.checkpoints.run_folder import checkpoints
from gluon_mgpu.mxnet_setup.compat import np
from gluon_mgpu.parallel.workers import Workers
from gluon_mgpu.training import run as run_module, signals as module
from gluon_mgpu.training.evaluate import evaluate_accuracy_gpus
from gluon_mgpu.training.run import Callback, Run
from gluon_mgpu.training.signals import StopSignals


def exits_after(seconds, monkeypatch):
    """Return the statuses with which signals at these times end the process."""
    exits, times = [], iter(seconds)
    monkeypatch.setattr(module.os, '_exit', exits.append)
    monkeypatch.setattr(module, 'time', SimpleNamespace(monotonic=lambda: 100 + next(times)))
    read, write = os.pipe()
    os.write(write, bytes([signal.SIGTERM] * len(seconds)))
    os.close(write)
    module._exit_at_second_signal(read)
    with pytest.raises(OSError, match='Bad file descriptor'):  # the thread closes its pipe
        os.fstat(read)
    return exits


@pytest.mark.parametrize('seconds, exits', [([], []), ([0, 0.001], []), ([0, 0.001, 0.4], []), ([0, 0.6], [143]),
                                            ([0, 0.001, 0.6], [143])])
def test_copies_of_a_signal_count_once(seconds, exits, monkeypatch):
    """Launchers and wrappers may deliver a signal twice within milliseconds; a person is slower."""
    assert exits_after(seconds, monkeypatch) == exits


def test_a_terminal_shows_at_once_that_the_program_will_stop():
    """The queued batches may take seconds, and a second Ctrl-C would end it without a checkpoint."""
    program = ('import signal, time; from gluon_mgpu.training.signals import StopSignals\n'
               'signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it in the background\n'
               'with StopSignals() as signals:\n'
               '    signal.raise_signal(signal.SIGINT); time.sleep({})')
    main, terminal = os.openpty()
    with subprocess.Popen([sys.executable, '-c', program.format(300)], stderr=terminal) as process:
        assert select.select([main], [], [], 200)[0] == [main]  # while it still runs
        assert os.read(main, 1000) == module.ACKNOWLEDGEMENT.replace(b'\n', b'\r\n')
        process.kill()
    os.close(main)
    os.close(terminal)  # after reading, because its end could come first
    done = subprocess.run([sys.executable, '-c', program.format(0.5)], stderr=subprocess.PIPE, check=True)
    assert done.stderr == b''  # no terminal


def test_a_terminal_that_was_closed(monkeypatch):
    """Otherwise the thread would end, and a second signal would do nothing."""
    monkeypatch.setattr(module.sys, 'stderr', SimpleNamespace(isatty=lambda: True, fileno=lambda: 99999))
    assert exits_after([0, 1], monkeypatch) == [143]


class RaisesSignal:
    """Object that sends this process a signal when it is deleted."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_within_a_del_ends_evaluation(devices):
    """Python ignores exceptions raised in __del__."""
    used = []

    def batches():
        for number in range(50):
            used.append(number)
            if number == 3:
                RaisesSignal()
            yield np.zeros((4, 2)), np.zeros(4, dtype='int32')

    with StopSignals() as signals, pytest.raises(Stopped) as stopped:
        evaluate_accuracy_gpus(lambda X: X, batches(), devices=devices, workers=Workers(signals))
    assert stopped.value.signum == signal.SIGTERM and used == [0, 1, 2, 3]


def test_a_program_may_end_within_the_block():
    """Such as a notebook, with a run that is not complete."""
    code = 'from gluon_mgpu.training.signals import StopSignals\nsignals = StopSignals().__enter__()'
    assert subprocess.run([sys.executable, '-c', code], timeout=30).returncode == 0


def test_a_forked_process_handles_signals_as_before():
    """Otherwise it would survive SIGTERM, and its signal would count as that of the training process."""
    code = (
        'import os, signal, time\n'
        'from gluon_mgpu.training.signals import StopSignals\n'
        'ready, write = os.pipe()\n'
        'with StopSignals() as signals:\n'
        '    child = os.fork()\n'
        '    if not child:\n'
        '        os.write(write, b".")\n'  # the handlers have been restored
        '        time.sleep(60)\n'
        '        os._exit(1)\n'
        '    os.read(ready, 1)\n'
        '    os.kill(child, signal.SIGTERM)\n'
        '    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM\n'
        '    time.sleep(0.7)\n'
        '    os.kill(os.getpid(), signal.SIGTERM)\n'  # the first of this process
        '    time.sleep(0.2)\n'
        '    assert signals.received == signal.SIGTERM\n')
    assert subprocess.run([sys.executable, '-c', code], timeout=30).returncode == 0


def test_a_forked_process_may_leave_the_block():
    code = ('import os\n'
            'from gluon_mgpu.training.signals import StopSignals\n'
            'with StopSignals():\n'
            '    child = os.fork()\n'
            'if child:\n'
            '    assert os.waitpid(child, 0)[1] == 0\n'
            'os._exit(0)\n')
    assert subprocess.run([sys.executable, '-c', code], timeout=30).returncode == 0


def test_signals_are_handled_as_before_after_the_block():
    """Otherwise Ctrl-C would have no effect in the rest of the program."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a shell script
    try:
        before = [signal.getsignal(number) for number in module.SIGNALS]
        with StopSignals() as signals:
            signal.raise_signal(signal.SIGINT)
            assert signals.received == 0
            signal.raise_signal(signal.SIGTERM)
        assert signals.received == signal.SIGTERM
        assert [signal.getsignal(number) for number in module.SIGNALS] == before
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGINT, previous)


@pytest.mark.parametrize('where', ['before', 'after'])
def test_a_signal_while_the_epoch_is_recorded(where, tmp_path, monkeypatch):
    """The epoch counts as complete: it is in the history, and a resumed run does not repeat it."""
    write = run_module.write_history

    def write_history(history, *args):
        if where == 'before' and len(history) == 2:
            signal.raise_signal(signal.SIGTERM)
        write(history, *args)
        if where == 'after' and len(history) == 2:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(run_module, 'write_history', write_history)
    with StopSignals() as signals:
        run, line = train(tmp_path, signals=signals)
    assert line == 'stopped after epoch 2; resume with: again'
    assert len(run.history) == 2 and run.state()['num_batches'] == 0
    assert checkpoints(tmp_path)[0].name == 'checkpoint-00000006.safetensors'
    assert len(history(tmp_path)) == 2


def test_a_signal_while_the_last_epoch_is_recorded_is_too_late(tmp_path, monkeypatch):
    write = run_module.write_history
    monkeypatch.setattr(run_module, 'write_history',
                        lambda *args: (len(args[0]) == 3 and signal.raise_signal(signal.SIGTERM), write(*args)))
    with StopSignals() as signals:
        run, line = train(tmp_path, signals=signals)
    assert line == '' and len(run.history) == 3
    assert checkpoints(tmp_path)[0].name == 'checkpoint-00000009.safetensors'


def test_the_message_of_a_stopped_run(tmp_path):
    """It ends with the command that resumes the run, if there is one."""
    for name, command, end in (('a', '', ''), ('b', 'again', '; resume with: again')):
        folder = tmp_path / name
        folder.mkdir()
        checkpoints = CheckpointCallback(folder)
        checkpoints.resume_command = command
        run = Run(2, quiet=True, callbacks=[checkpoints])
        for _ in run.epochs([[np.zeros(1)]]):
            assert str(checkpoints.save_on_stop(run, 2)) == f'stopped before the first batch{end}'
            break


def test_a_run_without_checkpoints_stops_after_a_signal():
    """The order of the callbacks does not matter: all of them see the batch."""
    signals, seen = SimpleNamespace(received=0), []

    class Count(Callback):
        def batch_end(self, run):
            seen.append(run.num_steps)

    run = Run(3, quiet=True, callbacks=[Count(), SendSignal(signals, at=5), Count()], workers=Workers(signals))
    with pytest.raises(Stopped) as stopped:
        for _ in run.epochs([[np.zeros(1)]]):
            for _ in run.batches([0, 1, 2]):
                run.record_losses([np.zeros(1)])
            run.end_epoch(0.5)
    assert stopped.value.signum == signal.SIGTERM and seen == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5] and not run.complete


def test_a_signal_before_an_evaluation(tmp_path):
    """The evaluation does not start; it would take long on a large test set."""
    class Send(Callback):
        def epoch_trained(self, run):
            signals.received = signal.SIGTERM

    signals = SimpleNamespace(received=0)
    run, line = train(tmp_path, signals=signals, callbacks=[Send()])
    assert line == 'stopped in epoch 1 after 3 batches; resume with: again'
    assert run.history == []
