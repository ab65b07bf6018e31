"""Runs of several workers."""
import pytest
from epochs import NO_PARAMETERS
from two_workers import OfTwo, Shard

from gluon_mgpu.base.program import InputError
from gluon_mgpu.mxnet_setup.compat import np
from gluon_mgpu.training.run import Run


def test_data_of_all_workers_is_refused():
    """Otherwise each worker would train on all rows."""
    for batches in ([(0, 0)], map(int, '1')):
        with pytest.raises(ValueError, match='^rank 0: train_iter is not marked as this worker'):
            next(Run(1, workers=OfTwo()).batches(batches))
    assert next(Run(1, workers=OfTwo()).batches(Shard([(0, 0)]))) == (0, 0)


def test_the_losses_of_all_workers_count(monkeypatch):
    """All read those of the same batches, as rank 0 decides: an exchange has the same batches on all."""
    sizes = []

    def of_other(value):
        if not isinstance(value, tuple):
            return value
        sums, batches_per_read = value  # of the batches read, (loss, rows)
        sizes.append(len(sums))
        return sums * [2, 3], batches_per_read + 1

    def run_of(rank):
        run = Run(1, quiet=True, workers=OfTwo(rank, of_other))
        batches = Shard([(0, 0)] * 9)
        batches.shard = (rank, 2)
        for _ in run.epochs(NO_PARAMETERS):
            for _ in run.batches(batches):
                run.record_losses([np.array([1.0, 2.0])])
            run.end_epoch(0.5)
        return run

    monkeypatch.setattr('gluon_mgpu.training.epoch.MAX_UNREAD', 2)
    of_rank_0, sizes_of_rank_0 = run_of(0), sizes[:]
    sizes.clear()
    of_rank_1 = run_of(1)
    for run in (of_rank_0, of_rank_1):
        epoch = run.history[0]
        assert epoch.loss == 9 * (3 + 6) / (9 * (2 + 6))
        assert epoch.images_per_second * epoch.seconds == pytest.approx(9 * (2 + 6))
    assert sizes_of_rank_0 == [1, 2, 2, 2, 2] and sizes == [1, 3, 3, 2]


def test_forgotten_sums_are_found_after_the_first_batch():
    class Other(OfTwo):
        """A worker of which the other has trained on other rows alone."""

        def check_equal(self, values, remedy=''):
            if 'the checksum of the parameters' in values:
                raise InputError(remedy)

    run = Run(1, quiet=True, workers=Other())
    weight = np.ones(2)
    with pytest.raises(InputError, match='^sum the gradients over all workers'):
        for _ in run.epochs([[weight]]):
            for _ in run.batches(Shard([(0, 0)] * 9)):
                run.record_losses([np.array([1.0, 2.0])])
                weight += 1
    assert run.num_steps == 0 and weight.tolist() == [2, 2]
