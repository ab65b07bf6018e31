"""Fixtures of the fault tests. Each test counts the faults that it causes, and pytest prints a table at the end.

    pytest tests/faults                  the quick tests
    pytest tests/faults --all            all tests, with a few faults of each kind
    pytest tests/faults --all --long     all tests, with many faults of each kind, like make test-faults
"""
from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import idx_files
import pytest
from devices_flag import devices_flag
from runs import outcome, run


@pytest.fixture(scope='session')
def timed_run(scratch_command, tmp_path_factory) -> tuple[Path, float]:
    """The folder of an uninterrupted run, and the seconds that the run took."""
    started = time.monotonic()
    folder = train_in(tmp_path_factory.mktemp('complete') / 'run', scratch_command)
    return folder, time.monotonic() - started


@pytest.fixture(scope='session')
def uninterrupted(timed_run) -> tuple:
    """The results of an uninterrupted run."""
    return outcome(timed_run[0])


@pytest.fixture(scope='session')
def duration(timed_run) -> float:
    """The seconds that an uninterrupted run takes."""
    return timed_run[1]


@pytest.fixture
def complete_run(timed_run, tmp_path) -> Path:
    """The folder of a complete run, as a copy that the test may change."""
    return shutil.copytree(timed_run[0], tmp_path / 'run')


@pytest.fixture(scope='session')
def run_of_one_epoch(scratch_command, tmp_path_factory) -> Path:
    return train_in(tmp_path_factory.mktemp('one-epoch') / 'run', [*scratch_command, '--num-epochs', '1'])


@pytest.fixture
def short_run(run_of_one_epoch, tmp_path) -> Path:
    """The folder of a run of one epoch, as a copy that the test may change."""
    return shutil.copytree(run_of_one_epoch, tmp_path / 'run')


def train_in(folder: Path, command: list) -> Path:
    """Run a command with `folder` as its --out-dir; return the folder."""
    done = run([*command, '--out-dir', folder])
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope='session')
def scratch_command(devices, tmp_path_factory) -> list[str]:
    """A command that trains LeNet for three epochs of eight steps: about 2 s, mostly start-up."""
    data = tmp_path_factory.mktemp('data')
    idx_files.write(data / 'mnist', idx_files.dataset(256, 64))
    return [sys.executable, '-m', 'gluon_mgpu.scratch', '--dataset', 'mnist', '--data-dir', str(data),
            '--batch-size', '32', '--num-epochs', '3', '--no-plot', *devices_flag(devices)]
