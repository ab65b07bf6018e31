"""The check that workers agree."""
import pytest

from gluon_mgpu.base.program import InputError
from gluon_mgpu.distributed.horovod_workers import HorovodWorkers


class OfTwo(HorovodWorkers):
    """A worker of two, without Horovod; the other one has these values."""

    def __init__(self):
        pass

    def allgather(self, value, what=''):
        return [value, {'seed': 1, 'lr': 0.1}]


def test_workers_that_differ():
    OfTwo().check_equal({'lr': 0.1, 'seed': 1})
    with pytest.raises(InputError, match=r'^lr is 0\.2 on worker 0 and 0\.1 on worker 1: start all'):
        OfTwo().check_equal({'seed': 1, 'lr': 0.2})
    with pytest.raises(InputError, match='^lr is None on worker 0'):
        OfTwo().check_equal({'seed': 1})
