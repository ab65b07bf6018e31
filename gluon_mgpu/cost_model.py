"""What an allreduce costs: the alpha-beta model, up to 1024 devices, next to what is measured here.

    python -m gluon_mgpu.cost_model                                    # all GPUs, or four CPU contexts
    python -m gluon_mgpu.cost_model --devices cpu:0-3 --out-dir costs

A message of n bytes takes alpha + beta n seconds: alpha is its latency, beta the time of a byte. A device
sends one message and receives one at a time; additions cost nothing; all pairs of devices are alike. The
program measures alpha and beta between two devices, then the algorithms on the devices given, and leaves
costs.json, allreduce.png (the time) and bytes.png (what the busiest device sends and receives).

CPU contexts are no machine of that kind: they share cores and memory, so that with more contexts than cores
messages that the model takes to be simultaneous are not, and starting many small ones keeps Python busy.
"""
from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

from . import cli
from .allreduce import ALGORITHMS
from .compat import mx, np, npx
from .devices import num_mxnet_gpus, parse_devices
from .resnet import resnet18
from .scratch import init_params

HOPS = 20            # messages to and fro in one measurement: one alone would time Python and the waiting
LARGE = 4 * 2**20    # float32 elements of a large message, 16 MiB: more than fits into a core's cache
COLORS = {'star': 'tab:blue', 'ring': 'tab:orange', 'tree': 'tab:green', 'kvstore': 'tab:red'}
MARKERS = {'star': 'o', 'ring': 's', 'tree': '^', 'kvstore': 'D'}  # hollow: they may lie on one another


def star_time(k: int, num_bytes: float, alpha: float, beta: float) -> float:
    """Seconds of `allreduce.star` by the model: the hub receives k - 1 messages, then sends k - 1."""
    # 2 (k - 1) (alpha + beta N)
    return 2 * (k - 1) * (alpha + beta * num_bytes)


def ring_time(k: int, num_bytes: float, alpha: float, beta: float) -> float:
    """Seconds of `allreduce.ring` by the model: 2 (k - 1) steps, in each a chunk from every device to the next."""
    # 2 (k - 1) (alpha + beta N / k)
    return 2 * (k - 1) * (alpha + beta * num_bytes / k)


def tree_time(k: int, num_bytes: float, alpha: float, beta: float) -> float:
    """Seconds of `allreduce.tree` by the model: the slowest path from the root to a device, up and down.

    A parent serves its left child in one message's time and its right child in two, as that waits for the
    left one. Counted from 1, device n has the children 2 n and 2 n + 1: each binary digit of n after the first
    is a level, and each that is 1 a turn to the right. So it is reached after (digits of n - 1) +
    (ones of n - 1) messages.
    """
    # 2 max(digits(n) + ones(n) - 2 for n <= k) (alpha + beta N)
    messages = max(n.bit_length() + bin(n).count('1') - 2 for n in range(1, k + 1))
    return 2 * messages * (alpha + beta * num_bytes)


TIMES = {'star': star_time, 'ring': ring_time, 'tree': tree_time, 'kvstore': star_time}


