"""Jobs on two hosts: training, resuming, a lost link, a lost host, and hosts that differ."""
import sys
import time
from pathlib import Path

import psutil
import pytest
from jobs import CRASHES, LOST
from runs import outcome

import gluon_mgpu

PYTHON = Path(sys.executable)
PACKAGE = Path(gluon_mgpu.__file__)


@pytest.fixture
def train(flags, tmp_path):
    """The command that trains LeNet in the folder `tmp_path / 'runs/one'`."""
    (tmp_path / 'runs').mkdir()
    return [PYTHON, '-m', 'gluon_mgpu.scratch', '--horovod', *flags, '--checkpoint-every', '3', '--resume', 'auto',
            '--out-dir', tmp_path / 'runs/one']


def trains(job, launch, command, *more) -> str:
    """Run a job to its end and return what its workers have printed."""
    text = job.completed(2, *command, *more, launch=launch, timeout=400)
    assert text.splitlines()[-1].endswith(', 2 workers')
    return text


def assert_nothing_left(hosts) -> None:
    """Check that all processes of the job end on both hosts."""
    left = psutil.wait_procs(hosts[0].processes() + hosts[1].processes(), 15)[1]
    assert [process.cmdline() for process in left] == []


def test_only_the_first_host_needs_the_run_folder(job, hosts, train, tmp_path):
    (tmp_path / 'of-host2').mkdir()
    hosts[1].mount(tmp_path / 'of-host2', tmp_path / 'runs')
    trains(job, hosts.launch, train, '--num-epochs', '1')
    trains(job, hosts.launch, train, '--num-epochs', '2')
    assert not [*(tmp_path / 'of-host2').iterdir()]


def test_the_link_is_cut(job, hosts, train, tmp_path, count):
    """Then the other host resumes, with equal results."""
    trains(job, hosts.launch, [*train[:-1], tmp_path / 'whole'], '--num-epochs', '5')
    with job(2, *train, '--num-epochs', '5', launch=hosts.launch, HOROVOD_GLOO_TIMEOUT_SECONDS='10') as run:
        run.wait_for('epoch 1/5')
        hosts.cut()
        cut = time.monotonic()
        run.wait_for(f'[0]<stderr>:scratch: worker 0: {LOST}; resume with: horovodrun ... ', *CRASHES)
        assert 9 < time.monotonic() - cut < 14
        assert run.end(timeout=40) != 0
        assert_nothing_left(hosts)
    hosts.mend()
    assert 'resuming from' in trains(job, hosts.launch_on(1), train, '--num-epochs', '5')
    assert outcome(tmp_path / 'runs/one') == outcome(tmp_path / 'whole')
    count('the link between two hosts cut: the job ended in time and resumed with equal results')


@pytest.mark.parametrize('killed', [0, 1])
def test_all_processes_of_a_host_are_killed(job, hosts, train, count, killed):
    with job(2, *train, '--num-epochs', '50', launch=hosts.launch) as run:
        run.wait_for('epoch 1/50')
        hosts[killed].kill_all()
        at = time.monotonic()
        assert run.end(timeout=60) != 0
        assert_nothing_left(hosts)
        assert time.monotonic() - at < 30
    hosts[killed].serve_ssh()
    assert 'resuming from' in trains(job, hosts.launch, train, '--num-epochs', '2')
    count(f'all processes of {hosts[killed].name} killed: the job ended in time and resumed')


def test_the_package_differs(job, hosts, train, tmp_path):
    version = gluon_mgpu.__version__
    hosts[1].edit(PACKAGE, f"'{version}'", "'0.9'", copy=tmp_path / 'version.py')
    with job(2, *train, launch=hosts.launch) as run:
        assert run.end() != 0
        assert_nothing_left(hosts)
    assert run.text.startswith(f'[0] scratch: gluon_mgpu is {version} on worker 0 and 0.9 on worker 1: start all ')


def test_a_host_without_horovod(job, hosts, train, tmp_path):
    """Simulated by a module that Python imports when it starts."""
    seen, of_host2 = tmp_path / 'site', tmp_path / 'site-of-host2'
    seen.mkdir()
    of_host2.mkdir()
    (of_host2 / 'sitecustomize.py').write_text('import sys; sys.modules["horovod"] = None')
    hosts[1].mount(of_host2, seen)
    with job(2, 'env', f'PYTHONPATH={seen}', *train, launch=hosts.launch) as run:
        assert run.end() != 0
        assert_nothing_left(hosts)
    assert '[1] scratch: Horovod is not built for this MXNet (' in run.text
