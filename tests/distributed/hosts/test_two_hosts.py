"""Jobs on two hosts: training, lost links and hosts, differing hosts, blocked ports, and the run's folder."""
import os
import shutil
import sys
import time
from pathlib import Path

import psutil
import pytest
from runs import outcome

import gluon_mgpu

PYTHON = Path(sys.executable)
PACKAGE = Path(gluon_mgpu.__file__)
# Another Python version, and a Python without Horovod, are simulated by a module that Python imports when it starts
SITE = {'python': 'import sys; sys.version = sys.version.replace(sys.version.split()[0], "3.10.99")',
        'no Horovod': 'import sys; sys.modules["horovod"] = None'}


@pytest.fixture
def train(flags, tmp_path):
    """The command that trains LeNet in the folder `tmp_path / 'runs'`."""
    (tmp_path / 'runs').mkdir()
    return [PYTHON, '-m', 'gluon_mgpu.scratch', '--horovod', *flags, '--out-dir', tmp_path / 'runs/one']


@pytest.fixture
def separate_runs(hosts, tmp_path):
    """The folder that host2 sees as `tmp_path / 'runs'`."""
    folder = tmp_path / 'runs-of-host2'
    folder.mkdir()
    hosts[1].mount(folder, tmp_path / 'runs')
    return folder


def trains(job, launch, command, *more, **environment) -> str:
    """Run a job to its end and return what its workers have printed."""
    with job(2, *command, *more, launch=launch, **environment) as run:
        assert run.end(timeout=400) == 0, ''.join(run.lines)
    assert run.text.splitlines()[-1].endswith(', 2 workers')
    return run.text


def fails(job, hosts, launch, command, *more, seconds: float, timeout: float = 15, **environment) -> str:
    """Run a job that must fail within `seconds`, without a traceback in a worker, and return its output."""
    began = time.monotonic()
    with job(2, *command, *more, launch=launch, **environment) as run:
        assert run.end() != 0
        assert time.monotonic() - began < seconds
        assert_nothing_left(hosts, timeout)
    assert 'Traceback' not in run.text, run.text
    return run.text or ''.join(run.lines)


def assert_nothing_left(hosts, timeout: float = 15) -> None:
    """Check that all processes of the job end on both hosts."""
    left = psutil.wait_procs(hosts[0].processes() + hosts[1].processes(), timeout)[1]
    assert [process.cmdline() for process in left] == []


@pytest.mark.parametrize(('chapter', 'size'), [('scratch', '1000'), ('concise', '256')])
def test_a_chapter_trains(job, hosts, flags, tmp_path, chapter, size):
    command = [PYTHON, '-m', f'gluon_mgpu.{chapter}', '--horovod', *flags, '--train-size', size, '--num-epochs', '2']
    text = trains(job, hosts.launch, command, '--out-dir', tmp_path / 'run')
    assert f'2 workers\n[0] {size} training and 250 test images' in text
    assert 'epoch 2/2' in text


def test_the_link_is_cut(job, hosts, train, tmp_path, count):
    command = [*train[:-2], '--num-epochs', '5', '--checkpoint-every', '3', '--resume', 'auto', '--out-dir']
    trains(job, hosts.launch, command, tmp_path / 'whole')
    with job(2, *command, tmp_path / 'run', launch=hosts.launch) as run:
        run.wait_for('epoch 1/5')
        hosts.cut()
        cut = time.monotonic()
        run.wait_for('; the job ends; resume with: ')
        assert 9 < time.monotonic() - cut < 14
        assert run.end(timeout=30) != 0
        assert time.monotonic() - cut < 25  # the launcher waits for up to 10 s
        assert_nothing_left(hosts)
    assert '[0] scratch: worker 1 of 2 (host2, process ' in run.text
    assert ' has not answered for 10 s: it is stopped, or its machine or the network failed' in run.text
    hosts.mend()
    trains(job, hosts.launch, command, tmp_path / 'run')
    assert outcome(tmp_path / 'run') == outcome(tmp_path / 'whole')
    count('the link between two hosts cut: the job ended in time and resumed with equal results')


@pytest.mark.parametrize('killed', [0, 1])
def test_all_processes_of_a_host_are_killed(job, hosts, train, count, killed):
    with job(2, *train, '--num-epochs', '50', '--resume', 'auto', launch=hosts.launch) as run:
        run.wait_for('epoch 1/50')
        hosts[killed].kill_all()
        at = time.monotonic()
        if killed:
            run.wait_for('; the job ends; resume with: ')
            assert time.monotonic() - at < 5
        assert run.end(timeout=30) != 0
        assert_nothing_left(hosts)
        assert time.monotonic() - at < 20
    if killed:
        assert '[0] scratch: worker 1 of 2 (host2, process ' in run.text
        assert 'was killed or has crashed' in run.text
    hosts[killed].serve_ssh()
    assert 'resuming from' in trains(job, hosts.launch, train, '--num-epochs', '2', '--resume', 'auto')
    count(f'all processes of {hosts[killed].name} killed: the job ended in time and resumed')


def test_a_slow_link_does_not_end_the_job(job, new_hosts, train):
    with new_hosts(delay=0.2, loss=0.01) as hosts:
        launch = hosts.launch_on(0, '--network-interfaces', 'eth0')  # finding the interface would take more than 30 s
        trains(job, launch, train, '--train-size', '512', '--num-epochs', '1')
        assert hosts.link.lost > 5


