"""benchmarks/compare.py with fake contenders, some of which fail; the other benchmarks on few rows."""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest

from gluon_mgpu import concise, scratch
from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.training.history import EpochResult, write_history

BENCHMARKS = Path(__file__).resolve().parents[1] / 'benchmarks'
sys.path.insert(0, str(BENCHMARKS))

import bfloat16_accuracy  # noqa: E402
import compare  # noqa: E402
import for_speed  # noqa: E402
import memory  # noqa: E402
import sync_batch_norm  # noqa: E402
import time_to_accuracy  # noqa: E402
import two_devices  # noqa: E402
from harness import environments, lineup, process, results, rows, training  # noqa: E402

LINE = {'name': 'fake', 'epoch_seconds': [9.0, 2.0, 1.0], 'cores_busy': 1.5, 'rows': 30_000, 'loss': 0.5,
        'test_acc': 0.75}


def run_of(**changes) -> dict:
    """Return a run as `process.run` returns it, with these changes."""
    return {**LINE, 'job_seconds': 12.0, 'peak_mb': 100.0, **changes}


@pytest.fixture
def program(tmp_path):
    """A function that writes a program with this code, which can use `job`, its argument, and `line`, its result."""
    def write(code: str, name: str = 'fake.py') -> Path:
        path = tmp_path / name
        path.write_text('import json, os, subprocess, sys, time\n'
                        f'job, line = json.loads(sys.argv[1]), {LINE!r}\n{code}\n')
        return path
    return write


# --- arithmetic ---

def test_a_summary_leaves_out_first_epochs_and_scales_to_60000_rows():
    summary = results.summarize([run_of(), run_of(epoch_seconds=[5.0, 3.0, 1.5], job_seconds=10.0)])
    # epochs 2, 1, 3, 1.5 of 30,000 rows: median 1.75
    assert summary['epoch_seconds'] == 3.5
    assert (summary['fastest'], summary['slowest']) == (2.0, 6.0)
    assert summary['images_per_second'] == pytest.approx(30_000 / 1.75)
    assert summary['first_epoch_seconds'] == 7.0  # not scaled
    assert summary['job_seconds'] == 11.0
    assert summary['rounds'] == 2


def test_ratios_are_to_the_reference_and_rates_are_images_times_operations():
    runs = {'slow': [run_of(epoch_seconds=[1, 3])], 'ours': [run_of(epoch_seconds=[1, 2])], 'gone': []}
    slow, ours = results.compare(runs, 'ours', mflop={'slow': 200, 'ours': 100}).values()
    assert (slow['ratio'], ours['ratio']) == (1.5, 1.0)
    assert (slow['images_per_second'], slow['gflops']) == (10_000, 2000)


def test_a_table_has_a_line_for_each_contender():
    text = results.table('title', results.compare({'ours': [run_of()], 'other-one': [run_of()]}, 'ours'))
    _, _, ours, other = text.splitlines()
    assert ours.split()[:6] == ['ours', '3.00', '2.00-4.00', '20,000', '-', '1.00']
    assert other.startswith('other-one ') and len(other) == len(ours)


# --- one contender ---

@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='children are found in /proc')
def test_a_contender_that_hangs_is_killed_with_its_children(program, tmp_path):
    """Horovod's workers are in a session of their own."""
    fake = program(f'subprocess.Popen("sleep 4; touch {tmp_path}/alive", shell=True, start_new_session=True)\n'
                   'time.sleep(60)')
    with pytest.raises(process.ProgramError, match='took longer than 2 s'):
        process.run(sys.executable, fake, {}, timeout=2)
    time.sleep(3)
    assert not (tmp_path / 'alive').exists()


@pytest.mark.parametrize('code, reason', [
    ('', 'it printed nothing'),
    ('print("done")', 'no JSON object in its last line: done'),
    ('print(7)', 'no JSON object'),
    ("""print('{"name": "x", "rows": 1}')""", 'epoch_seconds, cores_busy, loss, test_acc missing'),
    ('raise RuntimeError("no such thing")', '^exit status 1: RuntimeError: no such thing$'),
])
def test_a_contender_that_fails(program, code, reason):
    with pytest.raises(process.ProgramError, match=reason):
        process.run(sys.executable, program(code), {}, timeout=20)


# --- the comparison ---

