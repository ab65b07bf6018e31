"""Jobs of several workers: skipped where Horovod is not built; make test-horovod builds it."""
from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import idx_files
import pytest

sys.path.append(str(Path(__file__).parents[1] / 'faults'))  # how runs are compared


def pytest_collection_modifyitems(items) -> None:
    if importlib.util.find_spec('horovod') is None:
        for item in items:
            if 'job' in item.fixturenames:
                item.add_marker(pytest.mark.skip(reason='Horovod is not built: make test-horovod'))


@pytest.fixture(scope='session')
def job():
    """How to run a job; that a test asks for it says that it needs Horovod."""
    from jobs import Job
    return Job


@pytest.fixture(scope='session')
def data(tmp_path_factory) -> Path:
    """A folder with a small dataset by the name of mnist: 1,000 training rows and 250 test rows."""
    folder = tmp_path_factory.mktemp('data')
    idx_files.write(folder / 'mnist', idx_files.dataset(1000, 250))
    return folder


@pytest.fixture(scope='session')
def flags(data) -> list[str]:
    """Flags of a chapter for a short run: three epochs of eight steps."""
    return ['--dataset', 'mnist', '--data-dir', str(data), '--batch-size', '128', '--num-epochs', '3', '--no-plot']
