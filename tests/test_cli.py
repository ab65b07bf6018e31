"""The command line of both chapters: what a run shows and leaves, and every refusal."""
import csv
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from slow import slow

from gluon_mgpu import concise, scratch
from gluon_mgpu.networks.precision import check_dtype

SMALL = ['--dataset', 'glyphs', '--train-size', '96', '--batch-size', '40', '--num-epochs', '2']


@pytest.fixture
def devices_flag(devices):
    return ['--devices', ','.join(f'{d.device_type}:{d.device_id}' for d in devices)]


@pytest.mark.parametrize('chapter', [scratch, concise], ids=['scratch', 'concise'])
def test_a_run_from_beginning_to_end(chapter, tmp_path, capsys, devices, devices_flag):
    out = tmp_path / 'run'
    assert chapter.main([*SMALL, *devices_flag, '--train-size', '6', '--batch-size', '4', '--lr', '0.05', '--seed', '3',
                         '--out-dir', str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith('6 training and 20 test images, batches of 4, learning rate 0.05')
    assert 'on glyphs' in lines[0] and str(devices[1]) in lines[0]
    assert re.fullmatch(r'epoch 2/2: loss \d+\.\d{3}, test acc [01]\.\d{3}, \d+\.\d s, [\d,]+ images/s', lines[2])
    assert lines[3] == f'curve: {out / "accuracy.png"}'
    assert re.fullmatch(r'test acc: [01]\.\d\d, \d+\.\d sec/epoch on ' + re.escape(str(devices)), lines[4])
    assert len(lines) == 5

    config = json.loads((out / 'config.json').read_text())
    expected = {'devices': [str(d) for d in devices], 'num_gpus': len(devices), 'batch_size': 4, 'lr': 0.05,
                'num_epochs': 2, 'dataset': 'glyphs', 'train_size': 6, 'seed': 3}
    if chapter is concise:
        expected['dtype'] = 'float32'
    assert {name: config[name] for name in expected} == expected
    assert {'gluon_mgpu', 'mxnet', 'numpy', 'python', 'platform', 'environment'} <= set(config)
    with open(out / 'history.csv', newline='') as file:
        history = list(csv.DictReader(file))
    assert [row['epoch'] for row in history] == ['1', '2']
    accuracy = round(20 * float(history[1]['test_acc'])) / 20  # of the 20 rows
    assert (history[1]['test_acc'], lines[4][10:14]) == (f'{accuracy:.4f}', f'{accuracy:.2f}')
    assert (out / 'accuracy.png').read_bytes()[:4] == b'\x89PNG'


def test_the_same_seed_gives_the_same_numbers(tmp_path, devices_flag):
    losses = {}
    for name, seed in (('a', '1'), ('b', '1'), ('c', '2')):
        assert scratch.main([*SMALL, *devices_flag, '--seed', seed, '--quiet', '--no-plot',
                             '--out-dir', str(tmp_path / name)]) == 0
        with open(tmp_path / name / 'history.csv', newline='') as file:
            losses[name] = [row['loss'] for row in csv.DictReader(file)]
    assert losses['a'] == losses['b'] != losses['c']


def test_quiet_and_no_plot(tmp_path, capsys, devices_flag):
    out = tmp_path / 'run'
    assert scratch.main([*SMALL, *devices_flag, '--quiet', '--no-plot', '--out-dir', str(out)]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1 and captured.out.startswith('test acc: ')
    assert captured.err == ''
    assert sorted(p.name for p in out.iterdir() if not p.name.startswith('checkpoint-')) == [
        'config.json', 'history.csv']


@pytest.mark.parametrize(('flags', 'message'), [
    (['--num-gpus', '0'], '--num-gpus 0: must be an integer from 1 to 1000'),
    (['--num-gpus', 'two'], "--num-gpus 'two': must be an integer from 1 to 1000"),
    (['--num-gpus', '300000'], '--num-gpus 300000: must be an integer from 1 to 1000'),
    (['--batch-size', '-1'], '--batch-size -1: must be an integer of at least 1'),
    (['--batch-size', '1.5'], "--batch-size '1.5': must be an integer of at least 1"),
    (['--lr', 'nan'], '--lr nan: must be a number above 0'),
    (['--lr', 'inf'], '--lr inf: must be a number above 0'),
    (['--lr', '0'], '--lr 0.0: must be a number above 0'),
    (['--lr', 'fast'], "--lr 'fast': must be a number above 0"),
    (['--num-epochs', '0'], '--num-epochs 0: must be an integer of at least 1'),
    (['--train-size', '0'], '--train-size 0: must be an integer of at least 1'),
    (['--seed', '-1'], '--seed -1: must be an integer from 0 to 2147483647'),
    (['--dataset', 'cifar'], 'argument --dataset: invalid choice'),
    (['--allreduce', 'bogus'], 'argument --allreduce: invalid choice'),
    (['--devices', 'cpu:0', '--num-gpus', '1'], 'not allowed with'),
    (['--devices', ''], "--devices '': must not be empty; give a value or leave the flag out"),
    (['--data-dir', ''], "--data-dir '': must not be empty"),
    (['--out-dir', ''], "--out-dir '': must not be empty"),
    (['--no-such-flag'], 'unrecognized arguments'),
])
def test_flags_out_of_range(flags, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        scratch.main(flags)
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    line, = captured.err.splitlines()
    assert line.startswith('scratch: ') and message in line and line.endswith('; --help shows all flags')
    assert captured.out == ''


@pytest.mark.parametrize(('flags', 'message'), [
    (['--devices', 'tpu:0'], "'tpu:0' names no device"),
    (['--devices', 'cpu:0,cpu:0'], 'cpu(0) is listed twice'),
    (['--devices', 'gpu:99'], 'gpu(99) does not exist'),
    (['--dataset', 'fashion-mnist', '--data-dir', 'no-such-folder'], 'no-such-folder'),
    (['--dataset', 'glyphs', '--train-size', '60001'], '60001'),
])
@pytest.mark.parametrize('chapter', [scratch, concise], ids=['scratch', 'concise'])
def test_one_line_and_status_2(chapter, flags, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert chapter.main(flags) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 1 and message in err[0]
    assert list(tmp_path.iterdir()) == []  # and no folder is left


def test_a_precision_that_does_not_fit_is_refused_before_anything_is_made(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert concise.main(['--devices', 'cpu:0', '--dtype', 'float16', '--dataset', 'glyphs']) == 2
    captured = capsys.readouterr()
    assert captured.out == ''
    line, = captured.err.splitlines()
    assert line.startswith('concise: dtype float16')
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('algorithm', ['ring', 'tree', 'kvstore'])
def test_allreduce_by_name(algorithm, tmp_path, devices_flag):
    out = tmp_path / algorithm
    assert scratch.main([*SMALL, *devices_flag, '--allreduce', algorithm, '--no-plot', '--out-dir', str(out)]) == 0
    assert json.loads((out / 'config.json').read_text())['allreduce'] == algorithm


@pytest.mark.parametrize('chapter', [scratch, slow(concise)], ids=['scratch', 'concise'])
def test_timeline(chapter, tmp_path, capsys, devices_flag):
    out = tmp_path / 'run'
    flags = [*SMALL, *devices_flag, '--batch-size', '16', '--train-size', '112', '--num-epochs', '1', '--no-plot']
    assert chapter.main([*flags, '--timeline', '--out-dir', str(out)]) == 0
    assert f'timeline: {out / "timeline.png"}' in capsys.readouterr().out.splitlines()
    assert (out / 'timeline.png').read_bytes()[:4] == b'\x89PNG'
    assert json.loads((out / 'trace.json').read_text())


@pytest.mark.slow
def test_bfloat16(tmp_path, devices_flag, devices):
    """From beginning to end, where this machine can."""
    try:
        check_dtype('bfloat16', devices)
    except ValueError as error:
        pytest.skip(str(error))
    out = tmp_path / 'run'
    assert concise.main([*SMALL, *devices_flag, '--dtype', 'bfloat16', '--no-plot', '--out-dir', str(out)]) == 0
    assert json.loads((out / 'config.json').read_text())['dtype'] == 'bfloat16'
    with open(out / 'history.csv', newline='') as file:
        losses = [float(row['loss']) for row in csv.DictReader(file)]
    assert len(losses) == 2 and all(0 < loss < 100 for loss in losses)


def test_parameters_that_are_no_numbers_though_the_loss_is(tmp_path, capsys, devices_flag):
    """Learning rate 1e30: after the first step relu makes 0 of NaN, and the loss is that of guessing."""
    out = tmp_path / 'run'
    assert scratch.main([*SMALL, *devices_flag, '--lr', '1e30', '--no-plot', '--out-dir', str(out)]) == 2
    line, = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r'scratch: (the loss is \S+ in|parameter \d is no longer finite after) epoch 1.*'
                        'use a smaller learning rate', line)


@pytest.mark.slow
def test_a_folder_that_the_terminal_cannot_spell(tmp_path, devices_flag):
    out = tmp_path / 'gl\u00fch\u2192'
    program = [sys.executable, '-m', 'gluon_mgpu.scratch', *SMALL, *devices_flag, '--out-dir', str(out)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300,
                          env={**os.environ, 'PYTHONIOENCODING': 'ascii', 'PYTHONUTF8': '1'})
    assert done.returncode == 0 and 'Error' not in done.stderr  # MXNet 2 has a line of its own there
    assert r'curve: ' in done.stdout and r'gl\xfch\u2192' in done.stdout
    assert (out / 'accuracy.png').exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='limits memory as Linux does')
@pytest.mark.parametrize('chapter', ['scratch', 'concise'])
def test_out_of_memory(chapter, tmp_path):
    """One line with the remedy, status 1, and the folder is there.

    Once this ended with glibc's "corrupted size"; 200 runs in a row of 'scratch' did not. It is MXNet's fault: its
    scratch areas (`GetSpace` in src/resource.cc) free their memory before they ask for more and keep its address if
    there is none, so that the next operator writes into freed memory, which is freed twice. MXNet alone, with this
    package not imported, dies so too: `topk` on an array for which there is no memory, then on a small one.
    """
    code = ('import resource, sys; from gluon_mgpu import cli, scratch, concise\n'
            'train = sys.modules["gluon_mgpu." + sys.argv[1]].train\n'
            'def limited(*args, **kwargs):\n'
            '    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()\n'
            '    resource.setrlimit(resource.RLIMIT_AS, (size + 2**28, size + 2**28))\n'
            '    train(*args, **kwargs)\n'
            'sys.modules["gluon_mgpu." + sys.argv[1]].train = limited\n'
            'sys.exit(sys.modules["gluon_mgpu." + sys.argv[1]].main(sys.argv[2:]))')
    out = tmp_path / 'run'
    done = subprocess.run([sys.executable, '-c', code, chapter, '--dataset', 'glyphs', '--devices', 'cpu:0,cpu:1',
                           '--batch-size', '8192', '--num-epochs', '1', '--no-plot', '--out-dir', str(out)],
                          capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1, done.stderr
    line = done.stderr.splitlines()[-1]
    assert re.fullmatch(rf'{chapter}: out of memory \(.*\): use a smaller --batch-size', line)
    assert 'Traceback' not in done.stderr
    assert (out / 'config.json').exists()


def test_timeline_of_too_few_batches(tmp_path, capsys, devices_flag):
    flags = [*SMALL, *devices_flag, '--num-epochs', '1', '--no-plot', '--timeline']
    assert scratch.main([*flags, '--out-dir', str(tmp_path / 'a')]) == 0
    assert 'timeline: none, the run ended before 6 batches were done' in capsys.readouterr().out.splitlines()


def test_an_output_folder_in_use_is_left_alone(tmp_path, capsys, devices_flag):
    (tmp_path / 'history.csv').write_text('of another run')
    assert scratch.main([*SMALL, *devices_flag, '--out-dir', str(tmp_path)]) == 2
    assert 'is not an empty folder' in capsys.readouterr().err
    assert (tmp_path / 'history.csv').read_text() == 'of another run'


def test_the_number_of_devices(tmp_path, capsys, monkeypatch):
    from gluon_mgpu import cli
    from gluon_mgpu.devices import parse_devices
    monkeypatch.setattr(cli, 'num_mxnet_gpus', lambda: 0)
    monkeypatch.setattr(cli, 'why_no_gpus', lambda: 'there is none')
    asked = []
    monkeypatch.setattr(cli, 'devices_from', lambda n: asked.append(n) or parse_devices('cpu:0'))
    for i, flags in enumerate([[], ['--num-gpus', '3']]):
        assert scratch.main([*SMALL, *flags, '--no-plot', '--out-dir', str(tmp_path / str(i))]) == 0
        assert capsys.readouterr().out.startswith('there is none: training on CPU contexts\n')
    monkeypatch.setattr(cli, 'num_mxnet_gpus', lambda: 1)  # two by default, but not on such a machine
    assert scratch.main([*SMALL, '--no-plot', '--out-dir', str(tmp_path / '2')]) == 0
    monkeypatch.setattr(cli, 'num_mxnet_gpus', lambda: 8)
    assert scratch.main([*SMALL, '--no-plot', '--out-dir', str(tmp_path / '3')]) == 0
    assert asked == [2, 3, 1, 2]


def test_divergence_keeps_what_was_recorded(tmp_path, capsys, devices_flag, monkeypatch):
    """A learning rate far too large: one line, status 2, and the folder tells what happened before."""
    out = tmp_path / 'run'
    assert scratch.main([*SMALL, *devices_flag, '--lr', '1e300', '--num-epochs', '9', '--out-dir', str(out)]) == 2
    err = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r'scratch: the loss is \S+ in epoch \d+, batch \d+: '
                        'use a smaller learning rate', err[-1])
    assert (out / 'config.json').exists()


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_recorded(tmp_path, devices_flag):
    out = tmp_path / 'run'
    # Where the tests run in the background of a script, Ctrl-C is ignored, also by what they start
    code = ('import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); '
            'from gluon_mgpu import scratch; sys.exit(scratch.main(sys.argv[1:]))')
    program = [sys.executable, '-c', code, '--dataset', 'glyphs', '--train-size', '512',
               '--num-epochs', '100', *devices_flag, '--out-dir', str(out)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith('epoch 2/'):
                process.send_signal(signal.SIGINT)
        err = process.stderr.read()
    assert process.returncode == 130
    assert re.search(rf'^scratch: stopped (after|in) epoch \d.*; '
                     rf'resume with: python -m gluon_mgpu.scratch --resume {out}$', err, re.M)
    assert 'Traceback' not in err
    assert len((out / 'history.csv').read_text().splitlines()) >= 3
    assert (out / 'accuracy.png').exists()


@pytest.mark.parametrize('chapter', [scratch, concise], ids=['scratch', 'concise'])
def test_help_gives_defaults_and_units(chapter, capsys):
    with pytest.raises(SystemExit) as end:
        chapter.main(['--help'])
    assert end.value.code == 0
    text = ' '.join(capsys.readouterr().out.split())
    for phrase in ('(default: 256)', '(default: 10)', '(default: 2, or 1', '(default: auto)', 'ROWS', '--num-gpus',
                   'learning rate', '--devices', '--data-dir', '--train-size', '--seed', '--out-dir', '--no-plot',
                   '--checkpoint-every', '--resume', '--require-checkpoint', '--export',
                   '--quiet'):
        assert phrase in text
