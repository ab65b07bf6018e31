"""Errors of calls."""
import pytest


def refused(function, *args, **options) -> str:
    """Return the message of the ValueError of a call: one line."""
    with pytest.raises(ValueError) as caught:
        function(*args, **options)
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    return line
