"""Batches for the tests of the check."""
import numpy
import pytest
from steps_to_check import batches_of_six_numbers


@pytest.fixture
def batches(seed):
    return batches_of_six_numbers(seed)


@pytest.fixture
def image_batches(seed):
    rng = numpy.random.default_rng(seed)
    return [(rng.normal(size=(64, 1, 28, 28)).astype('float32'), rng.integers(0, 10, 64).astype('int32'))]
