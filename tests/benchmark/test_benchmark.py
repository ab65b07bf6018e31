"""Tests of the scaling benchmark: arithmetic by hand, agreement with the chapters, output files and errors."""
import json
from itertools import islice

import numpy
import pytest
from devices_flag import devices_flag
from fake_clock import Clock
from slow import slow

from gluon_mgpu import scratch
from gluon_mgpu.benchmark import measure as measure_module, scaling as scaling_module
from gluon_mgpu.benchmark.__main__ import main
from gluon_mgpu.benchmark.measure import Sample, measure, measure_dispatch
from gluon_mgpu.benchmark.picture import scaling_curves
from gluon_mgpu.benchmark.report import dispatch_table, machine_line, scaling_table
from gluon_mgpu.benchmark.scaling import MODES, Case, device_counts, plan, scaling, summary
from gluon_mgpu.benchmark.workloads import NETWORKS, LeNet, ResNet18
from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.mxnet_setup.compat import mx, np, npx

PARTS = ['loading', 'split', 'forward+backward', 'allreduce', 'update']


def sample(step, waiting=0.5):
    return Sample(step, {'loading': 0.1 * step, 'dispatch': (0.9 - waiting) * step, 'waiting': waiting * step},
                  {'loading': 0.25, 'split': 0.0, 'forward+backward': 1.0, 'allreduce': 0.25, 'update': 0.5})


@pytest.fixture
def batches():
    rng = numpy.random.default_rng(0)
    images = rng.integers(0, 256, (64, 28, 28), dtype='uint8')
    return BatchIterator(images, rng.integers(0, 10, 64), 8, 'noise', shuffle=True)


@pytest.fixture
def two_devices(devices):
    """The flag --devices for two devices."""
    return devices_flag(devices[:2])


@pytest.mark.parametrize(('k', 'counts'), [
    (1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 3, 4]), (5, [1, 2, 4, 5]), (8, [1, 2, 4, 8]),
    (9, [1, 2, 4, 8, 9]), (64, [1, 2, 4, 8, 16, 32, 64]),
])
def test_device_counts(k, counts):
    assert device_counts(k) == counts


def test_speed_up_and_efficiency_by_hand():
    # On one device 100 rows take 2, 4 and 2 s: 50, 25, 50 images/s. On four, 400 rows take 4, 4 and 2 s:
    # 100, 100, 200 images/s. The ratios in each round are 2, 4 and 4.
    line = summary(Case('lenet', 4, 400), MODES[1], [sample(4), sample(4), sample(2)],
                   100, [sample(2), sample(4), sample(2)])
    assert (line['images_per_second'], line['images_per_second_range']) == (100, [100, 200])
    assert (line['speed_up'], line['speed_up_range'], line['efficiency']) == (4, [2, 4], 1.0)
    assert line['ms_per_step'] == 4000
    assert line['parts_ms'] == dict(zip(PARTS, [250, 0, 1000, 250, 500]))
    assert line['overlap_ms'] == 2000 - 4000
    assert line['as_trained_ms'] == pytest.approx({'loading': 400, 'dispatch': 1600, 'waiting': 2000})
    assert (line['network'], line['mode'], line['num_devices'], line['rows']) == ('lenet', MODES[1], 4, 400)


@pytest.mark.parametrize('network', [LeNet, slow(ResNet18)])
def test_the_parts_of_a_step_do_what_train_batch_does(network, devices, batches):
    # From equal parameters, two steps each, with odd rows: then the scores of the two are equal
    scores = []
    for in_parts in (False, True):
        mx.random.seed(3)
        job = network(devices[:2])
        for X, y in islice(batches, 2):
            if in_parts:
                assert list(job.parts(X[:7], y[:7])) == PARTS[1:]
            else:
                job.train_batch(X[:7], y[:7])
        batches.epoch = 0
        X = np.ones((2, 1, 28, 28), ctx=devices[1])
        y_hat = job.net(X) if network is ResNet18 else scratch.lenet(X, job.net[1])
        scores.append(y_hat.asnumpy())
    npx.waitall()
    assert numpy.isfinite(scores[0]).all()
    # The key-value store may sum and update in another order: rounding of float32
    numpy.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-6)


def test_a_measurement(devices, batches):
    found = measure(LeNet(devices[:2]), scaling_module._endless(batches, 10), warm_up=1, steps=3, part_steps=2)
    assert list(found.as_trained) == ['loading', 'dispatch', 'waiting'] and list(found.parts) == PARTS
    assert found.step == pytest.approx(sum(found.as_trained.values()))
    assert min(*found.as_trained.values(), *found.parts.values()) > 0


