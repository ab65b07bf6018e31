"""Tests of finding the run to resume in a job of several workers."""
import pytest

from gluon_mgpu.base.program import JobError
from gluon_mgpu.checkpoints import find
from gluon_mgpu.parallel.workers import Workers


class TwoWorkers(Workers):
    """This worker and one on another machine; `other_finds` says whether the other machine has the run."""

    hosts = 'a', 'b'

    def __init__(self, other_finds):
        super().__init__()
        self.other_finds = other_finds

    def allgather(self, value):
        return [value, self.other_finds]


@pytest.mark.parametrize('auto', [True, False])
def test_a_run_on_another_machine(tmp_path, auto):
    folder = tmp_path / 'run'
    where = (find.AUTO, str(folder)) if auto else (str(folder), None)
    find.check_on_rank_0(*where, TwoWorkers(False))  # no run anywhere
    with pytest.raises(JobError, match=f'^--resume {where[0]}: {folder} is on b and not on a, where worker 0 reads'):
        find.check_on_rank_0(*where, TwoWorkers(True))
    folder.mkdir()
    (folder / 'config.json').touch()
    find.check_on_rank_0(*where, TwoWorkers(False))  # only rank 0 needs it
