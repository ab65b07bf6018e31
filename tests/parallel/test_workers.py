"""Tests of the workers of a process alone."""
import pytest

from gluon_mgpu.parallel.workers import Workers


@pytest.mark.parametrize('error', [RuntimeError, ValueError])
def test_late_errors_of_the_engine_are_discarded_after_one(error, monkeypatch):
    """The engine raises MXNetError, a RuntimeError, or one of Python's errors."""
    cleared = []
    monkeypatch.setattr('gluon_mgpu.parallel.workers.clear_engine_errors', lambda: cleared.append(True))
    with pytest.raises(error), Workers().engine_errors_cleared():
        raise error
    with pytest.raises(KeyboardInterrupt), Workers().engine_errors_cleared():  # a checkpoint may be written after it
        raise KeyboardInterrupt
    assert cleared == [True]
