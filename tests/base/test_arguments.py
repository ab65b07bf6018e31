"""Tests of the checks of arguments."""
import numpy
import pytest

from gluon_mgpu.base import arguments


@pytest.mark.parametrize('value', [1.0, '1', None, [1]])
def test_invalid_integers(value):
    with pytest.raises(ValueError, match=r'rows .*: must be an integer of at least 0'):
        arguments.integer('rows', value, minimum=0)


@pytest.mark.parametrize('value', [0, -1, float('nan'), float('inf'), 10**400, 'x', None, True, numpy.True_])
def test_numbers_that_are_not_above_0(value):
    with pytest.raises(ValueError, match='lr .*: must be a number above 0'):
        arguments.positive('lr', value)


@pytest.mark.parametrize('value', [5, None, b'a', ['a']])
def test_values_that_are_no_text(value):
    for check in (arguments.not_empty, arguments.full_path):
        with pytest.raises(ValueError, match='^data_dir .*: must be text that is not empty; '):
            check('data_dir', value)
