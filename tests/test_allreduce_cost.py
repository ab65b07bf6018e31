"""benchmarks/allreduce_cost.py: model and measurements, compared with numbers by hand and simulations; command line."""
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from devices_flag import devices_flag
from fake_clock import Clock

from gluon_mgpu.mxnet_setup.compat import np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'benchmarks'))

import allreduce_cost
from allreduce_cost import ALL, main
from allreduce_model import COSTS, halving_doubling, ring, star, tree
from traffic import traffic

# --- model ---

def test_times_by_hand():
    # alpha 5 s, beta 2 s per byte
    assert star(4).seconds(12, 5, 2) == 6 * (5 + 24)
    assert ring(4).seconds(12, 5, 2) == 6 * (5 + 6)
    assert tree(4).seconds(12, 5, 2) == 4 * (5 + 24)
    assert halving_doubling(4).seconds(12, 5, 2) == 2 * (5 + 12) + 2 * (5 + 6)
    assert halving_doubling(7).seconds(12, 5, 2) == 2 * (5 + 24) + 2 * (5 + 12) + 2 * (5 + 6)


@pytest.mark.parametrize('k', [*range(1, 40), 1000, 1023, 1024])
def test_tree_messages_equal_a_simulation(k):
    def down(device):  # number of messages until all devices below have the sum: the left child is first
        children = [child for child in (2 * device + 1, 2 * device + 2) if child < k]
        return max((turn + down(child) for turn, child in enumerate(children, start=1)), default=0)

    assert tree(k).messages == tree(k).size == 2 * down(0)


# Bytes that each device sends, and receives if no others are given, counted by hand
@pytest.mark.parametrize('name, size, sent, received', [
    ('star', 8, [96, 32, 32, 32], None),          # 32 bytes; 3 arrays to the hub, 3 from it
    ('ring', 8, [48] * 4, None),                  # 2 * 3 chunks of 8 bytes
    ('tree', 8, [64, 64, 32, 32], None),          # the children of 0 are 1 and 2, that of 1 is 3
    ('halving-doubling', 8, [48] * 4, None),      # a half and a quarter, twice
    ('halving-doubling', 8, [80, 80, 48, 48, 32, 32], None),  # 2 devices beyond 4: all to 0 and 1, and the sum back
    # Chunks of 3, 2 and 2 elements. Device 0 sends chunks 0, 2, then 1, 0: 3 + 2 + 2 + 3 elements of 4 bytes
    ('ring', 7, [40, 36, 36], [36, 40, 36]),
    # Chunks of 2, 2, 2 and 1, in halves of 4 and 3. Device 0 sends 3 and 2 elements, then 2 and 4
    ('halving-doubling', 7, [44, 44, 40, 40], None)])
def test_bytes_by_hand(name, size, sent, received, device_list):
    devices = device_list(len(sent))
    counted = traffic(ALL[name], [np.zeros(size, ctx=device) for device in devices])
    assert [[of_device[device] for device in devices] for of_device in counted] == [sent, received or sent]


@pytest.mark.parametrize('name', [name for name in ALL if name != 'kvstore'])
@pytest.mark.parametrize('k', range(1, 10))
def test_the_busiest_device_sends_and_receives_as_counted(name, k, device_list):
    devices = device_list(k)
    sent, received = traffic(ALL[name], [np.zeros(2520, ctx=device) for device in devices])  # each k divides 2520
    counted = max(sent[device] + received[device] for device in devices)
    assert 4 * 2520 * COSTS[name](k).busiest == counted


# --- measurement ---

def test_the_gradient_of_lenet():
    assert allreduce_cost.gradient_sizes()['LeNet'] == 129_068


def test_the_link_of_a_simulated_machine(monkeypatch):
    """Messages are queued and take alpha + beta n seconds; the first 20, the warm-up, take 1000 s more."""
    alpha, beta, clock, queued = 1e-5, 1e-9, Clock(), []

    class Array:
        def __init__(self, size, ctx):
            self.num_bytes, self.sent = 4 * size, 0

        def copyto(self, other):
            self.sent += 1
            queued.append(alpha + beta * self.num_bytes + (1000 if self.sent <= allreduce_cost.HOPS else 0))

    def waitall():
        clock.wall += sum(queued)
        queued.clear()

    monkeypatch.setattr(allreduce_cost, 'time', clock)
    monkeypatch.setattr(allreduce_cost, 'np', SimpleNamespace(zeros=Array))
    monkeypatch.setattr(allreduce_cost, 'npx', SimpleNamespace(waitall=waitall))
    # The small message has 4 bytes, where the model has none
    assert allreduce_cost.measure_link('one', 'other', rounds=1) == pytest.approx((alpha, beta), rel=1e-3)


def test_the_command(tmp_path, capsys, device_list, monkeypatch):
    monkeypatch.setattr(allreduce_cost, 'LARGE', 2**12)
    monkeypatch.setattr(allreduce_cost, 'gradient_sizes', lambda: {'LeNet': 6, 'ResNet-18': 11})
    devices, out = device_list(3), tmp_path / 'costs'
    assert main([*devices_flag(devices), '--rounds', '1', '--out-dir', str(out)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + 2 * 2 * len(ALL) + 1  # networks, devices, algorithms
    costs = json.loads((out / 'costs.json').read_text())
    star, = [case for case in costs['measured']
             if (case['network'], case['devices'], case['algorithm']) == ('LeNet', 3, 'star')]
    assert star['busiest_bytes'] == 4 * 24 and star['seconds'] > 0
    assert star['model_seconds'] == pytest.approx(4 * (costs['alpha'] + 24 * costs['beta']))
    for name in ('allreduce.png', 'bytes.png'):
        assert (out / name).read_bytes()[:4] == b'\x89PNG'
