"""The cost model, compared with numbers by hand, a simulation and counted bytes; and its command line."""
import json
from types import SimpleNamespace

import pytest
from devices_flag import devices_flag
from fake_clock import Clock

from gluon_mgpu.cost_model import formulas, measure
from gluon_mgpu.cost_model.__main__ import main
from gluon_mgpu.mxnet_setup.compat import np
from gluon_mgpu.parallel.allreduce import ALGORITHMS

SIZES = {'LeNet': 6, 'ResNet-18': 11}


def test_times_by_hand():
    # alpha 5 s, beta 2 s per byte
    assert formulas.star_time(4, 12, 5, 2) == 6 * (5 + 24)
    assert formulas.ring_time(4, 12, 5, 2) == 6 * (5 + 6)
    assert formulas.tree_time(4, 12, 5, 2) == 4 * (5 + 24)
    for time in formulas.TIMES.values():
        assert time(1, 12, 5, 2) == 0
        assert time(2, 12, 1, 0) == 2  # there and back
    assert formulas.TIMES.keys() == ALGORITHMS.keys()


@pytest.mark.parametrize('k', [*range(1, 40), 1000, 1023, 1024])
def test_tree_time_equals_a_simulation(k):
    def down(device):  # number of messages until all devices below have the sum: the left child is first
        children = [child for child in (2 * device + 1, 2 * device + 2) if child < k]
        return max((turn + down(child) for turn, child in enumerate(children, start=1)), default=0)

    assert formulas.tree_time(k, 0, 1, 0) == 2 * down(0)


def test_the_quickest_algorithm_depends_on_the_size():
    def quickest(k, num_bytes):
        return min(('star', 'ring', 'tree'), key=lambda name: formulas.TIMES[name](k, num_bytes, 1e-5, 1e-10))

    assert quickest(64, 4) == 'tree'     # latency decides: fewest messages
    assert quickest(64, 10**9) == 'ring'  # bytes decide


@pytest.mark.parametrize('algorithm', ALGORITHMS)
@pytest.mark.parametrize('k', [2, 3, 4, 5, 6])
def test_busiest_bytes_equal_the_counted_bytes(algorithm, k, device_list):
    devices = device_list(k)
    traffic = ALGORITHMS[algorithm]([np.zeros(60, ctx=device) for device in devices])
    counted = max(traffic.sent[device] + traffic.received[device] for device in devices)
    assert formulas.busiest_bytes(algorithm, k, 240) == counted
    assert formulas.busiest_bytes(algorithm, 1, 240) == 0


def test_gradient_sizes_by_hand():
    # W1 180, b1 20, W2 25,000, b2 50, W3 102,400, b3 128, W4 1,280, b4 10
    lenet = 129_068
    # A stage's 3x3 convolutions c -> d, d -> d, d -> d, d -> d with biases and batch norm (2 d), its 1x1 with bias
    stages = sum(9 * c * d + 27 * d * d + 4 * 3 * d + (c * d + d if c < d else 0)
                 for c, d in [(64, 64), (64, 128), (128, 256), (256, 512)])
    resnet18 = 9 * 64 + 64 + 2 * 64 + stages + 512 * 10 + 10
    assert measure.gradient_sizes() == {'LeNet': lenet, 'ResNet-18': resnet18}


def test_the_link_of_a_simulated_machine(monkeypatch):
    """Messages are queued and take alpha + beta n seconds; the first 20, the warm-up, take 1000 s more."""
    alpha, beta, clock, queued = 1e-5, 1e-9, Clock(), []

    class Array:
        def __init__(self, size, ctx):
            self.num_bytes, self.sent = 4 * size, 0

        def copyto(self, other):
            self.sent += 1
            queued.append(alpha + beta * self.num_bytes + (1000 if self.sent <= measure.HOPS else 0))

    def waitall():
        clock.wall += sum(queued)
        queued.clear()

    monkeypatch.setattr(measure, 'time', clock)
    monkeypatch.setattr(measure, 'np', SimpleNamespace(zeros=Array))
    monkeypatch.setattr(measure, 'npx', SimpleNamespace(waitall=waitall))
    # The small message has 4 bytes, where the model has none
    assert measure.measure_link('one', 'other', rounds=1) == pytest.approx((alpha, beta), rel=1e-3)


def test_measure_link_is_positive(devices, monkeypatch):
    monkeypatch.setattr(measure, 'LARGE', 2**18)
    alpha, beta = measure.measure_link(*devices[:2], rounds=3)
    assert 0 < alpha < 0.1
    assert 0 <= beta < 1e-6


def test_the_command(tmp_path, capsys, device_list, monkeypatch):
    monkeypatch.setattr(measure, 'LARGE', 2**12)
    monkeypatch.setattr(measure, 'gradient_sizes', lambda: SIZES)
    devices, out = device_list(3), tmp_path / 'costs'
    assert main([*devices_flag(devices), '--rounds', '1', '--out-dir', str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith('alpha ') and lines[0].endswith(f'between {devices[0]} and {devices[1]}')
    assert len(lines) == 2 + 2 * 2 * 4 + 1  # networks, numbers of devices, algorithms
    costs = json.loads((out / 'costs.json').read_text())
    assert costs['devices'] == [str(d) for d in devices]
    assert costs['gradient_bytes'] == {'LeNet': 24, 'ResNet-18': 44}
    assert [(r['network'], r['devices'], r['algorithm']) for r in costs['measured']] == [
        (network, k, algorithm) for network in SIZES for k in (2, 3) for algorithm in ALGORITHMS]
    star = costs['measured'][4]
    assert star['busiest_bytes'] == 4 * 24 and star['seconds'] > 0
    assert star['model_seconds'] == pytest.approx(4 * (costs['alpha'] + 24 * costs['beta']))
    for name in ('allreduce.png', 'bytes.png'):
        assert (out / name).read_bytes()[:4] == b'\x89PNG'


def test_invalid_arguments_are_reported_in_one_line(tmp_path, capsys, devices):
    (tmp_path / 'full').mkdir()
    (tmp_path / 'full' / 'costs.json').write_text('{}')
    for argv, complaint in [(devices_flag(devices[:1]), 'an allreduce needs two or more devices'),
                            (['--devices', 'tpu:0'], "'tpu:0' names no device"),
                            ([*devices_flag(devices), '--out-dir', str(tmp_path / 'full')], 'is not an empty folder')]:
        assert main(argv) == 2
        captured = capsys.readouterr()
        assert captured.out == '' and captured.err.count('\n') == 1
        assert captured.err.startswith('cost_model: ') and complaint in captured.err
