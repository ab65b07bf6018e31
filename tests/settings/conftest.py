"""Fixtures with the command line of the chapters on few rows."""
import contextlib
import signal

import idx_files
import pytest
from devices_flag import devices_flag

from gluon_mgpu import scratch
from gluon_mgpu.checkpoints.checkpoint_callback import CheckpointCallback
from gluon_mgpu.checkpoints.run_folder import checkpoints, read_config, write_config


class Program:
    """A chapter's command line on few rows; calls return (status, stdout, stderr). `out` is the folder of its run."""

    def __init__(self, folder, devices, capsys):
        idx_files.write(folder / 'data/mnist', idx_files.dataset(64, 16))
        self.out, self.devices, self.capsys = folder / 'run', devices, capsys

    def __call__(self, *flags, chapter=scratch):
        status = chapter.main([str(flag) for flag in flags])
        captured = self.capsys.readouterr()
        return status, captured.out, captured.err

    def start(self, *flags, out=None, devices=None, chapter=scratch):
        return self('--dataset', 'mnist', '--data-dir', 'data', '--batch-size', 16, '--no-plot',
                    *devices_flag(devices or self.devices), '--out-dir', out or self.out, *flags, chapter=chapter)

    def resume(self, *flags, chapter=scratch):
        return self('--resume', self.out, *flags, chapter=chapter)

    @property
    def config(self):
        return read_config(self.out)

    def edit(self, **changes):
        write_config(self.out, {**self.config, **changes})

    @property
    def newest(self):
        """The newest checkpoint."""
        return checkpoints(self.out)[0]


@pytest.fixture
def program(tmp_path, devices, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Program(tmp_path, devices, capsys)


@pytest.fixture
def stopped(monkeypatch):
    """A context manager in which a run gets SIGTERM in a method of its callbacks after some steps."""
    @contextlib.contextmanager
    def context(method, num_steps):
        original = getattr(CheckpointCallback, method)

        def with_signal(callback, run):
            original(callback, run)
            if run.num_steps == num_steps:
                signal.raise_signal(signal.SIGTERM)

        with monkeypatch.context() as patch:
            patch.setattr(CheckpointCallback, method, with_signal)
            yield

    return context
