"""Faults, counted: each test notes how many it made and what came of them; the table stands at the end.

    pytest tests/faults            the short version, part of the default tests
    pytest tests/faults --long     many more: make test-faults
"""
from __future__ import annotations

import sys

import idx_files
import pytest
from runs import outcome, run


@pytest.fixture(scope='session')
def whole(scratch_command, tmp_path_factory) -> tuple:
    """What `scratch_command` comes to if nothing happens."""
    folder = tmp_path_factory.mktemp('whole') / 'run'
    assert run([*scratch_command, '--out-dir', folder]).returncode == 0
    return outcome(folder)


@pytest.fixture(scope='session')
def scratch_command(devices, tmp_path_factory) -> list[str]:
    """LeNet on few rows, three epochs of eight steps: some two seconds, most of them to start."""
    data = tmp_path_factory.mktemp('data')
    idx_files.write(data / 'mnist', idx_files.dataset(1024, 256))
    names = ','.join(f'{d.device_type}:{d.device_id}' for d in devices)
    return [sys.executable, '-m', 'gluon_mgpu.scratch', '--dataset', 'mnist', '--data-dir', str(data),
            '--batch-size', '128', '--num-epochs', '3', '--no-plot', '--devices', names]
