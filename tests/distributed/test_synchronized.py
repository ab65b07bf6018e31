"""Synchronized batch norm with several workers: they equal one device, resume, and end when a worker is lost."""
import signal
import sys
import time

import numpy
import psutil
import pytest
from history_csv import history
from jobs import CRASHES, HERE, LOST, PATH
from runs import outcome, run
from synchronized import CASES, trained

from gluon_mgpu.data.shards import shard_rows

PYTHON = sys.executable
WAIT = 5  # seconds after which a silent worker counts as lost
NUM_NORMS = 17  # of ResNet-18
# A chapter in which worker 1 gets a signal at a given exchange
FAILING = ('import os, sys\n'
           'from itertools import count\n'
           'from gluon_mgpu import concise\n'
           'from gluon_mgpu.distributed.horovod_workers import HorovodWorkers\n'
           'allreduce, number = HorovodWorkers.allreduce, count()\n'
           'def failing(workers, array):\n'
           '    if workers.rank == 1 and next(number) == int(os.environ.get("EXCHANGE", -1)):\n'
           '        print("failing now", flush=True)\n'
           '        os.kill(os.getpid(), int(os.environ["SIGNAL"]))\n'
           '    return allreduce(workers, array)\n'
           'HorovodWorkers.allreduce = failing\n'
           'sys.exit(concise.main(sys.argv[1:]))')


@pytest.mark.parametrize('num_workers, case', [(3, 'small'), (2, 'adam, clipped, in parts'), (2, 'deep'),
                                               (2, 'resnet18')])
def test_workers_equal_one_device(job, device_list, tmp_path, num_workers, case):
    def order(n):
        """Return the rows of the first part on all workers, then those of the second."""
        shards = [range(n)[shard_rows(n, rank, num_workers)] for rank in range(num_workers)]
        return [row for part in (0, 1) for shard in shards for row in shard[shard_rows(len(shard), part, 2)]]

    job.completed(num_workers, PYTHON, HERE / 'synchronized.py', case, tmp_path, timeout=500, PYTHONPATH=PATH)
    one = trained(case, device_list(1), **({'order': order} if 'in parts' in case else {}))
    found = [numpy.load(tmp_path / f'{rank}.npz') for rank in range(num_workers)]
    for name, expected in one.items():
        assert numpy.isfinite(expected).all()
        assert abs(found[0][name] - expected).max() < 1e-10, name
        for arrays in found[1:]:
            assert (arrays[name] == found[0][name]).all(), name
    num_norms, (_, sizes, parts) = sum(name.endswith('running_mean') for name in one), CASES[case]
    assert [arrays['exchanges'] for arrays in found] == [2 * num_norms * len(sizes) * parts] * num_workers


@pytest.fixture(scope='module')
def command(flags):
    return [PYTHON, '-c', FAILING, '--horovod', *flags, '--sync-batch-norm', '--train-size', '40', '--batch-size', '16',
            '--num-epochs', '2', '--checkpoint-every', '1', '--resume', 'auto', '--out-dir']


@pytest.fixture(scope='module')
def uninterrupted(job, command, tmp_path_factory):
    """The results of an uninterrupted job."""
    out = tmp_path_factory.mktemp('whole') / 'run'
    job.completed(2, *command, out)
    return outcome(out)


@pytest.mark.parametrize('direction, signum', [('forward', signal.SIGKILL), ('backward', signal.SIGSTOP)])
def test_a_worker_fails_in_a_pass(job, command, uninterrupted, tmp_path, count, direction, signum):
    """In the third step, at the sixth norm. The other worker waits for its statistics or sums."""
    exchange = 2 * 2 * NUM_NORMS + NUM_NORMS * (direction == 'backward') + 5
    with job(2, *command, tmp_path / 'run', HOROVOD_GLOO_TIMEOUT_SECONDS=str(WAIT), EXCHANGE=str(exchange),
             SIGNAL=str(int(signum))) as started:
        started.wait_for('failing now')
        began = time.monotonic()
        started.wait_for(f'[0]<stderr>:concise: worker 0: {LOST}', *CRASHES)
        assert time.monotonic() - began < WAIT + 5
        assert started.end(timeout=30) != 0
        assert psutil.wait_procs(started.workers(), timeout=5)[1] == []
    job.completed(2, *command, tmp_path / 'run')
    assert outcome(tmp_path / 'run') == uninterrupted
    count(f'worker 1 of 2, {signum.name} in the {direction} pass: the job ended in time and resumed with equal results')


def test_a_run_is_resumed_on_another_number_of_workers(job, flags, tmp_path):
    """Stopped by SIGTERM to one worker, resumed by three workers, then in one process with two devices."""
    out = tmp_path / 'run'
    command = [PYTHON, '-m', 'gluon_mgpu.concise', *flags]
    first = [*command, '--horovod', '--sync-batch-norm', '--train-size', '40', '--batch-size', '16', '--num-epochs',
             '40', '--accumulate', '2', '--momentum', '0.9', '--lr-schedule', 'cosine', '--out-dir', out]
    with job(2, *first) as stopped:
        stopped.wait_for('epoch 1/40')
        stopped.workers()[1].terminate()
        assert stopped.end() != 0
    assert '[0] concise: stopped ' in stopped.text and '[1]' not in stopped.text, stopped.text
    epochs = len(history(out)) + 1
    resume = [PYTHON, '-m', 'gluon_mgpu.concise', '--no-plot', '--resume', out, '--num-epochs']
    resumed = job.completed(3, *resume, epochs, '--horovod')
    done = run([*resume, epochs + 1, '--devices', 'cpu:0,cpu:1'])
    assert done.returncode == 0, done.stderr
    assert 'differed between' not in resumed + done.stderr  # the statistics of the workers
    assert len(history(out)) == epochs + 1
    assert {len(kept) for kept in outcome(out)[1].values()} == {1}