class SimulatedJob:
    """Job with steps that take 2 s, 0.5 s of it CPU time, and parts that take 3 s. In the warm-up, all take 100 s."""

    def __init__(self, clock, cold_steps):
        self.clock, self.cold_steps, self.cold_parts = clock, cold_steps, 1
        self.net = [[np.zeros(1)]]

    def train_batch(self, X, y):
        self.clock.wall += 100 if self.cold_steps else 2
        self.clock.cpu += 100 if self.cold_steps else 0.5
        self.cold_steps = max(self.cold_steps - 1, 0)
        return [np.zeros(1)]

    def parts(self, X, y):
        for part in ('forward+backward', 'update'):
            self.clock.wall += 100 if self.cold_parts else 3
            yield part
        self.cold_parts = 0


def test_the_seconds_of_a_simulated_job(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(measure_module, 'time', clock)

    def batches():  # loading one takes 1 s
        while True:
            clock.wall += 1
            yield np.zeros((1, 1)), np.zeros(1)

    found = measure(SimulatedJob(clock, cold_steps=2), batches(), warm_up=2, steps=4, part_steps=3)
    assert found.as_trained == {'loading': 1, 'dispatch': 2, 'waiting': 0} and found.step == 3
    assert found.parts == {'loading': 1, 'forward+backward': 3, 'update': 3}


def test_the_dispatch_of_a_simulated_job(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(measure_module, 'time', clock)
    monkeypatch.setitem(NETWORKS, 'lenet', lambda devices: SimulatedJob(clock, cold_steps=3))
    line, = measure_dispatch('lenet', counts=(1,), steps=2)
    assert (line['wall_ms'], line['cpu_ms']) == (2000, 500)


def test_every_measurement_begins_with_the_same_parameters_and_a_warm_up(devices, batches, monkeypatch):
    parameters, counts = [], []

    def note(job, batches, warm_up, steps, part_steps):
        parameters.append(b''.join(param.asnumpy().tobytes() for param in job.net[-1]))
        counts.append((warm_up, steps, part_steps))
        return sample(1.0)

    monkeypatch.setattr(scaling_module, 'measure', note)
    scaling(plan({'lenet': 8}, 2, 64), devices[:2], batches, rounds=2, steps={'lenet': 30})
    assert len(parameters) == 6 and len(set(parameters)) == 1
    assert counts == [(5, 30, 10)] * 6  # LeNet's numbers


def test_endless_batches_are_all_full(batches):
    assert [len(X) for X, _ in islice(scaling_module._endless(batches, 24), 5)] == [24] * 5
    assert batches.batch_size == 8


def test_one_device_is_measured_once_for_both_modes(devices, batches, monkeypatch):
    measured = []
    monkeypatch.setattr(scaling_module, 'measure',
                        lambda job, batches, *steps: measured.append(
                            (len(job.devices), len(next(batches)[0]))) or sample(1.0))
    lines = scaling(plan({'lenet': 8}, 2, 64), devices[:2], batches, rounds=2, steps={'lenet': 1})
    assert measured == [(1, 8), (2, 8), (2, 16), (2, 16), (2, 8), (1, 8)]  # the second round is in reverse order
    assert [(r['mode'], r['num_devices'], r['speed_up'], r['efficiency']) for r in lines] == [
        (MODES[0], 1, 1, 1), (MODES[0], 2, 1, 0.5), (MODES[1], 1, 1, 1), (MODES[1], 2, 2, 1)]


@pytest.mark.slow
def test_a_complete_run(tmp_path, capsys, devices, two_devices):
    out = tmp_path / 'run'
    assert main([*two_devices, '--network', 'lenet', '--batch-size', '16', '--steps', '2', '--rounds', '2',
                 '--out-dir', str(out)]) == 0
    shown = capsys.readouterr().out
    assert 'efficiency' in shown and 'forward+backward' in shown and shown.count('LeNet') == 3 * 4
    record = json.loads((out / 'scaling.json').read_text())
    assert (record['devices'], record['dataset'], record['batch_sizes']) == (
        [str(d) for d in devices[:2]], 'glyphs', {'lenet': 16})
    assert [(r['mode'], r['num_devices'], r['rows']) for r in record['results']] == [
        (MODES[0], 1, 16), (MODES[0], 2, 16), (MODES[1], 1, 16), (MODES[1], 2, 32)]
    assert [len(r['rounds']) for r in record['results']] == [2] * 4
    assert record['results'][0]['speed_up'] == record['results'][0]['efficiency'] == 1
    assert 'MXNet' in record['machine'] and 'dispatch' not in record
    assert (out / 'scaling.png').read_bytes()[:4] == b'\x89PNG'


def test_dispatch():
    lines = measure_dispatch('lenet', counts=(1, 3), steps=2)
    assert [(line['network'], line['devices']) for line in lines] == [('lenet', 1), ('lenet', 3)]
    assert min(line[clock] for line in lines for clock in ('wall_ms', 'cpu_ms')) > 0
    assert 'LeNet' in dispatch_table(lines)[2]


def test_the_table_of_speeds():
    line = summary(Case('lenet', 2, 200), MODES[0], [sample(4), sample(2)], 200, [sample(4), sample(4)])
    heading, row = scaling_table([line])
    assert heading.split() == ['network', 'mode', 'devices', 'batch', 'images/s', 'speed-up', 'efficiency',
                               'ms', 'per', 'step']
    assert row.split() == ['LeNet', 'fixed', 'total', '2', '200', '75', '(50', 'to', '100)', '1.50', '(1.00', 'to',
                           '2.00)', '75%', '3000.0']


def test_the_machine_in_one_line(monkeypatch):
    monkeypatch.setattr('gluon_mgpu.benchmark.report.processor', lambda: 'a processor')
    monkeypatch.setattr('gluon_mgpu.benchmark.report.num_cores', lambda: 3)
    assert machine_line([mx.cpu(0), mx.cpu(1)]) == (
        f'2 x CPU context, 3 cores of a processor, MXNet {mx.__version__}')
    assert machine_line([mx.cpu(0)]).startswith('1 x CPU context, ')


def test_many_devices(tmp_path, monkeypatch):
    """Batches become smaller, so that each device can have one of its own, and dispatch is measured on all devices."""
    found = {}
    program = 'gluon_mgpu.benchmark.__main__'
    monkeypatch.setattr(f'{program}.plan', lambda batch_sizes, *args: found.update(batch_sizes) or {})
    monkeypatch.setattr(f'{program}.scaling', lambda *args: [])
    monkeypatch.setattr(f'{program}.scaling_curves', lambda *args: None)
    monkeypatch.setattr(f'{program}._print', lambda *tables: None)
    for table in ('scaling_table', 'shares_table', 'dispatch_table'):
        monkeypatch.setattr(f'{program}.report.{table}', lambda results: [])
    monkeypatch.setattr(f'{program}.measure_dispatch', lambda name, counts: found.update(counts=counts) or [])
    assert main(['--devices', 'cpu:0-249', '--dispatch', '--out-dir', str(tmp_path / 'run')]) == 0
    assert found == {'lenet': 240, 'resnet18': 64, 'counts': [1, 2, 4, 8, 16, 250]}


def test_the_picture(tmp_path, figures):
    lines = [{'network': 'lenet', 'mode': mode, 'num_devices': k, 'speed_up': 0.9 * k,
              'speed_up_range': [0.8 * k, k]} for mode in MODES for k in (1, 2, 4)]
    scaling_curves(lines, tmp_path / 'scaling.png', 'a machine')
    axes, = figures[0].axes
    assert axes.get_title() == 'a machine' and 'speed-up' in axes.get_ylabel() and axes.get_xlabel() == 'devices'
    assert axes.lines[0].get_xydata().tolist() == [[1, 1], [4, 4]]  # ideal
    assert [t.get_text() for t in axes.get_legend().get_texts()] == [
        'ideal', 'LeNet, fixed total: 3.60 on 4', 'LeNet, fixed per device: 3.60 on 4']


@pytest.mark.parametrize(('flags', 'message'), [
    (['--batch-size', '1'], 'a batch of 1 rows on 2 device(s): must have a row for each device, and at most'),
    (['--batch-size', '30001'], 'a batch of 60,002 rows on 2 device(s): must'),
    (['--devices', 'tpu:0'], "'tpu:0' names no device"),
    (['--dataset', 'mnist', '--data-dir', 'nowhere'], 'missing'),
])
def test_invalid_arguments(flags, message, tmp_path, capsys, two_devices):
    assert main([*two_devices, '--out-dir', str(tmp_path / 'run'), *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith('benchmark: ') and message in error and error.count('\n') == 1
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(('flag', 'value'), [('--steps', '0'), ('--rounds', '-1'), ('--batch-size', '0')])
def test_numbers_below_1_are_rejected(flag, value, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main([flag, value, '--out-dir', str(tmp_path / 'run')])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert error.startswith(f'benchmark: {flag} {value}: must be an integer of at least 1')
    assert error.count('\n') == 1 and not (tmp_path / 'run').exists()


def test_a_folder_that_is_not_empty_is_rejected(tmp_path, capsys, two_devices):
    (tmp_path / 'mine').write_text('')
    assert main([*two_devices, '--out-dir', str(tmp_path)]) == 2
    assert 'overwrites nothing' in capsys.readouterr().err
