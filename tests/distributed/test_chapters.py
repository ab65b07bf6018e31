"""Tests of both chapters with several workers: output, files, resuming, and errors in all workers."""
import json
import re
import shlex
import sys
from pathlib import Path

import idx_files
import pytest
from history_csv import history
from runs import outcome, run

from gluon_mgpu.programs import predict

PYTHON = sys.executable


def command(chapter, flags, out, *more):
    return [PYTHON, '-m', f'gluon_mgpu.{chapter}', '--horovod', *flags, '--out-dir', out, *more]


def results(out):
    return [(row['epoch'], float(row['loss']), float(row['test_acc'])) for row in history(out)]


def by_rank(template, *values):
    """Return a command that first runs the shell code in `values` for its rank, then `template`."""
    cases = ' '.join(f'{rank}) {value};;' for rank, value in enumerate(values))
    return ['sh', '-c', f'case $HOROVOD_RANK in {cases} esac; exec ' + template]


@pytest.mark.parametrize('chapter, flags_of_it', [
    ('scratch', ['--accumulate', '3', '--lr-schedule', 'cosine', '--num-epochs', '3', '--warmup-epochs', '1']),
    ('concise', ['--train-size', '40', '--batch-size', '16', '--num-epochs', '1', '--accumulate', '2',
                 '--momentum', '0.9', '--weight-decay', '0.01', '--lr-schedule', 'step']),
    ('concise', ['--train-size', '40', '--batch-size', '16', '--num-epochs', '1', '--sync-batch-norm', '--clip-norm',
                 '0.5', '--optimizer', 'adam', '--lr', '0.001'])])
def test_a_run_of_two_workers(job, flags, tmp_path, chapter, flags_of_it):
    flags = [*flags, *flags_of_it]
    lines = job.completed(2, *command(chapter, flags, tmp_path / 'two')).splitlines()
    alone = [PYTHON, '-m', f'gluon_mgpu.{chapter}', '--devices', 'cpu:0,cpu:1']
    one = run([*alone, *flags, '--out-dir', tmp_path / 'one'])
    assert one.returncode == 0, one.stderr
    assert all(line.startswith('[0] ') for line in lines)  # only rank 0 prints
    network = 'LeNet' if chapter == 'scratch' else 'ResNet-18'
    assert lines[:2] == [f'[0] {network} on mnist, cpu(0), cpu(0), 2 workers', f'[0] {one.stdout.splitlines()[1]}']
    assert lines[-1].endswith(' sec/epoch on [cpu(0)], 2 workers')
    # Equal to two devices of one process, except for rounding, which ResNet-18's first steps amplify
    assert results(tmp_path / 'two') == [(epoch, pytest.approx(loss, rel=1e-3), pytest.approx(acc, abs=0.02))
                                         for epoch, loss, acc in results(tmp_path / 'one')]
    config = json.loads((tmp_path / 'two' / 'config.json').read_text())
    assert (config['devices'], config['num_gpus'], config['workers']) == (['cpu(0)', 'cpu(0)'], 2, 2)
    # The device is listed twice
    assert predict.main([str(tmp_path / 'two')]) == 0
    # Resumed in one process, it is complete
    done = run([*alone, '--resume', tmp_path / 'two'])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith('test acc: ')


def test_validation_rows_of_two_workers(job, flags, tmp_path):
    """Each evaluates its shards, of the test rows once; equal to two devices of one process, also when resumed."""
    flags = [*flags, '--train-size', '65', '--validation-size', '25', '--batch-size', '16', '--num-epochs', '2',
             '--lr', '0.01']
    text = job.completed(2, *command('scratch', flags, tmp_path / 'two'))
    one = run([PYTHON, '-m', 'gluon_mgpu.scratch', '--devices', 'cpu:0,cpu:1', *flags, '--out-dir', tmp_path / 'one'])
    assert one.returncode == 0, one.stderr
    last = one.stdout.splitlines()[-1]
    assert last.endswith(' on 250 test images, after the last epoch')
    assert text.splitlines()[-1] == f'[0] {last}' and text.count(' test images, after') == 1
    assert history(tmp_path / 'one')[-1]['validation_acc'] == history(tmp_path / 'two')[-1]['validation_acc']
    again = job.completed(2, *command('scratch', ['--resume', 'auto'], tmp_path / 'two'))
    assert again.splitlines()[-1] == f'[0] {last}'


def test_more_workers_than_rows(job, flags, tmp_path):
    """The last training batch and the last test batch have one row: two of three workers have none."""
    flags = [*flags, '--batch-size', '3', '--train-size', '4', '--num-epochs', '1']
    assert job.completed(3, *command('scratch', flags, tmp_path / 'run')).splitlines()[-1].endswith(', 3 workers')


