"""Fixtures of the tests on two simulated hosts: `make test-hosts`. No other command collects this folder."""
import pytest
from two_hosts import TwoHosts, obstacle


@pytest.fixture
def hosts(tmp_path):
    """Two hosts with a fast link."""
    problem = obstacle()
    if problem:
        pytest.exit(f'two hosts cannot be simulated here: {problem}', returncode=pytest.ExitCode.USAGE_ERROR)
    (tmp_path / 'ssh').mkdir()
    with TwoHosts(tmp_path / 'ssh') as two_hosts:
        yield two_hosts
