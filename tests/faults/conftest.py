"""Faults, counted: each test notes how many it made and what came of them; the table stands at the end.

    pytest tests/faults                  the quick ones
    pytest tests/faults --all            each kind of fault, a few times
    pytest tests/faults --all --long     many times: make test-faults
"""
from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import idx_files
import pytest
from runs import outcome, run


@pytest.fixture(scope='session')
def timed_whole(scratch_command, tmp_path_factory) -> tuple[Path, float]:
    began = time.monotonic()
    folder = finished(scratch_command, tmp_path_factory.mktemp('whole') / 'run')
    return folder, time.monotonic() - began


@pytest.fixture(scope='session')
def whole(timed_whole) -> tuple:
    """What `scratch_command` comes to if nothing happens."""
    return outcome(timed_whole[0])


@pytest.fixture(scope='session')
def duration(timed_whole) -> float:
    """Seconds that `scratch_command` takes if nothing happens."""
    return timed_whole[1]


@pytest.fixture
def complete(timed_whole, tmp_path) -> Path:
    """The folder of a run that nothing happened to."""
    return shutil.copytree(timed_whole[0], tmp_path / 'run')


@pytest.fixture(scope='session')
def one_epoch(scratch_command, tmp_path_factory) -> Path:
    return finished([*scratch_command, '--num-epochs', '1'], tmp_path_factory.mktemp('begun') / 'run')


@pytest.fixture
def begun(one_epoch, tmp_path) -> Path:
    """The folder of a run of one epoch."""
    return shutil.copytree(one_epoch, tmp_path / 'run')


def finished(command: list, folder: Path) -> Path:
    """Run a command to its end, into a folder."""
    done = run([*command, '--out-dir', folder])
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope='session')
def scratch_command(devices, tmp_path_factory) -> list[str]:
    """LeNet on few rows, three epochs of eight steps: some two seconds, most of them to start."""
    data = tmp_path_factory.mktemp('data')
    idx_files.write(data / 'mnist', idx_files.dataset(1024, 256))
    names = ','.join(f'{d.device_type}:{d.device_id}' for d in devices)
    return [sys.executable, '-m', 'gluon_mgpu.scratch', '--dataset', 'mnist', '--data-dir', str(data),
            '--batch-size', '128', '--num-epochs', '3', '--no-plot', '--devices', names]
