"""Faults, counted: each test notes how many it made and what came of them; the table stands at the end.

    pytest tests/faults            the short version, part of the default tests
    pytest tests/faults --long     many more: make test-faults
"""
from __future__ import annotations

import sys
from collections.abc import Callable

import idx_files
import pytest
from runs import outcome, run

COUNTS = pytest.StashKey[dict]()


@pytest.fixture(scope='session')
def long(request: pytest.FixtureRequest) -> bool:
    """Whether to make many faults, or few."""
    return request.config.getoption('long')


@pytest.fixture
def count(request: pytest.FixtureRequest) -> Callable[[str, int], None]:
    """A function that notes how many faults of a kind were made and mastered; a test that fails notes nothing."""
    counts = request.config.stash.setdefault(COUNTS, {})

    def note(kind: str, number: int = 1) -> None:
        counts[kind] = counts.get(kind, 0) + number

    return note


@pytest.fixture(scope='session')
def whole(scratch_command, tmp_path_factory) -> tuple:
    """What `scratch_command` comes to if nothing happens."""
    folder = tmp_path_factory.mktemp('whole') / 'run'
    assert run([*scratch_command, '--out-dir', folder]).returncode == 0
    return outcome(folder)


def pytest_terminal_summary(terminalreporter) -> None:
    counts = terminalreporter.config.stash.get(COUNTS, {})
    if counts:
        terminalreporter.section('faults mastered')
        for kind, number in counts.items():
            terminalreporter.line(f'{number:6}  {kind}')


@pytest.fixture(scope='session')
def scratch_command(devices, tmp_path_factory) -> list[str]:
    """LeNet on few rows, three epochs of eight steps: some two seconds, most of them to start."""
    data = tmp_path_factory.mktemp('data')
    idx_files.write(data / 'mnist', idx_files.dataset(1024, 256))
    names = ','.join(f'{d.device_type}:{d.device_id}' for d in devices)
    return [sys.executable, '-m', 'gluon_mgpu.scratch', '--dataset', 'mnist', '--data-dir', str(data),
            '--batch-size', '128', '--num-epochs', '3', '--no-plot', '--devices', names]