def test_running_statistics_of_every_rank_are_kept(job, flags, tmp_path):
    """A job stopped by SIGTERM to one worker in the second epoch is resumed with equal results."""
    flags = [*flags, '--train-size', '64', '--batch-size', '16', '--num-epochs', '2', '--checkpoint-every', '3']
    job.completed(2, *command('concise', flags, tmp_path / 'whole'))
    again = command('concise', flags, tmp_path / 'run', '--resume', 'auto')
    with job(2, *again) as stopped:
        stopped.wait_for('epoch 1/2')
        stopped.workers()[1].terminate()
        stopped.end()
    assert '[0] concise: stopped in epoch 2 after ' in stopped.text and '[1]' not in stopped.text, stopped.text
    assert f'[0] resuming from {tmp_path}/run/checkpoint-' in job.completed(2, *again)
    assert outcome(tmp_path / 'run') == outcome(tmp_path / 'whole')
    parameters = outcome(tmp_path / 'run')[1]
    assert {len(kept) for name, kept in parameters.items() if name.endswith('running_mean')} == {2}
    assert {len(kept) for name, kept in parameters.items() if name.endswith('weight')} == {1}


def test_the_shell_loop_of_the_documentation(job, flags, tmp_path):
    """The loop repeats the command until the job, which is killed once, is complete."""
    from jobs import LAUNCHER
    flags = [*flags, '--num-epochs', '10', '--checkpoint-every', '2', '--resume', 'auto']
    job.completed(2, *command('scratch', flags, tmp_path / 'whole'))
    after_a_checkpoint = f'until ls {tmp_path}/run/checkpoint-*.safetensors >/dev/null 2>&1; do sleep 0.02; done'
    once = f'[ -e {tmp_path}/killed ] || {{ touch {tmp_path}/killed; ({after_a_checkpoint}; kill -9 $$) & }}; '
    line = shlex.join(map(str, command('scratch', flags, tmp_path / 'run')))
    job_of_two = [PYTHON, str(LAUNCHER), '--gloo', '-np', '2', '-H', 'localhost:2', 'sh', '-c', f'{once} exec {line}']
    loop = f'until {shlex.join(job_of_two)}; do sleep 1; done'
    done = run(['bash', '-c', loop], timeout=200)
    assert done.returncode == 0 and f'resuming from {tmp_path}/run/checkpoint-' in done.stdout
    assert outcome(tmp_path / 'run') == outcome(tmp_path / 'whole')


@pytest.mark.parametrize('values, words', [
    (('flag="--lr 0.2"', 'flag="--lr 0.3"'), '--lr is 0.2 on worker 0 and 0.3 on worker 1'),
    (('flag="--resume auto"', 'flag='), '--resume is auto on worker 0 and none on worker 1'),
    (('export GLUON_MGPU_DATA={data}', 'export GLUON_MGPU_DATA=/'), 'worker 1: GLUON_MGPU_DATA /mnist: '),
    (('export GLUON_MGPU_DATA={data}', 'export GLUON_MGPU_DATA={other}'), 'train_digest is ')])
def test_workers_that_disagree(job, flags, data, tmp_path, values, words):
    """In the last case, one pixel differs."""
    arrays = idx_files.dataset(1000, 250)
    arrays['train-images-idx3-ubyte.gz'] = arrays['train-images-idx3-ubyte.gz'].copy()
    arrays['train-images-idx3-ubyte.gz'][-1, 0, 0] ^= 1
    idx_files.write(tmp_path / 'mnist', arrays)
    without_data = [*flags[:2], *flags[4:]]
    line = shlex.join(map(str, command('scratch', without_data, tmp_path / 'run'))) + ' $flag'
    with job(2, *by_rank(line, *(value.format(data=data, other=tmp_path) for value in values))) as rejected:
        assert rejected.end() != 0
    assert len(rejected.text.splitlines()) == 1, rejected.text
    assert rejected.text.startswith(f'[0] scratch: {words.format(data=data)}'), rejected.text
    assert not (tmp_path / 'run').exists()


def test_a_nan_loss_ends_all_workers(job, flags, tmp_path):
    with job(2, *command('scratch', flags, tmp_path / 'run', '--lr', '1e9')) as ended:
        assert ended.end() != 0
    lines = ended.text.splitlines()
    assert len(lines) == 3 and lines[2].startswith('[0] scratch: the loss is '), ended.text
    assert {f'Process {rank} exit with status code 2.\n' for rank in (0, 1)} <= set(ended.lines)


def test_the_benchmark_without_allreduce(job):
    """Without allreduce, workers still exchange losses and signals, but no gradients."""
    folder = Path(__file__).resolve().parents[2] / 'benchmarks'
    code = (f'import sys; sys.path.insert(0, {str(folder)!r}); import workers\n'
            'workers.ROUNDS, workers.WORK["LeNet"] = 1, (workers.scratch.train, 40, 16, 0.1)\n'
            'workers.run_as_worker(sys.argv[1], "LeNet")')
    sent = []
    for task in ('without', 'sums'):
        text = job.completed(2, PYTHON, '-c', code, task)
        sent.append(json.loads(re.search(r'^\[0\] (\{.*)', text, re.M)[1])['bytes'])
    assert sent[0] < sent[1] / 10
