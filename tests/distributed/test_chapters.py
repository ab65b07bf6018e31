"""Tests of both chapters with several workers: output, files, resuming, and errors in all workers."""
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

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


def test_only_rank_0_needs_the_runs_folder(job, flags, tmp_path):
    """As on machines without a common file system; here each worker has its own current folder."""
    for name in ('0', '1'):
        (tmp_path / name).mkdir()
    words = command('scratch', [*flags, '--checkpoint-every', '2'], 'run')
    start = by_rank(shlex.join(map(str, words)), f'cd {tmp_path}/0', f'cd {tmp_path}/1')
    with job(2, *start) as run_of_two:
        assert run_of_two.end() == 0, run_of_two.text
    assert (tmp_path / '0' / 'run' / 'history.csv').exists() and not list((tmp_path / '1').iterdir())
    resume = shlex.join(map(str, [*words, '--resume', 'auto', '--num-epochs', '4']))
    with job(2, *by_rank(resume, f'cd {tmp_path}/0', f'cd {tmp_path}/1')) as resumed:
        assert resumed.end() == 0, resumed.text
    assert len(history(tmp_path / '0' / 'run')) == 4 and not list((tmp_path / '1').iterdir())


@pytest.mark.parametrize('chapter, flags_of_it', [
    ('scratch', []), ('concise', ['--train-size', '40', '--batch-size', '16', '--num-epochs', '1']),
    ('scratch', ['--accumulate', '3', '--lr-schedule', 'cosine', '--num-epochs', '3', '--warmup-epochs', '1']),
    ('concise', ['--train-size', '40', '--batch-size', '16', '--num-epochs', '1', '--accumulate', '2',
                 '--momentum', '0.9', '--weight-decay', '0.01', '--lr-schedule', 'step']),
    ('concise', ['--train-size', '40', '--batch-size', '16', '--num-epochs', '1', '--sync-batch-norm', '--clip-norm',
                 '0.5', '--optimizer', 'adam', '--lr', '0.001'])])
def test_a_run_of_two_workers(job, flags, tmp_path, chapter, flags_of_it):
    flags = [*flags, *flags_of_it]
    with job(2, *command(chapter, flags, tmp_path / 'two')) as two:
        assert two.end() == 0, two.text
    alone = [PYTHON, '-m', f'gluon_mgpu.{chapter}', '--devices', 'cpu:0,cpu:1']
    one = run([*alone, *flags, '--out-dir', tmp_path / 'one'])
    assert one.returncode == 0, one.stderr
    lines = two.text.splitlines()
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


@pytest.mark.parametrize('chapter', ['scratch', 'concise'])
def test_validation_rows_of_two_workers(job, flags, tmp_path, chapter):
    """Each evaluates its shards, of the test rows once; equal to two devices of one process, also when resumed."""
    flags = [*flags, '--train-size', '65', '--validation-size', '25', '--batch-size', '16', '--num-epochs', '2',
             '--lr', '0.01']
    with job(2, *command(chapter, flags, tmp_path / 'two')) as two:
        assert two.end() == 0, two.text
    alone = [PYTHON, '-m', f'gluon_mgpu.{chapter}', '--devices', 'cpu:0,cpu:1']
    one = run([*alone, *flags, '--out-dir', tmp_path / 'one'])
    assert one.returncode == 0, one.stderr
    lines, last = two.text.splitlines(), one.stdout.splitlines()[-1]
    assert last.endswith(' on 250 test images, after the last epoch') and two.text.count(' test images, after') == 1
    assert lines[-2].startswith('[0] validation acc: ')
    both = [float(re.search(r'test acc: ([\d.]+) on', line)[1]) for line in (lines[-1], last)]
    accuracies = [[float(row['validation_acc']) for row in history(tmp_path / name)] for name in ('one', 'two')]
    # Rounding may decide few rows of ResNet-18
    tolerance = 0 if chapter == 'scratch' else 0.02
    assert both[0] == pytest.approx(both[1], abs=tolerance)
    assert accuracies[0] == pytest.approx(accuracies[1], abs=tolerance and 1.5 / 25)
    with job(2, *command(chapter, ['--resume', 'auto'], tmp_path / 'two')) as again:
        assert again.end() == 0, again.text
    assert again.text.splitlines()[-1] == lines[-1]


