"""Programs unlike the chapters, on several workers: they compute what one process does, or are refused in one line."""
import numpy
import pytest
from programs import PROGRAMS
from test_equality import results_of_workers

from gluon_mgpu.parallel.workers import Workers


@pytest.mark.parametrize('name', PROGRAMS)
def test_workers_equal_one_process(job, tmp_path, name):
    expected = [array for _, array in sorted(PROGRAMS[name](Workers()).items(), key=lambda item: (len(item[0]), item))]
    found = results_of_workers(job, 2, 'programs.py', name, folder=tmp_path / 'job')
    for arrays in found:
        for array, right in zip(arrays, expected):
            numpy.testing.assert_allclose(array, right, rtol=1e-11, atol=1e-13)  # float64, sums in another order
        assert all((a == b).all() for a, b in zip(arrays, found[0]))
