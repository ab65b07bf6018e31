"""Tests of the model for more devices: numbers by hand, and the output of the program."""
import json

import pytest
from devices_flag import devices_flag

from gluon_mgpu.benchmark.__main__ import main
from gluon_mgpu.benchmark.expected import Expected, expect
from gluon_mgpu.benchmark.picture import expected_curves
from gluon_mgpu.benchmark.report import comparison_table, expected_table

DISPATCH = {1: 1e-3, 2: 2e-3, 4: 6e-3}


@pytest.mark.parametrize('k, rows, computing, dispatch, allreduce, pace', [
    (1, 1000, 10e-3, 1e-3, 0, 'devices'),
    (2, 1000, 5e-3, 2e-3, 2e-3, 'devices'),     # 2 messages of 1 ms: 0.5 and 1000 bytes at 0.5 us
    (3, 1000, 10e-3 / 3, 4e-3, 4e-3, 'Python'),  # half way from 2 to 6 ms
    (4, 100, 0.25e-3, 6e-3, 6e-3, 'Python'),
    (2, 100, 0.5e-3, 2e-3, 2e-3, 'Python'),
])
def test_expected_times_by_hand(k, rows, computing, dispatch, allreduce, pace):
    found = expect(rows, k, 100_000, 0.5e-3, 0.5e-6, DISPATCH, 1000)
    assert found[2:] == pytest.approx((computing, dispatch, allreduce))
    assert found.step == pytest.approx(max(computing, dispatch) + allreduce)
    assert found.images_per_second == pytest.approx(rows / found.step)
    assert found.pace == pace


def test_a_slow_link_sets_the_pace():
    assert expect(1000, 2, 100_000, 0, 1e-6, DISPATCH, 1e6).pace == 'link'


def test_the_tables():
    expected = [Expected(2, 2000, 5e-3, 2e-3, 3e-3)]
    heading, row = expected_table(expected, 'lenet')
    assert row.split() == ['LeNet', '2', '2,000', '5.00', '2.00', '3.00', '8.00', '250,000', 'devices']
    assert heading.split()[-3:] == ['pace', 'set', 'by']
    result = {'network': 'lenet', 'mode': 'fixed total', 'ms_per_step': 9.0}
    assert comparison_table([result], expected)[-1].split() == [
        'LeNet', 'fixed', 'total', '2', '2000', '9.0', '8.0', 'devices']


def test_the_picture(tmp_path, figures):
    expected_curves([expect(rows, k, 1000, 0, 1e-6, DISPATCH, 100) for rows in (8, 64) for k in (1, 2, 4)],
                    tmp_path / 'expected.png', 'a heading')
    axes, = figures[0].axes
    texts = [t.get_text() for t in axes.get_legend().get_texts()]
    assert texts[:3] == ['ideal', 'batch of 8', 'batch of 64'] and 'pace set by Python' in texts
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(4 * axes.lines[0].get_ydata()[0])
    assert (tmp_path / 'expected.png').read_bytes()[:4] == b'\x89PNG'


@pytest.mark.slow
def test_the_program(tmp_path, capsys, devices):
    out = tmp_path / 'run'
    assert main([*devices_flag(devices[:2]), '--network', 'lenet', '--batch-size', '16', '--steps', '2',
                 '--rounds', '1', '--device-images-per-second', '1e5', '--link-gigabytes-per-second', '2',
                 '--out-dir', str(out)]) == 0
    shown = capsys.readouterr().out
    assert 'expected: LeNet on devices that compute 100,000 images/s each, a link of 2 GB/s' in shown
    assert 'measured, ms  expected, ms' in shown and str(out / 'expected.png') in shown
    record = json.loads((out / 'scaling.json').read_text())
    assert [(e['devices'], e['rows']) for e in record['expected']] == [
        (k, rows) for rows in (16, 64, 256) for k in (1, 2, 4, 8, 16)]
    first, second = record['expected'][:2]
    measured = {d['devices']: d['cpu_ms'] / 1000 for d in record['dispatch']}
    assert (first['computing'], first['dispatch'], first['allreduce']) == pytest.approx((16e-5, measured[1], 0))
    # LeNet's gradient of 129,068 numbers, there and back at 2 GB/s, and 20 us for each message
    assert second['allreduce'] == pytest.approx(2 * (20e-6 + 4 * 129_068 / 2e9))


def test_the_model_needs_one_network(tmp_path, capsys):
    assert main(['--device-images-per-second', '1000', '--out-dir', str(tmp_path / 'run')]) == 2
    assert 'is for one network: add --network lenet or --network resnet18' in capsys.readouterr().err
    assert not (tmp_path / 'run').exists()