@pytest.fixture
def contenders(monkeypatch, program, tmp_path):
    """Four fake contenders: one crashes, one has no environment. Each run appends an initial to the file turns.

    The settings of this shell do not reach them.
    """
    for name in ('OMP_NUM_THREADS', 'MXNET_CPU_TEMP_COPY', 'MALLOC_ARENA_MAX', 'PYTHONPATH'):
        monkeypatch.setenv(name, '3')
    note = f'open({str(tmp_path / "turns")!r}, "a").write(job["name"][0]); line["rows"] = 12\n'
    good = program(note + 'assert not [name for name in os.environ if name.startswith(("OMP", "MXNET", "MALLOC", "PYTHO'
                   'NPATH"))]\nprint("some talk"); print(json.dumps(line))', 'good.py')
    bad = program(note + 'sys.exit("broken")', 'bad.py')
    monkeypatch.setattr(compare, 'CONTENDERS', {
        'ours': lineup.Contender(good, None, {}, ('scratch',)),
        'bad': lineup.Contender(bad, None, {}, ('scratch',)),
        'good': lineup.Contender(good, None, {}, ('scratch',)),
        'peer': lineup.Contender(good, 'absent', {}, ('scratch',)),
    })
    monkeypatch.setattr(process, 'CEILING', program('print(json.dumps({"by hand": 7.0}))', 'ceiling.py'))
    arrays = (numpy.zeros((12, 28, 28), 'uint8'), numpy.zeros(12, 'uint8')) * 2
    monkeypatch.setattr(rows, 'load', lambda data_dir, folder: ('zeros', arrays))

    def make(name, env_dir, log):
        raise environments.MissingEnvironmentError('no index can be reached')
    monkeypatch.setattr(environments, 'make', make)


def test_contenders_take_turns_and_those_that_fail_are_left_out(contenders, tmp_path, capsys):
    files = [str(tmp_path / name) for name in ('out.json', 'out.png')]
    assert compare.main(['--rounds', '2', '--work', 'scratch', '--json', files[0], '--png', files[1]]) == 0
    assert (tmp_path / 'turns').read_text() == 'obg' + 'og'
    out, err = capsys.readouterr()
    assert 'absent is left out: no index can be reached\n' in err
    assert 'scratch: bad is left out: exit status 1: broken\n' in err
    assert '12 rows of zeros; s/epoch scaled to 60,000' in out
    assert 'peak GFLOP/s of the cores: by hand: 7\n' in out
    record = json.loads(Path(files[0]).read_text())['works'][0]
    assert {name: len(runs) for name, runs in record['runs'].items()} == {'ours': 2, 'good': 2}
    assert record['summaries']['good']['ratio'] == 1.0
    assert record['ceiling_gflops'] == {'by hand': 7.0}
    assert Path(files[1]).stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize('devices', [1, 2])
def test_ours_trains_and_prints_its_results(tmp_path, devices):
    rng = numpy.random.default_rng(0)
    arrays = (rng.integers(0, 256, (40, 28, 28)).astype('uint8'), rng.integers(0, 10, 40)) * 2
    data, _ = rows.write(arrays, 40, tmp_path)
    job = {'name': 'x', 'work': 'scratch', 'dtype': 'float32', 'data': str(data), 'lr': 0.1, 'batch_size': 16,
           'epochs': 3, 'cores': 1, 'devices': devices}
    run = process.run(sys.executable, BENCHMARKS / 'contenders' / 'ours.py', job, timeout=60)
    assert (run['name'], run['rows'], len(run['epoch_seconds'])) == ('x', 40, 3)
    assert 0 < sum(run['epoch_seconds']) < run['job_seconds']
    assert 2.2 < run['loss'] < 2.4  # about log 10: nothing has been learned
    assert run['test_acc'] * 16 in range(17)


# --- the other programs ---

@pytest.fixture
def few_rows(monkeypatch, tmp_path):
    """Replace the benchmarks' data by 20 training rows and 40 test rows of noise."""
    rng = numpy.random.default_rng(0)

    def load_data(dataset, batch_size, data_dir, train_size, **_):
        return tuple(BatchIterator(rng.integers(0, 256, (n, 28, 28)).astype('uint8'), rng.integers(0, 10, n),
                                   batch_size, dataset) for n in (20, 40))

    for module in (training, bfloat16_accuracy, sync_batch_norm):
        monkeypatch.setattr(module, 'load_data', load_data)
    monkeypatch.setitem(training.WORK, 'scratch', (scratch.train, 20, 8, 0.1))


