"""benchmarks/compare.py with fake contenders: what it makes of their lines, and of those that fail."""
from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy
import pytest

from gluon_mgpu.mxnet_setup.compat import gluon, np
from gluon_mgpu.networks import resnet

BENCHMARKS = Path(__file__).resolve().parents[1] / 'benchmarks'
sys.path.insert(0, str(BENCHMARKS))

import compare  # noqa: E402
import environments  # noqa: E402
from contenders import process, results, rows  # noqa: E402


def lenet():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(20, 3), gluon.nn.AvgPool2D(2), gluon.nn.Conv2D(50, 5), gluon.nn.AvgPool2D(2),
            gluon.nn.Dense(128), gluon.nn.Dense(10))
    return net


def resnet18():
    return resnet.resnet18(10)


LINE = {'name': 'fake', 'epoch_seconds': [9.0, 2.0, 1.0], 'cores_busy': 1.5, 'rows': 30_000, 'loss': 0.5,
        'test_acc': 0.75}


def run_of(**changes) -> dict:
    return {**LINE, 'job_seconds': 12.0, 'peak_mb': 100.0, **changes}


@pytest.fixture
def program(tmp_path):
    """Writes a fake contender: its code follows `job`, what it was told, and `line`, what it should print."""
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
    assert summary['first_epoch_seconds'] == 7.0  # as it was
    assert summary['job_seconds'] == 11.0
    assert summary['rounds'] == 2


def test_ratios_are_to_the_reference():
    runs = {'slow': [run_of(epoch_seconds=[1, 3])], 'ours': [run_of(epoch_seconds=[1, 2])], 'gone': []}
    summaries = results.compare(runs, 'ours')
    assert {name: s['ratio'] for name, s in summaries.items()} == {'slow': 1.5, 'ours': 1.0}


def test_without_the_reference_there_is_no_ratio():
    summaries = results.compare({'a': [run_of()]}, 'ours')
    assert summaries['a']['ratio'] is None
    assert ' - ' in results.table('title', summaries)


def test_rates_are_images_times_operations():
    summary, = results.compare({'a': [run_of(epoch_seconds=[1, 3])]}, 'ours', mflop=200).values()
    assert summary['images_per_second'] == 10_000
    assert summary['gflops'] == 2000


@pytest.mark.parametrize('work, net', [('scratch', lenet), ('concise', resnet18)])
def test_operations_of_an_image(work, net):
    """Two for each weight at each position, forward and for the gradients of weights and of the layer's input."""
    operations = []

    def count(layer, _, out):
        positions = out.shape[2] * out.shape[3] if out.ndim == 4 else 1
        directions = 3 if operations else 2  # nobody asks for the gradient of the images
        operations.append(directions * 2 * layer.weight.data().size * positions)

    net = net()
    net.initialize()
    net(np.zeros((1, 1, 28, 28)))
    net.apply(lambda layer: layer.register_forward_hook(count) if hasattr(layer, 'weight') else None)
    net(np.zeros((1, 1, 28, 28)))
    assert sum(operations) == pytest.approx(compare.WORKS[work].mflop * 1e6, rel=1e-3)


def test_the_ceiling_is_measured():
    rates = process.ceiling(sys.executable, 1)
    assert len(rates) in (3, 4)
    assert all(0 < rate < 1e5 for rate in rates.values())


def test_without_a_ceiling_there_is_none(tmp_path):
    broken = tmp_path / 'python'
    broken.write_text('#!/bin/sh\nexit 1\n')
    broken.chmod(0o755)
    assert process.ceiling(broken, 1) == {}


def test_a_table_has_a_line_a_contender_and_aligned_columns():
    text = results.table('title', results.compare({'ours': [run_of()], 'other-one': [run_of()]}, 'ours'))
    title, *lines = text.splitlines()
    assert title == 'title'
    assert [line.split()[0] for line in lines[1:]] == ['ours', 'other-one']
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split()[1:6] == ['3.00', '2.00-4.00', '20,000', '-', '1.00']


def test_a_chart_is_drawn(tmp_path):
    tables = {'one': results.compare({'ours': [run_of()], 'b': [run_of()]}, 'ours'), 'none': {}}
    results.chart(tables, tmp_path / 'chart.png', 'here')
    assert (tmp_path / 'chart.png').read_bytes().startswith(b'\x89PNG')


# --- one contender ---

def test_a_run_gives_the_line_and_what_was_seen_from_outside(program):
    fake = program('print("some talk"); line["name"] = job["name"]; print(json.dumps(line))')
    run = process.run(sys.executable, fake, {'name': 'x'}, timeout=20)
    assert run['name'] == 'x'
    assert run['epoch_seconds'] == LINE['epoch_seconds']
    assert 0 < run['job_seconds'] < 20


@pytest.mark.skipif(sys.platform != 'linux', reason='memory is read from /proc')
def test_memory_is_that_of_the_contender_and_its_children(program):
    fake = program('hold = bytearray(20_000_000)\n'
                   'code = "import time; hold = bytearray(30_000_000); time.sleep(5)"\n'
                   'child = subprocess.Popen([sys.executable, "-S", "-c", code])\n'
                   'time.sleep(1.5); print(json.dumps(line))')
    assert 50 < process.run(sys.executable, fake, {}, timeout=20)['peak_mb'] < 150


def test_settings_of_this_shell_do_not_reach_a_contender(program, monkeypatch):
    for name in ('OMP_NUM_THREADS', 'MXNET_CPU_TEMP_COPY', 'MALLOC_ARENA_MAX', 'PYTHONPATH'):
        monkeypatch.setenv(name, '3')
    fake = program('names = ("OMP", "MXNET", "MALLOC", "PYTHONPATH")\n'
                   'line["loss"] = [name for name in os.environ if name.startswith(names)]\n'
                   'print(json.dumps(line))')
    assert process.run(sys.executable, fake, {}, timeout=20)['loss'] == []


