"""Fixtures of the tests with several workers. Tests that use `job` are slow, and are skipped without Horovod."""
from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import idx_files
import pytest

sys.path.append(str(Path(__file__).parents[1] / 'faults'))  # for runs.py


@pytest.hookimpl(tryfirst=True)  # before pytest deselects the slow tests
def pytest_collection_modifyitems(items) -> None:
    installed = importlib.util.find_spec('horovod') is not None
    for item in items:
        if 'job' in item.fixturenames:
            item.add_marker(pytest.mark.slow)
            if not installed:
                item.add_marker(pytest.mark.skip(reason='Horovod is not installed: build it with make horovod'))


@pytest.fixture(scope='session')
def job():
    """The class `Job`, which runs a command with several Horovod workers."""
    from jobs import Job
    return Job


@pytest.fixture(scope='session')
def data(tmp_path_factory) -> Path:
    """A folder with a small dataset named mnist: 1,000 training rows and 250 test rows."""
    folder = tmp_path_factory.mktemp('data')
    idx_files.write(folder / 'mnist', idx_files.dataset(1000, 250))
    return folder


@pytest.fixture(scope='session')
def flags(data) -> list[str]:
    """Flags of a chapter for a short run: three epochs of eight steps."""
    return ['--dataset', 'mnist', '--data-dir', str(data), '--batch-size', '128', '--num-epochs', '3', '--no-plot']
