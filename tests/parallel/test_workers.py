"""Tests of the workers of a process alone."""
import pytest

from gluon_mgpu.base.program import InputError
from gluon_mgpu.parallel.workers import ThisProcess, Workers


@pytest.mark.parametrize('error', [RuntimeError, ValueError])
def test_late_errors_of_the_engine_are_discarded_after_one(error, monkeypatch):
    """The engine raises MXNetError, a RuntimeError, or one of Python's errors."""
    cleared = []
    monkeypatch.setattr('gluon_mgpu.parallel.workers.clear_engine_errors', lambda: cleared.append(True))
    with pytest.raises(error), ThisProcess().engine_errors_cleared():
        raise error
    with pytest.raises(KeyboardInterrupt), ThisProcess().engine_errors_cleared():  # a checkpoint may follow
        raise KeyboardInterrupt
    assert cleared == [True]


def test_workers_that_differ():
    class OfTwo(Workers):
        size, hosts = 2, ('a', 'b')

        def allgather(self, value, what=''):
            return [value, {'seed': 1, 'lr': 0.1}]

    OfTwo().check_equal({'lr': 0.1, 'seed': 1})
    with pytest.raises(InputError, match=r'^lr is 0\.2 on worker 0 \(a\) and 0\.1 on worker 1 \(b\): start all'):
        OfTwo().check_equal({'seed': 1, 'lr': 0.2})
    with pytest.raises(InputError, match='^lr is None on worker 0'):
        OfTwo().check_equal({'seed': 1})
