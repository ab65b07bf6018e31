"""Mark one case of a parametrized test as slow: `@pytest.mark.parametrize('k', [1, slow(4)])`."""
import pytest


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)
