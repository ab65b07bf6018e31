"""Cost of an allreduce: measured here, next to the alpha-beta model for up to 1024 devices; see docs/allreduce.md.

    python benchmarks/allreduce_cost.py                                    # all GPUs, or four CPU contexts
    python benchmarks/allreduce_cost.py --devices cpu:0-3 --out-dir costs
"""
from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package beside benchmarks/, installed or not

from allreduce_model import COSTS
from harness.flags import positive_integer
from traffic import traffic

from gluon_mgpu.base.files import write_atomically
from gluon_mgpu.base.flags import Parser, path, text
from gluon_mgpu.base.machine import num_cores, processor, versions
from gluon_mgpu.base.pictures import write_picture
from gluon_mgpu.checkpoints.run_folder import check_free, new_folder
from gluon_mgpu.devices import parse_devices
from gluon_mgpu.devices.gpus import num_mxnet_gpus
from gluon_mgpu.mxnet_setup.compat import mx, np, npx
from gluon_mgpu.mxnet_setup.runtime import environment
from gluon_mgpu.networks.resnet import resnet18
from gluon_mgpu.outputs.plot import figure
from gluon_mgpu.parallel.allreduce import ALGORITHMS
from gluon_mgpu.parallel.step import params_with_gradients
from gluon_mgpu.scratch import allreduce, init_params

HOPS = 20            # messages there and back in one measurement; a single one would mostly time Python and waiting
LARGE = 4 * 2**20    # float32 elements of a large message, 16 MiB: more than a core's cache
STARS = 'star', 'kvstore'  # MXNet's store copies all arrays to one device and back, but not by `copyto`
ALL = {'star': allreduce, **ALGORITHMS}
COLORS = {name: f'C{i}' for i, name in enumerate(ALL)}


