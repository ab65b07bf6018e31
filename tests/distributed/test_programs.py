"""Programs unlike the chapters, on several workers: they compute what one process does, or are refused in one line."""
import sys

import numpy
import pytest
from programs import EQUAL
from test_equality import HERE, results_of_workers

from gluon_mgpu.parallel.workers import Workers


@pytest.mark.parametrize('name', EQUAL)
def test_workers_equal_one_process(job, tmp_path, name):
    expected = [array for _, array in sorted(EQUAL[name](Workers()).items(), key=lambda item: (len(item[0]), item))]
    found = results_of_workers(job, 2, 'programs.py', name, folder=tmp_path / 'job')
    for arrays in found:
        for array, right in zip(arrays, expected):
            tolerance = 1e-6 if array.dtype == 'float32' else 1e-12  # sums in another order
            numpy.testing.assert_allclose(array, right, rtol=tolerance, atol=tolerance)
        assert all((a == b).all() for a, b in zip(arrays, found[0]))


def output(job, tmp_path, name, num_workers=2, status=1):
    """Run a program that must end in time, on its own; return what the workers have printed."""
    path = ':'.join(str(place) for place in (HERE, HERE.parent, HERE.parents[1]))
    with job(num_workers, sys.executable, HERE / 'programs.py', name, tmp_path, PYTHONPATH=path) as run:
        assert (run.end(timeout=60) != 0) == status, run.text
    assert 'Exception ignored' not in run.text, run.text
    return run.text


@pytest.mark.parametrize('name, words', [
    ('too_large', 'batch_size 20, but the training data has batches of 10 rows over all workers: use the same number'),
    ('too_small', 'batch_size 5, but the training data has batches of 10 rows over all workers: use the same number')])
def test_all_workers_refuse(job, tmp_path, name, words):
    text = output(job, tmp_path, name)
    assert words in text and 'the job ends' not in text, text