def test_the_package_differs(job, hosts, train, tmp_path):
    version = gluon_mgpu.__version__
    hosts[1].edit(PACKAGE, f"'{version}'", "'0.9'", copy=tmp_path / 'version.py')
    # Named before the flags, whose defaults may differ as well
    settings = PACKAGE.parent / 'settings' / 'settings.py'
    hosts[1].edit(settings, "'constant'", "'cosine'", copy=tmp_path / 'settings.py')
    text = fails(job, hosts, hosts.launch, train, seconds=60)
    assert f'[0] scratch: gluon_mgpu is {version} on worker 0 (host1) and 0.9 on worker 1 (host2): start all ' in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(('difference', 'line'), [
    ('python', 'on worker 0 (host1) and 3.10.99 on worker 1 (host2): start all workers with the same program, flags, '),
    ('no Horovod', '[1] scratch: worker 1 (host2): Horovod is not installed: ')])
def test_the_python_differs(job, hosts, train, tmp_path, difference, line):
    seen, of_host2 = tmp_path / 'site', tmp_path / 'site-of-host2'
    seen.mkdir()
    of_host2.mkdir()
    (of_host2 / 'sitecustomize.py').write_text(SITE[difference])
    hosts[1].mount(of_host2, seen)
    text = fails(job, hosts, hosts.launch, ['env', f'PYTHONPATH={seen}', *train], seconds=60)
    assert line in text
    assert len(text.splitlines()) == 1


def test_the_environment_is_missing(job, hosts, train, tmp_path):
    (tmp_path / 'empty').mkdir()
    hosts[1].mount(tmp_path / 'empty', PYTHON.parents[1])
    text = fails(job, hosts, hosts.launch_on(0, '--network-interfaces', 'eth0'), train, seconds=60)
    assert f"[1] env: '{PYTHON}': No such file or directory" in text


@pytest.mark.parametrize(('content', 'line'), [
    ('other', 'train_digest is '), ('none', 'worker 1 (host2): {data}: train-images-idx3-ubyte.gz, ')])
def test_the_data_differ(job, hosts, train, data, tmp_path, content, line):
    import idx_files
    (tmp_path / 'mnist').mkdir()
    if content == 'other':
        idx_files.write(tmp_path / 'mnist', idx_files.dataset(1000, 250, seed=1))
    hosts[1].mount(tmp_path / 'mnist', data / 'mnist')
    text = fails(job, hosts, hosts.launch, train, seconds=60)
    assert f'[0] scratch: {line.format(data=data / "mnist")}' in text and '(host2)' in text
    assert len(text.splitlines()) == 1


@pytest.mark.skipif(not shutil.which('nft', path=f'{os.environ["PATH"]}:/usr/sbin:/sbin'), reason='needs nftables')
@pytest.mark.parametrize(('host', 'ports', 'flags_of_launcher', 'line', 'seconds'), [
    (1, '22', (), 'ssh: connect to host host2 port 22: Connection timed out', 90),
    (0, '1024-65535', (), 'Timed out waiting for tasks to start. Please check connectivity between servers.', 90),
    (0, '1024-65535', ('--network-interfaces', 'eth0'),
     '[0] scratch: worker 0 (host1): worker 1 did not connect to http://10.77.1.1:', 90)])
def test_a_port_is_blocked(job, hosts, train, host, ports, flags_of_launcher, line, seconds):
    hosts[host].block(ports)
    # Horovod's own process on host2 tries to reach the launcher for another half minute
    text = fails(job, hosts, hosts.launch_on(0, *flags_of_launcher), train, seconds=seconds, timeout=60)
    assert line in text


@pytest.mark.parametrize(('flags_of_launcher', 'line'), [
    ((), 'NoValidAddressesFound'),
    (('--network-interfaces', 'eth0'), '[1] scratch: worker 1 (host2): HOROVOD_GLOO_IFACE eth0: not a network '
                                       'interface of this machine, which has lo, eth7; ')])
def test_the_interfaces_have_different_names(job, hosts, train, flags_of_launcher, line):
    for change in ('down', 'name eth7', 'up'):
        hosts[1].run('ip', 'link', 'set', 'eth7' if change == 'up' else 'eth0', *change.split())
    assert line in fails(job, hosts, hosts.launch_on(0, *flags_of_launcher), train, seconds=90)


def test_only_the_first_host_needs_the_run_folder(job, hosts, train, separate_runs, tmp_path):
    trains(job, hosts.launch, train, '--num-epochs', '1')
    assert os.listdir(separate_runs) == []
    assert (tmp_path / 'runs/one/history.csv').exists()
    trains(job, hosts.launch, train, '--num-epochs', '2', '--resume', 'auto')
    assert os.listdir(separate_runs) == []


def test_the_other_host_resumes(job, hosts, train, tmp_path):
    trains(job, hosts.launch, [*train[:-1], tmp_path / 'whole'])
    trains(job, hosts.launch, train, '--num-epochs', '1')
    assert 'resuming from' in trains(job, hosts.launch_on(1), train, '--num-epochs', '3', '--resume', 'auto')
    assert outcome(tmp_path / 'runs/one') == outcome(tmp_path / 'whole')
