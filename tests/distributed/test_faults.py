"""A worker is killed, stopped or fails: the job ends in time, says so, and resumes with equal results."""
import random
import re
import signal
import sys
import time

import psutil
import pytest
from jobs import CRASHES, LOST
from runs import outcome

WAIT = 5  # seconds after which a silent worker counts as lost
# A chapter that raises an exception after SIGUSR1
EXCEPTION = ('import signal, sys\n'
             'from gluon_mgpu import scratch\n'
             'batch, received = scratch.train_batch, []\n'
             'signal.signal(signal.SIGUSR1, lambda *args: received.append(1))\n'
             'def failing(*args, **settings):\n'
             '    if received:\n'
             '        raise RuntimeError("requested by the test")\n'
             '    return batch(*args, **settings)\n'
             'scratch.train_batch = failing\n'
             'sys.exit(scratch.main(sys.argv[1:]))')
FAULTS = {'KILL': signal.SIGKILL, 'STOP': signal.SIGSTOP, 'exception': signal.SIGUSR1}
NUM_WORKERS = 2


@pytest.fixture(scope='module')
def command(flags):
    return [sys.executable, '-c', EXCEPTION, '--horovod', *flags, '--num-epochs', '12', '--checkpoint-every', '3',
            '--resume', 'auto', '--out-dir']


@pytest.fixture(scope='module')
def uninterrupted(job, command, tmp_path_factory):
    """The results of an uninterrupted job."""
    out = tmp_path_factory.mktemp('whole') / 'run'
    job.completed(NUM_WORKERS, *command, out)
    return outcome(out)


@pytest.mark.parametrize('rank', range(NUM_WORKERS))
@pytest.mark.parametrize('fault', FAULTS)
def test_a_worker_fails_at_a_random_moment(job, command, uninterrupted, tmp_path, long, count, seed, fault, rank):
    rng = random.Random(f'{seed} {fault} {rank}')
    for i in range(10 if long else 1):
        out = tmp_path / str(i)
        with job(NUM_WORKERS, *command, out, HOROVOD_GLOO_TIMEOUT_SECONDS=str(WAIT)) as run:
            epoch = rng.randint(0, 8)
            run.wait_for(f'epoch {epoch}/12' if epoch else 'images, batches of')
            time.sleep(rng.uniform(0, 0.15))  # well before the end, however fast the machine is
            worker = run.workers()[rank]
            worker.send_signal(FAULTS[fault])
            sent = time.monotonic()
            who = f'worker {rank} has failed' if fault == 'exception' else f'worker {1 - rank}: {LOST}'
            run.wait_for(f'{who}; resume with: horovodrun ... python -m gluon_mgpu.scratch --horovod --resume auto '
                         f'--out-dir {out}', *([] if fault == 'exception' else CRASHES))
            noticed = time.monotonic() - sent
            assert run.end(timeout=30) != 0
            # The launcher kills after 10 s: a stopped worker, or one that hangs because MXNet has crashed
            assert noticed < (WAIT + 3 if fault == 'STOP' else 5)
            assert time.monotonic() - sent < (10 if fault == 'KILL' else WAIT + 15)
            left = psutil.wait_procs(run.workers(), timeout=5)[1]
            assert left == []
        if fault == 'KILL':
            assert f'Process name: {rank}\n' in run.lines  # of horovodrun
        if fault == 'exception':
            assert f'[{rank}] RuntimeError: requested by the test' in run.text
        job.completed(NUM_WORKERS, *command, out)
        assert outcome(out) == uninterrupted
        count(f'worker {rank} of 2, {fault}: the job ended in time and resumed with equal results')


def test_ctrl_c_stops_all_workers_after_the_same_batch(job, command, uninterrupted, tmp_path, count):
    with job(NUM_WORKERS, *command, tmp_path / 'run') as run:
        run.wait_for('epoch 2/12')
        run.process.send_signal(signal.SIGINT)
        assert run.end(timeout=30) != 0
    line = run.text.splitlines()[-1]
    assert re.search('(-c|scratch): (ended|stopped) (in|after) epoch', line), run.text
    job.completed(NUM_WORKERS, *command, tmp_path / 'run')
    assert outcome(tmp_path / 'run') == uninterrupted
    count('Ctrl-C to a job: workers stopped together and resumed with equal results')


def test_the_launcher_is_killed(job, command, uninterrupted, tmp_path, count):
    """Its workers end as well."""
    with job(NUM_WORKERS, *command, tmp_path / 'run') as run:
        run.wait_for('epoch 1/12')
        workers = run.workers()
        run.process.kill()
        assert psutil.wait_procs(workers, timeout=15)[1] == []
    job.completed(NUM_WORKERS, *command, tmp_path / 'run')
    assert outcome(tmp_path / 'run') == uninterrupted
    count('the launcher killed: no worker left, resumed with equal results')
