"""A worker is killed, stopped or fails: the job ends in time, names it, and is resumed with the same bits."""
import random
import re
import signal
import sys
import time

import psutil
import pytest
from runs import outcome

WAIT = 3  # seconds that a worker may be silent in these tests
# Fails by itself when it gets SIGUSR1
EXCEPTION = ('import signal, sys\n'
             'from gluon_mgpu import scratch\n'
             'batch, received = scratch.train_batch, []\n'
             'signal.signal(signal.SIGUSR1, lambda *args: received.append(1))\n'
             'def failing(*args):\n'
             '    if received:\n'
             '        raise RuntimeError("as the test wants it")\n'
             '    return batch(*args)\n'
             'scratch.train_batch = failing\n'
             'sys.exit(scratch.main(sys.argv[1:]))')
FAULTS = {'KILL': (signal.SIGKILL, 'was killed or has crashed'),
          'STOP': (signal.SIGSTOP, f'has not answered for {WAIT} s: it is stopped, or its machine or the network'),
          'exception': (signal.SIGUSR1, 'has failed')}
NUM_WORKERS = 2


@pytest.fixture(scope='module')
def command(flags):
    return [sys.executable, '-c', EXCEPTION, '--horovod', *flags, '--num-epochs', '12', '--checkpoint-every', '3',
            '--resume', 'auto', '--out-dir']


@pytest.fixture(scope='module')
def whole(job, command, tmp_path_factory):
    out = tmp_path_factory.mktemp('whole') / 'run'
    with job(NUM_WORKERS, *command, out) as run:
        assert run.end() == 0, run.text
    return outcome(out)


@pytest.mark.parametrize('rank', range(NUM_WORKERS))
@pytest.mark.parametrize('fault', FAULTS)
def test_a_worker_ends_at_any_moment(job, command, whole, tmp_path, long, count, seed, fault, rank):
    rng = random.Random(f'{seed} {fault} {rank}')
    signum, words = FAULTS[fault]
    for i in range(10 if long else 1):
        out = tmp_path / str(i)
        with job(NUM_WORKERS, *command, out, GLUON_MGPU_WORKER_TIMEOUT=str(WAIT)) as run:
            epoch = rng.randint(0, 8)
            run.wait_for(f'epoch {epoch}/12' if epoch else 'images, batches of')
            time.sleep(rng.uniform(0, 0.15))  # well before the end, however fast the machine is
            worker = run.workers()[rank]
            worker.send_signal(signum)
            began = time.monotonic()
            run.wait_for('; the job ends; resume with: ' if fault != 'exception' or rank else 'as the test wants it')
            noticed = time.monotonic() - began
            assert run.end(timeout=30) != 0
            # The launcher gives a stopped worker twice 5 s to end by itself
            assert noticed < (WAIT + 3 if fault == 'STOP' else 5)
            assert time.monotonic() - began < (WAIT + 15 if fault == 'STOP' else 10)
            left = psutil.wait_procs(run.workers(), timeout=5)[1]
            assert left == []
        if fault != 'exception' or rank:
            assert f'worker {rank} of 2 (' in run.text and words in run.text, run.text
        with job(NUM_WORKERS, *command, out) as again:
            assert again.end() == 0, again.text
        assert outcome(out) == whole
        count(f'worker {rank} of 2, {fault}: the job ended in time, and was resumed to the bit')


def test_ctrl_c_ends_all_after_the_same_batch(job, command, whole, tmp_path, count):
    with job(NUM_WORKERS, *command, tmp_path / 'run') as run:
        run.wait_for('epoch 2/12')
        run.process.send_signal(signal.SIGINT)
        assert run.end(timeout=30) != 0
    line = run.text.splitlines()[-1]
    assert re.search('(-c|scratch): (ended|stopped) (in|after) epoch', line), run.text
    with job(NUM_WORKERS, *command, tmp_path / 'run') as again:
        assert again.end() == 0, again.text
    assert outcome(tmp_path / 'run') == whole
    count('Ctrl-C to a job: ended together, and resumed to the bit')


def test_the_launcher_is_killed(job, command, whole, tmp_path, count):
    """Its workers do not live on."""
    with job(NUM_WORKERS, *command, tmp_path / 'run') as run:
        run.wait_for('epoch 1/12')
        workers = run.workers()
        run.process.kill()
        assert psutil.wait_procs(workers, timeout=15)[1] == []
    with job(NUM_WORKERS, *command, tmp_path / 'run') as again:
        assert again.end() == 0, again.text
    assert outcome(tmp_path / 'run') == whole
    count('the launcher killed: no worker left, and resumed to the bit')


