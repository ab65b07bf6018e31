"""Fixtures of the tests on two simulated hosts: `make test-hosts`. No other command collects this folder."""
import pytest
from two_hosts import TwoHosts, obstacle


@pytest.fixture
def new_hosts(tmp_path):
    """The class `TwoHosts` without its first argument."""
    problem = obstacle()
    if problem:
        pytest.exit(f'two hosts cannot be simulated here: {problem}', returncode=pytest.ExitCode.USAGE_ERROR)
    (tmp_path / 'ssh').mkdir()
    return lambda **link: TwoHosts(tmp_path / 'ssh', **link)


@pytest.fixture
def hosts(new_hosts):
    """Two hosts with a fast link."""
    with new_hosts() as two_hosts:
        yield two_hosts
