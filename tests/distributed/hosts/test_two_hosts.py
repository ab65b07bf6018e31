"""A job on two hosts ends in time when the link between them is cut, and can be resumed."""
import sys
import time

import psutil
import pytest
from runs import outcome
from two_hosts import ADDRESSES, TwoHosts, obstacle


@pytest.fixture
def hosts(tmp_path):
    problem = obstacle()
    if problem:
        pytest.skip(f'two hosts cannot be simulated here: {problem}')
    (tmp_path / 'ssh').mkdir()
    with TwoHosts(tmp_path / 'ssh') as two_hosts:
        yield two_hosts


def test_the_link_is_cut(job, hosts, flags, tmp_path, count):
    flags = ['--horovod', *flags, '--num-epochs', '5', '--checkpoint-every', '3', '--resume', 'auto']
    command = [sys.executable, '-m', 'gluon_mgpu.scratch', *flags, '--out-dir']
    with job(2, *command, tmp_path / 'whole', launch=hosts.launch, **hosts.environment) as whole:
        assert whole.end() == 0, ''.join(whole.lines)
    assert whole.text.splitlines()[-1].endswith(', 2 workers')
    with job(2, *command, tmp_path / 'run', launch=hosts.launch, **hosts.environment,
             GLUON_MGPU_WORKER_TIMEOUT='3') as run:
        run.wait_for('epoch 1/5')
        hosts.cut()
        cut = time.monotonic()
        run.wait_for('; the job ends; resume with: ')
        assert time.monotonic() - cut < 6
        assert run.end(timeout=30) != 0
        assert psutil.wait_procs(run.workers(), timeout=10)[1] == []
    assert f'[0] scratch: worker 1 of 2 ({ADDRESSES[1]}, process ' in run.text
    assert 'or its machine or the network failed' in run.text
    hosts.mend()
    with job(2, *command, tmp_path / 'run', launch=hosts.launch, **hosts.environment) as again:
        assert again.end() == 0, ''.join(again.lines)
    assert outcome(tmp_path / 'run') == outcome(tmp_path / 'whole')
    count('the link between two hosts cut: the job ended in time and resumed with equal results')