def test_a_crash_is_told_by_the_last_line_it_left(program):
    with pytest.raises(process.ContenderError, match='^exit status 1: RuntimeError: no such thing$'):
        process.run(sys.executable, program('raise RuntimeError("no such thing")'), {}, timeout=20)


def test_a_contender_that_hangs_is_ended_with_all_it_started(program, tmp_path):
    fake = program(f'child = subprocess.Popen(["sleep", "60"])\n'
                   f'open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))\ntime.sleep(60)')
    with pytest.raises(process.ContenderError, match=r'took longer than 0.5 s'):
        process.run(sys.executable, fake, {}, timeout=0.5)
    pid = int((tmp_path / 'pid').read_text())
    for _ in range(100):
        stat = Path(f'/proc/{pid}/stat')
        try:
            os.kill(pid, 0)
            if stat.exists() and ') Z ' in stat.read_text():  # ended; nobody has asked for its status yet
                return
        except (ProcessLookupError, FileNotFoundError):
            return
        time.sleep(0.02)
    pytest.fail('the child still runs')


@pytest.mark.parametrize('output, reason', [
    ('', 'it printed nothing'),
    ('done', 'no JSON in its last line: done'),
    ('7', 'no JSON'),
    ('{"name": "x", "rows": 1}', 'epoch_seconds, cores_busy, loss, test_acc missing'),
])
def test_a_line_that_cannot_be_read_is_an_error(output, reason):
    with pytest.raises(process.ContenderError, match=reason):
        process.parse(output)


def test_an_interpreter_that_is_not_there_is_an_error(program):
    with pytest.raises(process.ContenderError, match='no-such-python'):
        process.run('no-such-python', program(''), {}, timeout=1)


# --- the whole ---

@pytest.fixture
def contenders(monkeypatch, program, tmp_path):
    """Three fake contenders, of which one crashes and one has no environment; each tells when it ran."""
    tell = f'open({str(tmp_path / "turns")!r}, "a").write(job["name"][0]); line["rows"] = 12\n'
    good = program(tell + 'print(json.dumps(line))', 'good.py')
    bad = program(tell + 'sys.exit("broken")', 'bad.py')
    monkeypatch.setattr(compare, 'CONTENDERS', {
        'ours': compare.Contender(good, None, {}, ('scratch',)),
        'bad': compare.Contender(bad, None, {}, ('scratch',)),
        'good': compare.Contender(good, None, {}, ('scratch',)),
        'peer': compare.Contender(good, 'absent', {}, ('scratch',)),
    })
    arrays = (numpy.zeros((12, 28, 28), 'uint8'), numpy.zeros(12, 'uint8')) * 2
    monkeypatch.setattr(rows, 'load', lambda data_dir, folder: ('zeros', arrays))

    def make(name, env_dir, say):
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
    record = json.loads(Path(files[0]).read_text())['works'][0]
    assert {name: len(runs) for name, runs in record['runs'].items()} == {'ours': 2, 'good': 2}
    assert record['summaries']['good']['ratio'] == 1.0
    assert Path(files[1]).stat().st_size > 1000


@pytest.mark.parametrize('arguments', [['--epochs', '1'], ['--rounds', '-1'], ['--work', 'poetry'],
                                       ['--only', 'nobody'], ['--json', 'no/such/folder/x']])
def test_bad_arguments_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        compare.main(arguments)
    assert caught.value.code == 2


def test_missing_data_is_one_line(tmp_path, capsys):
    assert compare.main(['--only', 'ours', '--data-dir', str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith('compare: ') and 'train-images' in err and err.count('\n') == 1


def test_rows_are_cut_to_what_is_asked_for(tmp_path):
    arrays = (numpy.ones((300, 28, 28), 'uint8'), numpy.arange(300)) * 2
    for asked, num_train, num_test in ((250, 250, 32), (6, 6, 16), (1000, 300, 48)):
        path, num_rows = rows.write(arrays, asked, tmp_path)
        with numpy.load(path) as data:
            assert num_rows == num_train and {k: len(data[k]) for k in data} == {
                'images': num_train, 'labels': num_train, 'test_images': num_test, 'test_labels': num_test}


# --- environments ---

def test_an_environment_that_cannot_be_made_leaves_nothing(monkeypatch, tmp_path):
    def call(command):
        if 'pip' not in command:
            python = environments.python_of(tmp_path / 'peer')
            python.parent.mkdir(parents=True)
            python.touch()
            return ''
        raise environments.MissingEnvironmentError('ERROR: no matching distribution')
    monkeypatch.setattr(environments, '_call', call)
    monkeypatch.setitem(environments.RECIPES, 'peer', (['something'],))
    with pytest.raises(environments.MissingEnvironmentError, match='no matching'):
        environments.make('peer', tmp_path, say=lambda line: None)
    assert not (tmp_path / 'peer').exists()


def test_an_environment_that_is_there_is_proved_and_used(monkeypatch, tmp_path):
    python = environments.python_of(tmp_path / 'peer')
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    monkeypatch.setitem(environments.RECIPES, 'peer', ())
    monkeypatch.setitem(environments.PROOF, 'peer', 'import json')
    assert environments.make('peer', tmp_path) == python
    monkeypatch.setitem(environments.PROOF, 'peer', 'import no_such_module')
    with pytest.raises(environments.MissingEnvironmentError, match=r"No module named 'no_such_module'.*delete"):
        environments.make('peer', tmp_path)


def test_versions_are_those_of_the_interpreter():
    found = environments.versions(sys.executable)
    assert found['numpy'] == numpy.__version__
    assert found['python'].count('.') == 2