def test_more_workers_than_rows(job, flags, tmp_path):
    """The last training batch and the last test batch have one row: two of three workers have none."""
    flags = [*flags, '--batch-size', '3', '--train-size', '4', '--num-epochs', '1']
    with job(3, *command('scratch', flags, tmp_path / 'run')) as three:
        assert three.end() == 0, three.text
    assert three.text.splitlines()[-1].endswith(', 3 workers')


def test_rank_0_exports(job, flags, tmp_path):
    """The model equals that of an export after the run, with the running statistics of rank 0."""
    from gluon_mgpu.programs.onnx import export
    flags = [*flags, '--train-size', '40', '--batch-size', '16', '--num-epochs', '1']
    with job(2, *command('concise', flags, tmp_path / 'run', '--export', tmp_path / 'run/a.onnx')) as two:
        assert two.end() == 0, two.text
    assert two.text.splitlines()[-1].startswith(f'[0] model: {tmp_path}/run/a.onnx, checked in onnxruntime')
    assert two.text.count('model: ') == 1
    assert export.main([str(tmp_path / 'run')]) == 0
    assert (tmp_path / 'run/model.onnx').read_bytes() == (tmp_path / 'run/a.onnx').read_bytes()
    with job(2, *command('concise', flags, tmp_path / 'other', '--export', tmp_path / 'no/a.onnx')) as rejected:
        assert rejected.end() != 0
    assert rejected.text.splitlines() == [
        f'[0] concise: {tmp_path}/no/a.onnx cannot be written: {tmp_path}/no is not a writable folder']
    assert not (tmp_path / 'other').exists()