def test_two_devices_keeps_the_second_epoch_and_evaluates_one_batch(few_rows, monkeypatch):
    def train(num_gpus, batch_size, lr, devices, data, run):
        assert (num_gpus, len(devices), len(data[1])) == (2, 2, 1)
        run.history += [EpochResult(1, 7.0, 1.0, 0.5, 3.0), EpochResult(2, 3.0, 1.0, 0.5, 7.0)]

    monkeypatch.setitem(training.WORK, 'scratch', (train, 20, 8, 0.1))
    assert two_devices.epoch_seconds('scratch', 'cpu:0,cpu:1', 'noise', None) == 3.0


@pytest.mark.skipif(sys.platform != 'linux', reason='memory is read from /proc')
def test_memory_is_recorded_after_every_epoch(few_rows):
    sizes = memory.sizes('scratch', 2, 3, 'noise', None)
    assert len(sizes) == 3
    assert all(50 < resident < addresses for resident, addresses in sizes)  # MB


def test_time_to_accuracy_by_hand(tmp_path, monkeypatch, capsys):
    runs = {'a': (0.0, [0.89, 0.9, 0.88]), 'b': (0.9, [0.93, 0.91, 0.94]), 'stopped': (0.9, [])}
    for name, (momentum, accuracies) in runs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / 'config.json').write_text(json.dumps({'seed': 3, 'lr': 0.1, 'momentum': momentum}))
        write_history([EpochResult(i, 100.0 * i, 1.0, accuracy, 10.0) for i, accuracy in enumerate(accuracies, 1)],
                      tmp_path / name / 'history.csv')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'argv', ['time_to_accuracy.py', *runs, '--accuracies', '0.9', '0.94'])
    time_to_accuracy.main()
    out, err = capsys.readouterr()
    assert err == 'stopped: left out, because no epoch is complete\n'
    assert out.splitlines()[2:] == [
        '| rate 0.1 | 3 | 2 epochs, 300 s | never | 0.9000 in 3 epochs |',
        '| rate 0.1, momentum 0.9 | 3 | 1 epoch, 100 s | 3 epochs, 600 s | 0.9400 in 3 epochs |']
    assert (tmp_path / 'time_to_accuracy.png').read_bytes()[:4] == b'\x89PNG'


def test_bfloat16_accuracy_takes_a_smaller_step_in_the_last_epoch(few_rows, monkeypatch, devices):
    def train(num_gpus, batch_size, lr, devices, data, run, seed, net):
        assert [lr(step) for step in range(1, 5)] == pytest.approx([0.1, 0.1, 0.01, 0.01])
        run.history.append(EpochResult(2, 1.0, 1.0, 0.5, 1.0))

    monkeypatch.setattr(concise, 'train', train)
    args = argparse.Namespace(dataset='noise', data_dir=None, devices=devices[:2], batch_size=16, rows=20, lr=0.1,
                              epochs=2)
    assert bfloat16_accuracy.last_accuracy('float32', 0, args) == 0.5


@pytest.mark.slow
def test_sync_batch_norm_prints_tables(few_rows, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['sync_batch_norm.py', '--batch-size', '8', '--rounds', '1', '--steps', '1',
                                      '--rows', '20', '--epochs', '1', '--seeds', '3', '4'])
    sync_batch_norm.main()
    rows = [line.split(' | ')[0] for line in capsys.readouterr().out.splitlines() if line.startswith('| ')]
    assert rows == [f'| {name}' for name in ('batch norm', 'each device its own', 'synchronized', 'devices',
                                             'one device', '2 devices', '2 devices, synchronized')]


def test_the_table_of_for_speed_by_hand(capsys):
    def runs(*ms):
        return [{'ms': number, 'system ms': 1.0, 'page faults': 1000.0, 'MB': number} for number in ms]

    for_speed.print_table('LeNet', {'as it is': runs(20, 40, 30), 'no crop': runs(30, 40, 60)})
    assert capsys.readouterr().out.splitlines()[2:] == [
        '| as it is | 30.0 | 20.0-40.0 | 1.0 | 1,000 | 40 | 1.000 |',
        '| no crop | 40.0 | 30.0-60.0 | 1.0 | 1,000 | 60 | 1.500 |']


@pytest.mark.slow
@pytest.mark.parametrize('case', ['LeNet', 'ResNet-18'])
def test_each_thing_that_is_for_speed_only_can_be_switched_off(case):
    """None has been renamed or removed."""
    done = subprocess.run([sys.executable, BENCHMARKS / 'for_speed.py', '--cases', case, '--batches', '1', '--rounds',
                           '1'], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.split(' | ')[0] for line in done.stdout.splitlines()[2:]] == [
        f'| {name}' for name in for_speed.VARIANTS if case in for_speed.ONLY_FOR.get(name, [case])]
