"""Batches for the tests of the check."""
import numpy
import pytest


@pytest.fixture
def batches(seed):
    """Batches of random rows with 6 numbers, of 4 classes."""
    rng = numpy.random.default_rng(seed)
    return [(rng.normal(size=(16, 6)).astype('float32'), rng.integers(0, 4, 16).astype('int32')) for _ in range(3)]


@pytest.fixture
def image_batches(seed):
    rng = numpy.random.default_rng(seed)
    return [(rng.normal(size=(64, 1, 28, 28)).astype('float32'), rng.integers(0, 10, 64).astype('int32'))]