@pytest.mark.parametrize('signum', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_a_worker_while_rank_0_exports(job, flags, tmp_path, signum):
    """The training is over, so the signal is too late."""
    code = ('import sys, time\n'
            'from gluon_mgpu import scratch\nfrom gluon_mgpu.settings.chapters import Chapter\n'
            'write = Chapter.write_model\n'
            'def slow(*args):\n'
            '    print("exporting now", flush=True)\n'
            '    time.sleep(3)\n'
            '    write(*args)\n'
            'Chapter.write_model = slow\n'
            'sys.exit(scratch.main(sys.argv[1:]))')
    model = tmp_path / 'a.onnx'
    with job(2, PYTHON, '-c', code, '--horovod', *flags, '--num-epochs', '1', '--out-dir', tmp_path / 'run', '--export',
             model) as two:
        two.wait_for('exporting now')
        two.workers()[1].send_signal(signum)
        assert two.end() == 0, two.text
    assert model.exists() and two.text.splitlines()[-1].startswith(f'[0] model: {model}'), two.text


def test_running_statistics_of_every_rank_are_kept(job, flags, tmp_path):
    """A job stopped by SIGTERM to one worker in the second epoch is resumed with equal results."""
    flags = [*flags, '--train-size', '64', '--batch-size', '16', '--num-epochs', '2', '--checkpoint-every', '3']
    with job(2, *command('concise', flags, tmp_path / 'whole')) as whole:
        assert whole.end() == 0, whole.text
    again = command('concise', flags, tmp_path / 'run', '--resume', 'auto')
    with job(2, *again) as stopped:
        stopped.wait_for('epoch 1/2')
        stopped.workers()[1].terminate()
        stopped.end()
    assert '[0] concise: stopped in epoch 2 after ' in stopped.text and '[1]' not in stopped.text, stopped.text
    with job(2, *again) as done:
        assert done.end() == 0, done.text
    assert f'[0] resuming from {tmp_path}/run/checkpoint-' in done.text
    assert outcome(tmp_path / 'run') == outcome(tmp_path / 'whole')
    parameters = outcome(tmp_path / 'run')[1]
    assert {len(kept) for name, kept in parameters.items() if name.endswith('running_mean')} == {2}
    assert {len(kept) for name, kept in parameters.items() if name.endswith('weight')} == {1}


def test_the_shell_loop_of_the_documentation(job, flags, tmp_path):
    """The loop repeats the command until the job, which is killed once, is complete."""
    from jobs import LAUNCHER
    flags = [*flags, '--num-epochs', '10', '--checkpoint-every', '2', '--resume', 'auto']
    with job(2, *command('scratch', flags, tmp_path / 'whole')) as whole:
        assert whole.end() == 0, whole.text
    after_a_checkpoint = f'until ls {tmp_path}/run/checkpoint-*.safetensors >/dev/null 2>&1; do sleep 0.02; done'
    once = f'[ -e {tmp_path}/killed ] || {{ touch {tmp_path}/killed; ({after_a_checkpoint}; kill -9 $$) & }}; '
    line = shlex.join(map(str, command('scratch', flags, tmp_path / 'run')))
    job_of_two = [PYTHON, str(LAUNCHER), '--gloo', '-np', '2', '-H', 'localhost:2', 'sh', '-c', f'{once} exec {line}']
    loop = f'until {shlex.join(job_of_two)}; do sleep 1; done'
    done = run(['bash', '-c', loop], timeout=200)
    assert done.returncode == 0 and f'resuming from {tmp_path}/run/checkpoint-' in done.stdout
    assert outcome(tmp_path / 'run') == outcome(tmp_path / 'whole')


@pytest.mark.parametrize('values, words', [
    (('flag="--lr 0.2"', 'flag="--lr 0.3"'), '--lr is 0.2 on worker 0 ({host}) and 0.3 on worker 1 ({host})'),
    (('flag=--quiet', 'flag='), '--quiet is True on worker 0 ({host}) and False on worker 1 ({host})'),
    (('flag=', 'flag="--train-size 999"'), '--train-size is none on worker 0 ({host}) and 999 on worker 1 ({host})'),
    (('cd {data.parent}; flag="--data-dir {data.name}"', 'cd /; flag="--data-dir {data.name}"'),
     'worker 1 ({host}): /{data.name}/mnist: train-images-idx3-ubyte.gz, '),
    (('flag=', 'flag="--export a.onnx"'), '--export is none on worker 0 ({host}) and a.onnx on worker 1 ({host})'),
    (('flag="--resume auto"', 'flag='), '--resume is auto on worker 0 ({host}) and none on worker 1 ({host})'),
])
def test_workers_that_disagree(job, flags, data, tmp_path, values, words):
    line = shlex.join(map(str, command('scratch', flags, tmp_path / 'run'))) + ' $flag'
    with job(2, *by_rank(line, *(value.format(data=data) for value in values))) as rejected:
        assert rejected.end() != 0
    words = words.format(host='localhost', data=data)
    assert len(rejected.text.splitlines()) == 1, rejected.text
    if ' on worker ' in words:
        words += ': start all workers with the same program, flags, versions and data'
    assert words in rejected.text, rejected.text
    assert rejected.text.startswith('[0] scratch: ')
    assert not (tmp_path / 'run').exists()


def test_workers_with_other_rows_or_another_network(job, flags, tmp_path):
    """On one worker, one pixel of the dataset differs, or one layer is wider."""
    pixel = ('import os, sys; from gluon_mgpu.data import idx; read = idx.read_pair\n'
             'def changed(*args):\n'
             '    images, labels = read(*args); images = images.copy()\n'
             '    images[-1, 0, 0] ^= os.environ["HOROVOD_RANK"] == "1"\n'
             '    return images, labels\n'
             'idx.read_pair = changed\n')
    layer = ('import os, sys; from gluon_mgpu import scratch; from gluon_mgpu.mxnet_setup.compat import np\n'
             'init = scratch.init_params\n'
             'def wider():\n'
             '    params = init()\n'
             '    if os.environ["HOROVOD_RANK"] == "1":\n'
             '        params[4], params[5] = np.zeros((800, 64)), np.zeros(64)\n'
             '        params[6] = np.zeros((64, 10))\n'
             '    return params\n'
             'scratch.init_params = wider\n')
    for code, words in ((pixel, 'train_digest is '), (layer, 'parameter 4 is (800, 128) float32 on worker 0 (')):
        code += 'from gluon_mgpu import scratch; sys.exit(scratch.main(sys.argv[1:]))'
        with job(2, PYTHON, '-c', code, '--horovod', *flags, '--out-dir', tmp_path / words[:8]) as rejected:
            assert rejected.end() != 0
        assert rejected.text.splitlines()[-1].startswith(f'[0] scratch: {words}'), rejected.text
        assert len(rejected.text.splitlines()) < 4


def test_a_nan_loss_ends_all_workers(job, flags, tmp_path):
    with job(2, *command('scratch', flags, tmp_path / 'run', '--lr', '1e9')) as ended:
        assert ended.end() != 0
    lines = ended.text.splitlines()
    assert len(lines) == 3 and lines[2].startswith('[0] scratch: the loss is '), ended.text
    assert {f'Process {rank} exit with status code 2.\n' for rank in (0, 1)} <= set(ended.lines)


@pytest.mark.parametrize('launcher, size, rank, local_rank', [
    ('srun', 'SLURM_NTASKS', 'SLURM_PROCID', 'SLURM_LOCALID'),
    ('horovodrun', 'HOROVOD_SIZE', 'HOROVOD_RANK', 'HOROVOD_LOCAL_RANK')])  # set by hand, as for any other launcher
def test_workers_of_another_launcher(job, flags, tmp_path, launcher, size, rank, local_rank):
    """The launcher gives rank and size, the user gives address and port; SIGTERM ends the job."""
    with socket.create_server(('127.0.0.1', 0)) as free:
        port = str(free.getsockname()[1])
    environment = {**os.environ, size: '2', 'HOROVOD_GLOO_RENDEZVOUS_ADDR': '127.0.0.1',
                   'HOROVOD_GLOO_RENDEZVOUS_PORT': port}
    words = [str(word) for word in command('scratch', flags, tmp_path / 'run', '--num-epochs', 1000)]
    started = [subprocess.Popen(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                env={**environment, rank: number, local_rank: number}) for number in '01']
    try:
        for heading in ('LeNet on mnist, ', '1000 training and ', 'epoch 1/1000: '):
            assert started[0].stdout.readline().startswith(heading)
        for process in started:
            process.terminate()
        first, second = (process.communicate(timeout=60)[0] for process in started)
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [143, 143], first + second
    resume = f'resume with: {launcher} ... python -m gluon_mgpu.scratch --horovod --resume '
    assert resume in first.splitlines()[-1]
    assert second == ''


def test_the_benchmark_without_allreduce(job):
    """Without allreduce, workers still exchange losses and signals, but no gradients."""
    folder = Path(__file__).resolve().parents[2] / 'benchmarks'
    code = (f'import sys; sys.path.insert(0, {str(folder)!r}); import workers\n'
            'workers.ROUNDS, workers.WORK["LeNet"] = 1, (workers.scratch.train, 40, 16, 0.1)\n'
            'workers.run_as_worker(sys.argv[1], "LeNet")')
    sent = []
    for task in ('without', 'sums'):
        with job(2, PYTHON, '-c', code, task) as started:
            assert started.end() == 0, started.text
        sent.append(json.loads(re.search(r'^\[0\] (\{.*)', started.text, re.M)[1])['bytes'])
    assert sent[0] < sent[1] / 10