def main(argv: list | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = Parser('allreduce_cost', 'Measure allreduce on several devices and plot its expected cost on up to 1024.')
    parser.prog = 'python benchmarks/allreduce_cost.py'
    parser.add_argument('--devices', type=text, metavar='LIST',
                        help="two or more devices, such as 'gpu:0,gpu:1' or 'cpu:0-3' (default: gpu:all, or cpu:0-3 "
                             'without a GPU)')
    parser.add_argument('--rounds', type=positive_integer, default=9, metavar='N',
                        help='number of measurements for each median (default: %(default)s)')
    parser.add_argument('--out-dir', type=path, metavar='DIR',
                        help='new folder for costs.json, allreduce.png and bytes.png '
                             '(default: runs/allreduce_cost-DATE-TIME)')
    return parser.run(argv, _run)


def _run(args: argparse.Namespace) -> None:
    check_free(args.out_dir)
    names = args.devices or ('gpu:all' if num_mxnet_gpus() else 'cpu:0-3')
    devices = parse_devices(names)
    if len(devices) < 2:
        raise ValueError(f'--devices {names}: an allreduce needs two or more devices')
    about = {'processor': processor(), 'num_cores': num_cores(), **versions(), 'environment': environment()}
    out_dir = new_folder(args.out_dir, 'allreduce_cost')
    costs = measure(devices, args.rounds)
    write_atomically(out_dir / 'costs.json', json.dumps({**costs, **about}, indent=2).encode())
    draw_times(costs, out_dir / 'allreduce.png')
    draw_bytes(costs, out_dir / 'bytes.png')
    print(f'{out_dir}: costs.json, allreduce.png, bytes.png')


def measure_link(source, target, rounds: int) -> tuple:
    """Measure alpha, in seconds, and beta, in seconds per byte, between two devices: medians of `rounds`; blocks."""
    def seconds_per_message(size):
        here, there = np.zeros(size, ctx=source), np.zeros(size, ctx=target)

        def there_and_back():
            for _ in range(HOPS // 2):
                here.copyto(there)
                there.copyto(here)

        return _median_seconds(there_and_back, rounds) / HOPS

    alpha = seconds_per_message(1)
    return alpha, max(seconds_per_message(LARGE) - alpha, 0) / (4 * LARGE)


def _median_seconds(function, rounds: int) -> float:
    """Return the median time of a function and the work that it queues, after two warm-up calls."""
    times = []
    for _ in range(rounds + 2):
        npx.waitall()
        start = time.perf_counter()
        function()
        npx.waitall()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def gradient_sizes() -> dict:
    """Return the number of elements in the gradients of each chapter's network."""
    net = resnet18(10)
    net.initialize(ctx=mx.cpu(0))
    net(np.zeros((1, 1, 28, 28), ctx=mx.cpu(0)))  # infers the shapes
    return {'LeNet': sum(p.size for p in init_params()),
            'ResNet-18': sum(param.data().size for param in params_with_gradients(net))}


def measure(devices: list, rounds: int) -> dict:
    """Measure the link between two devices, and each algorithm on the first 2, 3, ... of all devices; blocks.

    Prints a line for each result. Returns all results, JSON-serializable.
    """
    alpha, beta = measure_link(devices[0], devices[1], rounds)
    print(f'alpha {alpha * 1e6:.1f} us, beta {beta * 1e9:.3f} ns/byte'
          + (f' ({1e-9 / beta:.1f} GB/s)' if beta else '') + f' between {devices[0]} and {devices[1]}')
    sizes, measured = gradient_sizes(), []
    print(f'{"network":10} {"devices":>7} {"algorithm":16} {"measured ms":>11} {"model ms":>9} {"busiest MB":>10}')
    for network, size in sizes.items():
        for k in range(2, len(devices) + 1):
            data = [np.zeros(size, ctx=device) for device in devices[:k]]
            for name, algorithm in ALL.items():
                sent, received = traffic(allreduce if name in STARS else algorithm, data)
                row = {'network': network, 'devices': k, 'algorithm': name,
                       'seconds': _median_seconds(partial(algorithm, data), rounds),
                       'model_seconds': COSTS[name](k).seconds(4 * size, alpha, beta),
                       'busiest_bytes': max(sent[d] + received[d] for d in devices[:k])}
                measured.append(row)
                print(f'{network:10} {k:7} {name:16} {row["seconds"] * 1e3:11.3f} '
                      f'{row["model_seconds"] * 1e3:9.3f} {row["busiest_bytes"] / 1e6:10.2f}')
    return {'alpha': alpha, 'beta': beta, 'devices': [str(d) for d in devices],
            'gradient_bytes': {network: 4 * size for network, size in sizes.items()}, 'measured': measured}


def _models() -> Iterator[tuple[str, Callable, str]]:
    """Yield the name, the cost and the label of each curve; algorithms with the same cost share one."""
    for name, cost in COSTS.items():
        same = [other for other in COSTS if COSTS[other] is cost]
        if name == same[0]:
            yield name, cost, ' and '.join(same)


def _measured(costs: dict, network: str, algorithm: str) -> list:
    return [r for r in costs['measured'] if (r['network'], r['algorithm']) == (network, algorithm)]


def draw_times(costs: dict, path) -> None:
    """Plot milliseconds over devices as PNG: lines for the model, markers for the results of `measure`."""
    fig, both = figure((8, 4), ncols=2, sharey=True)
    ks = [2**i for i in range(1, 11)]
    for axes, (network, num_bytes) in zip(both, costs['gradient_bytes'].items()):
        for name, cost, label in _models():
            axes.plot(ks, [cost(k).seconds(num_bytes, costs['alpha'], costs['beta']) * 1e3 for k in ks],
                      color=COLORS[name], label=f'{label}, model')
        for name, marker in zip(ALL, cycle('os^Dv')):
            rows = _measured(costs, network, name)
            axes.plot([r['devices'] for r in rows], [r['seconds'] * 1e3 for r in rows], marker,
                      color=COLORS[name], markerfacecolor='none',  # they can overlap
                      label=f'{name}, measured')
        axes.set_xscale('log', base=2)
        axes.set_yscale('log')
        axes.set_xticks([2, 4, 16, 64, 256, 1024], ['2', '4', '16', '64', '256', '1024'])
        axes.set(title=f'{network}, {num_bytes / 1e6:.1f} MB of gradients', xlabel='devices')
    both[0].set_ylabel('one allreduce (ms)')
    both[0].legend(fontsize=8)
    write_picture(fig, path)


def draw_bytes(costs: dict, path) -> None:
    """Plot the busiest device's bytes over devices as PNG: lines for the model, dots for counted bytes."""
    fig, (axes,) = figure((6.4, 4))
    network, num_bytes = list(costs['gradient_bytes'].items())[-1]
    ks = range(2, 17)
    for name, cost, label in _models():
        axes.plot(ks, [cost(k).busiest * num_bytes / 1e6 for k in ks], color=COLORS[name], label=label)
        rows = [r for r in _measured(costs, network, name) if r['devices'] in ks]
        axes.plot([r['devices'] for r in rows], [r['busiest_bytes'] / 1e6 for r in rows], 'o', color=COLORS[name])
    axes.set(title=f'One allreduce of {network}: bytes at the busiest device',
             xlabel='devices (dots: counted here)', ylabel='sent and received (MB)', xticks=range(2, 17, 2))
    axes.set_ylim(bottom=0)
    in_gradients = (lambda mb: mb * 1e6 / num_bytes, lambda n: n * num_bytes / 1e6)
    axes.secondary_yaxis('right', functions=in_gradients).set_ylabel(f'in gradients of {num_bytes / 1e6:.1f} MB')
    axes.legend()
    write_picture(fig, path)


if __name__ == '__main__':
    sys.exit(main())
