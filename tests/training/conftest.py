"""Fixture with a fake clock."""
import pytest

from gluon_mgpu.training import epoch as epoch_module


@pytest.fixture
def clock(monkeypatch):
    """A fake clock: a list with the time in seconds, which the test changes."""
    now = [100.0]
    monkeypatch.setattr(epoch_module.time, 'perf_counter', lambda: now[0])
    return now
