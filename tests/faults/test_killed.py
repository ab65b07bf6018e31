"""A run that is killed at any moment resumes with the same command and gives the same results."""
import os
import random
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import own_loop
import pytest
from runs import SLOW_STEPS, altered, outcome, run, start

from gluon_mgpu import scratch
from gluon_mgpu.checkpoints.run_folder import checkpoints
from gluon_mgpu.training.signals import SAME

# Writing a file takes 0.1 s longer, so that the run can be killed meanwhile
SLOW_DISK = 'fsync = os.fsync; os.fsync = lambda file: (time.sleep(0.1), fsync(file))'


def keep_only_best(folder):
    newest, *older = checkpoints(folder)
    newest.write_bytes(b'damaged')
    for path in older:
        path.unlink()


@pytest.mark.parametrize('meanwhile, words', [
    (lambda folder: None, 'resuming from {}/checkpoint-00000012'),
    (keep_only_best, 'resuming from {}/best.safetensors')], ids=['nothing', 'only the best'])
def test_a_killed_run_resumes_with_equal_results(meanwhile, words, scratch_command, tmp_path, count, capsys):
    command = [*scratch_command, '--num-epochs', '2', '--checkpoint-every', '3', '--keep-best', '--out-dir']
    assert scratch.main([*command[3:], str(tmp_path / 'whole')]) == 0
    code = ('batch, steps = scratch.train_batch, iter(range(13))\n'
            'scratch.train_batch = lambda *args: batch(*args) if next(steps) < 12 else os.kill(os.getpid(), 9)')
    assert run(altered([*command, tmp_path / 'run'], code)).returncode == -signal.SIGKILL
    meanwhile(tmp_path / 'run')
    assert scratch.main([*command[3:], str(tmp_path / 'run'), '--resume', 'auto']) == 0
    assert words.format(tmp_path / 'run') in ''.join(capsys.readouterr())
    assert outcome(tmp_path / 'run') == outcome(tmp_path / 'whole')
    count('SIGKILL after 12 steps: resumed with equal results')


@pytest.mark.filterwarnings('ignore:frozen.weight has no values yet')
def test_a_killed_loop_of_ones_own(tmp_path, count):
    """While it lives, another process cannot use its folder; then it resumes from its newest checkpoint only."""
    out, whole = tmp_path / 'run', tmp_path / 'whole'
    for folder in (out, whole):
        folder.mkdir()
    own_loop.train(whole)
    with subprocess.Popen([sys.executable, own_loop.__file__, out, str(2 * own_loop.NUM_BATCHES + 1)],
                          stderr=subprocess.DEVNULL) as process:
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        for resume in (0, None):
            with pytest.raises(ValueError, match='run is in use by another run: wait until it ends, or use another'):
                own_loop.train(out, resume)
        process.kill()
    with pytest.raises(ValueError, match='checkpoint-00000006.safetensors would be lost: resume from it, or move it'):
        own_loop.train(out, resume=1)
    assert len(checkpoints(out)) == 2
    own_loop.train(out, resume=0)
    assert outcome(out) == outcome(whole)
    count("SIGKILL of a loop of one's own: resumed with equal results")


@pytest.mark.slow
def test_sigkill_at_any_moment(scratch_command, uninterrupted, duration, tmp_path, long, count, seed):
    command = [*scratch_command, '--checkpoint-every', '3', '--resume', 'auto', '--out-dir']

    def kill_and_resume(i):
        out = tmp_path / str(i)
        with subprocess.Popen(altered([*command, str(out)], SLOW_DISK), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as process:
            time.sleep(random.Random(f'{seed} {i}').uniform(0.3, 1.5) * duration)
            process.kill()
        writing = bool(list(out.glob('*.part')))
        return out, writing, run([*command, out])

    with ThreadPoolExecutor(2) as pool:
        for out, writing, done in pool.map(kill_and_resume, range(50 if long else 2)):
            assert (done.returncode, done.stderr.count('Traceback')) == (0, 0), done.stderr
            assert outcome(out) == uninterrupted, (out, done.stdout)
            assert not list(out.glob('*.part'))
            count('SIGKILL while a checkpoint was written: resumed with equal results' if writing else
                  'SIGKILL at a random moment: resumed with equal results')


@pytest.mark.slow
def test_the_first_signal_stops_the_run_cleanly(scratch_command, uninterrupted, tmp_path, long, count):
    """The run prints a command that resumes it with equal results."""
    for number in (signal.SIGTERM, signal.SIGINT) if long else (signal.SIGTERM,):
        out = tmp_path / number.name
        with start(altered([*scratch_command, '--out-dir', out], SLOW_STEPS), 'epoch 1/') as process:
            process.send_signal(number)
            _, err = process.communicate()
        assert process.returncode == 128 + number, err
        assert 'Traceback' not in err
        found = re.fullmatch(r'scratch: stopped (in epoch \d+ after \d+ batches|after epoch \d+); resume with: python '
                             r'(-m gluon_mgpu.scratch --resume auto --out-dir \S+)',
                             err.splitlines()[-1])
        assert found, err
        done = run([sys.executable, *found[2].split()])
        assert done.returncode == 0, done.stderr
        assert outcome(out) == uninterrupted
        count(f'{number.name}: stopped cleanly and resumed with equal results')


@pytest.mark.slow
def test_the_second_signal_ends_the_run_immediately(scratch_command, tmp_path, count):
    """Even while the main thread is inside a library and Python handles no signals; here it sleeps in libc."""
    code = ('import ctypes\n'
            'libc = ctypes.CDLL(None)\n'
            'def stuck(*args):\n'
            '    print("stuck", flush=True)\n'
            '    [libc.usleep(10**6) for _ in range(60)]\n'
            'scratch.train_batch = stuck')
    with start(altered([*scratch_command, '--out-dir', tmp_path / 'run'], code), 'stuck') as process:
        for _ in range(2):  # launchers may send a signal twice
            process.send_signal(signal.SIGTERM)
            time.sleep(0.02)
        time.sleep(4 * SAME)
        assert process.poll() is None  # it is finishing the step
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        process.wait(30)
        assert time.monotonic() - began < 5
    assert process.returncode == 143
    count('a second signal within a step: ended immediately')


@pytest.mark.slow
def test_a_signal_interrupts_evaluation(scratch_command, uninterrupted, tmp_path, count):
    code = ('evaluate = scratch.evaluate_accuracy_gpus\n'
            'def slowly(batches):\n'
            '    for batch in [*batches] * 300:\n'
            '        print("evaluating", flush=True)\n'
            '        time.sleep(0.2)\n'
            '        yield batch\n'
            'scratch.evaluate_accuracy_gpus = lambda net, its, *args, **kw: evaluate(net, slowly(its), *args, **kw)')
    out = tmp_path / 'run'
    with start(altered([*scratch_command, '--out-dir', out], code), 'evaluating') as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
        assert 'epoch 1 after 8 batches; resume with: ' in process.stderr.read()
    done = run([*scratch_command, '--resume', out])
    assert done.returncode == 0 and f'resuming from {out}/checkpoint-00000008.safetensors' in done.stdout
    assert outcome(out) == uninterrupted
    assert len(checkpoints(out)) == 2
    count('SIGTERM in evaluation: stopped early and resumed with equal results')
