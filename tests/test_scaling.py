"""benchmarks/scaling.py: arithmetic by hand, the chapters' training, output files and errors."""
import json
import sys
from pathlib import Path

import numpy
import pytest
from devices_flag import devices_flag
from fake_clock import Clock

from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.mxnet_setup.compat import np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'benchmarks'))

import scaling
from scaling import (
    MODES,
    NETWORKS,
    Case,
    device_counts,
    images_per_second,
    main,
    measure,
    plan,
    summary,
)


@pytest.fixture
def batches():
    rng = numpy.random.default_rng(0)
    images = rng.integers(0, 256, (64, 28, 28), dtype='uint8')
    return BatchIterator(images, rng.integers(0, 10, 64), 8, 'noise', shuffle=True)


@pytest.mark.parametrize(('k', 'counts'), [(1, [1]), (4, [1, 2, 3, 4]), (5, [1, 2, 4, 5]), (9, [1, 2, 4, 8, 9])])
def test_device_counts(k, counts):
    assert device_counts(k) == counts


def test_speed_up_and_efficiency_by_hand():
    # The ratios in each round are 2, 4 and 4
    line = summary(Case('lenet', 4, 400), MODES[1], [100, 100, 200], [50, 25, 50])
    assert (line['images_per_second'], line['images_per_second_range']) == (100, [100, 200])
    assert (line['speed_up'], line['speed_up_range'], line['efficiency']) == (4, [2, 4], 1.0)
    assert line['ms_per_step'] == 4000 and line['images_per_second_by_round'] == [100, 100, 200]
    assert (line['network'], line['mode'], line['num_devices'], line['rows']) == ('lenet', MODES[1], 4, 400)


def test_the_speed_of_a_simulated_chapter(monkeypatch, batches):
    """The warm-up, 5 steps of 100 s, does not count; the other steps take 2 s, and another is in flight at the end."""
    clock, seen = Clock(), []
    monkeypatch.setattr('gluon_mgpu.training.epoch.time', clock)

    def train(num_gpus, batch_size, lr, devices, data, run):
        for _ in run.epochs([[np.zeros(1)]]):
            for X, y in run.batches(data[0]):
                clock.wall += 100 if run.num_steps < 5 else 2
                seen.append((X.shape, y.shape, [len(X) for X, y in data[1]]))
                run.record_losses([np.zeros(len(X))])
            run.end_epoch(0.5)
        assert (num_gpus, batch_size, lr, devices) == (2, 10, 0.2, ['cpu(0)', 'cpu(1)'])

    monkeypatch.setitem(NETWORKS, 'lenet', NETWORKS['lenet']._replace(train=train))
    assert images_per_second(Case('lenet', 2, 10), ['cpu(0)', 'cpu(1)', 'cpu(2)'], batches, steps=8) == 5
    assert seen == [((10, 1, 28, 28), (10,), [1])] * (5 + 8)


def test_one_device_is_measured_once_for_both_modes(batches, monkeypatch):
    measured = []
    monkeypatch.setattr(scaling, 'images_per_second',
                        lambda case, *args: measured.append((case, *args)) or float(case.rows))
    lines = measure(plan({'lenet': 8}, 2, 64), ['a', 'b'], batches, rounds=2, steps={'lenet': 1})
    order = [(1, 8), (2, 8), (2, 16), (2, 16), (2, 8), (1, 8)]  # the second round is in reverse order
    assert measured == [(Case('lenet', *case), ['a', 'b'], batches, 1) for case in order]
    assert [(r['mode'], r['num_devices'], r['speed_up'], r['efficiency']) for r in lines] == [
        (MODES[0], 1, 1, 1), (MODES[0], 2, 1, 0.5), (MODES[1], 1, 1, 1), (MODES[1], 2, 2, 1)]


@pytest.mark.slow
def test_a_complete_run(tmp_path, capsys, devices):
    out = tmp_path / 'run'
    assert main([*devices_flag(devices[:2]), '--network', 'lenet', '--batch-size', '16', '--steps', '2', '--rounds',
                 '2', '--out-dir', str(out)]) == 0
    shown = capsys.readouterr().out
    assert shown.count('LeNet') == 4 and max(map(len, shown.replace(str(out), '').splitlines())) <= 80
    record = json.loads((out / 'scaling.json').read_text())
    assert [(r['mode'], r['num_devices'], r['rows']) for r in record['results']] == [
        (MODES[0], 1, 16), (MODES[0], 2, 16), (MODES[1], 1, 16), (MODES[1], 2, 32)]
    assert (out / 'scaling.png').read_bytes()[:4] == b'\x89PNG'


@pytest.mark.parametrize(('batch_size', 'rows'), [('1', '1 rows'), ('30001', '60,002 rows')])
def test_invalid_arguments(batch_size, rows, tmp_path, capsys, devices):
    assert main([*devices_flag(devices[:2]), '--out-dir', str(tmp_path / 'run'), '--batch-size', batch_size]) == 2
    assert capsys.readouterr().err.startswith(f'scaling: a batch of {rows} on 2 device(s): must have a row for each')
    assert not (tmp_path / 'run').exists()