def busiest_bytes(algorithm: str, k: int, num_bytes: float) -> float:
    """Bytes that the busiest of k devices sends and receives, both together, by the formulas of `allreduce`."""
    if algorithm == 'ring':
        return 4 * (k - 1) / k * num_bytes
    # In the tree, the most neighbours of a device: one of 2 devices, two of 3 and 4, three of more
    neighbours = min(3, (k + 1) // 2) if algorithm == 'tree' else k - 1
    return 2 * neighbours * num_bytes if k > 1 else 0


def measure_link(source, target, rounds: int = 9) -> tuple:
    """Measure alpha, in seconds, and beta, in seconds a byte, between two devices; waits.

    The medians of `rounds` times that `HOPS` messages take to and fro, each after the one before.
    """
    def seconds_a_message(size):
        here, there = np.zeros(size, ctx=source), np.zeros(size, ctx=target)

        def to_and_fro():
            for _ in range(HOPS // 2):
                here.copyto(there)
                there.copyto(here)

        return _median_seconds(to_and_fro, rounds) / HOPS

    alpha = seconds_a_message(1)
    # The byte's time is what a large message takes longer than a small one
    beta = max(seconds_a_message(LARGE) - alpha, 0) / (4 * LARGE)
    return alpha, beta


def measure_allreduce(algorithm: str, size: int, devices: list, rounds: int = 9) -> dict:
    """Measure one algorithm on arrays of `size` float32 zeros, one a device; waits.

    Returns
    -------
    dict
        'seconds', the median of `rounds`, and 'busiest_bytes', what the busiest device sent and received.
    """
    data = [np.zeros(size, ctx=device) for device in devices]
    traffic = ALGORITHMS[algorithm](data)
    return {'seconds': _median_seconds(lambda: ALGORITHMS[algorithm](data), rounds),
            'busiest_bytes': max(traffic.sent[d] + traffic.received[d] for d in devices)}


def _median_seconds(function, rounds: int) -> float:
    """The median of the times that a function and the work that it queues take, once it has run twice before."""
    times = []
    for _ in range(rounds + 2):
        npx.waitall()
        start = time.perf_counter()
        function()
        npx.waitall()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def gradient_sizes() -> dict:
    """How many numbers the gradients of both chapters' networks have."""
    net = resnet18(10)
    net.initialize(ctx=mx.cpu(0))
    net(np.zeros((1, 1, 28, 28), ctx=mx.cpu(0)))  # decides the shapes
    return {'LeNet': sum(p.size for p in init_params()),
            # Without the running statistics of batch norm, which have no gradient
            'ResNet-18': sum(p.data().size for p in net.collect_params().values() if p.grad_req != 'null')}


def measure(devices: list, rounds: int = 9, say=print) -> dict:
    """Measure the devices' link, and each algorithm on the first 2, 3, ... of them; waits.

    Returns
    -------
    dict
        'alpha', 'beta', 'devices', 'gradient_bytes' by network, and 'measured': a list of dicts with 'network',
        'devices' (their number), 'algorithm', 'seconds', 'model_seconds' and 'busiest_bytes'.
    """
    alpha, beta = measure_link(devices[0], devices[1], rounds)
    say(f'alpha {alpha * 1e6:.1f} us, beta {beta * 1e9:.3f} ns/byte'
        + (f' ({1e-9 / beta:.1f} GB/s)' if beta else '') + f' between {devices[0]} and {devices[1]}')
    sizes, measured = gradient_sizes(), []
    say(f'{"network":10} {"devices":>7} {"algorithm":9} {"measured ms":>11} {"model ms":>9} {"busiest MB":>10}')
    for network, size in sizes.items():
        for k in range(2, len(devices) + 1):
            for algorithm in ALGORITHMS:
                row = {'network': network, 'devices': k, 'algorithm': algorithm,
                       'model_seconds': TIMES[algorithm](k, 4 * size, alpha, beta),
                       **measure_allreduce(algorithm, size, devices[:k], rounds)}
                measured.append(row)
                say(f'{network:10} {k:7} {algorithm:9} {row["seconds"] * 1e3:11.3f} '
                    f'{row["model_seconds"] * 1e3:9.3f} {row["busiest_bytes"] / 1e6:10.2f}')
    return {'alpha': alpha, 'beta': beta, 'devices': [str(d) for d in devices],
            'gradient_bytes': {network: 4 * size for network, size in sizes.items()}, 'measured': measured}


def draw_times(costs: dict, path) -> None:
    """Draw seconds over devices as PNG: lines are the model, dots what was measured. `costs` as from `measure`."""
    from matplotlib.figure import Figure
    fig = Figure(figsize=(8, 4), dpi=110, layout='tight')
    ks = [2**i for i in range(1, 11)]
    for axes, (network, num_bytes) in zip(fig.subplots(1, 2, sharey=True), costs['gradient_bytes'].items()):
        for algorithm in ('star', 'tree', 'ring'):
            axes.plot(ks, [TIMES[algorithm](k, num_bytes, costs['alpha'], costs['beta']) * 1e3 for k in ks],
                      color=COLORS[algorithm], label=f'{algorithm}, model')
        for algorithm in ALGORITHMS:
            rows = [r for r in costs['measured'] if (r['network'], r['algorithm']) == (network, algorithm)]
            axes.plot([r['devices'] for r in rows], [r['seconds'] * 1e3 for r in rows], MARKERS[algorithm],
                      color=COLORS[algorithm], markerfacecolor='none', label=f'{algorithm}, measured')
        axes.set_xscale('log', base=2)
        axes.set_yscale('log')
        axes.set_xticks([2, 4, 16, 64, 256, 1024], ['2', '4', '16', '64', '256', '1024'])
        axes.set(title=f'{network}, {num_bytes / 1e6:.1f} MB of gradients', xlabel='devices')
        axes.grid(alpha=0.4)
    fig.axes[0].set_ylabel('one allreduce (ms)')
    fig.axes[0].legend(fontsize=8)
    fig.savefig(path)


def draw_bytes(costs: dict, path) -> None:
    """Draw the busiest device's bytes over devices as PNG: lines are formulas, dots were counted."""
    from matplotlib.figure import Figure
    fig = Figure(figsize=(6.4, 4), dpi=110, layout='tight')
    axes = fig.subplots()
    network, num_bytes = list(costs['gradient_bytes'].items())[-1]
    ks = range(2, 17)
    for algorithm, label in (('star', 'star and kvstore'), ('tree', 'tree'), ('ring', 'ring')):
        axes.plot(ks, [busiest_bytes(algorithm, k, num_bytes) / 1e6 for k in ks], color=COLORS[algorithm],
                  label=label)
        rows = [r for r in costs['measured'] if (r['network'], r['algorithm']) == (network, algorithm)
                and r['devices'] in ks]
        axes.plot([r['devices'] for r in rows], [r['busiest_bytes'] / 1e6 for r in rows], 'o',
                  color=COLORS[algorithm])
    axes.set(title=f'One allreduce of {network}: bytes at the busiest device',
             xlabel='devices (dots: counted here)', ylabel='sent and received (MB)', xticks=range(2, 17, 2))
    axes.set_ylim(bottom=0)
    axes.secondary_yaxis('right', functions=(lambda mb: mb * 1e6 / num_bytes, lambda n: n * num_bytes / 1e6)
                         ).set_ylabel(f'in gradients of {num_bytes / 1e6:.1f} MB')
    axes.grid(alpha=0.4)
    axes.legend()
    fig.savefig(path)


def main(argv: list | None = None) -> int:
    """The command line: ``python -m gluon_mgpu.cost_model --help``. Returns the exit status."""
    parser = argparse.ArgumentParser(prog='python -m gluon_mgpu.cost_model',
                                     description='Measure allreduce on several devices, and draw what it would '
                                                 'cost on up to 1024.')
    parser.add_argument('--devices', metavar='LIST', default='gpu:all' if num_mxnet_gpus() else 'cpu:0-3',
                        help="two or more devices, such as 'gpu:0,gpu:1' or 'cpu:0-3' (default: %(default)s)")
    parser.add_argument('--rounds', type=cli.positive(int), default=9, metavar='N',
                        help='measurements of which the median is taken (default: %(default)s)')
    parser.add_argument('--out-dir', metavar='DIR',
                        help='new folder for costs.json, allreduce.png and bytes.png '
                             '(default: runs/cost_model-DATE-TIME)')
    args = parser.parse_args(argv)
    return cli.exit_status('cost_model', lambda: _run(args))


def _run(args) -> None:
    devices = parse_devices(args.devices)
    if len(devices) < 2:
        raise ValueError(f'{args.devices} is one device: an allreduce needs two or more')
    out_dir = cli.new_folder(args.out_dir, 'cost_model')
    costs = measure(devices, args.rounds)
    (out_dir / 'costs.json').write_text(json.dumps({**costs, **cli.versions()}, indent=2) + '\n')
    draw_times(costs, out_dir / 'allreduce.png')
    draw_bytes(costs, out_dir / 'bytes.png')
    print(f'{out_dir}: costs.json, allreduce.png, bytes.png')


if __name__ == '__main__':
    sys.exit(main())
