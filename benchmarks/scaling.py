"""Scaling of both chapters' training on 1, 2, ... k devices of this machine.

    python benchmarks/scaling.py              # all GPUs, or one CPU context per core; about 3 minutes on 2 cores
    python benchmarks/scaling.py --quick      # less than a minute
    python benchmarks/scaling.py --devices gpu:0-3 --network resnet18 --batch-size 512

Trains as the chapters do, in two modes: *fixed total* splits the same batch over more devices; with *fixed per device*,
the batch grows with the devices. Speed-up is images/s divided by that of one device; efficiency is speed-up divided by
the number of devices. A round measures each case once, on a new network after warm-up; every second round runs
backwards. The table shows medians over the rounds and, in brackets, the range.
"""
from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package beside benchmarks/, installed or not

from harness.flags import positive_integer

from gluon_mgpu import concise, scratch
from gluon_mgpu.base.files import write_atomically
from gluon_mgpu.base.flags import Parser, path, text
from gluon_mgpu.base.machine import num_cores, processor, versions
from gluon_mgpu.base.pictures import in_lines, write_picture
from gluon_mgpu.checkpoints.run_folder import check_free, new_folder
from gluon_mgpu.data import DATASETS, load_data
from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.devices import parse_devices
from gluon_mgpu.devices.gpus import num_mxnet_gpus, why_no_gpus
from gluon_mgpu.devices.nvidia_driver import ask_driver
from gluon_mgpu.mxnet_setup.compat import mx
from gluon_mgpu.mxnet_setup.runtime import environment
from gluon_mgpu.outputs.plot import figure
from gluon_mgpu.training.run import Run

MODES = ('fixed total', 'fixed per device')


class Network(NamedTuple):
    """A chapter's network, and how it is measured by default."""

    title: str
    train: Callable
    lr: float
    batch_size: int
    batch_size_on_cpus: int
    warm_up: int  # steps before those that are measured
    steps: int


NETWORKS = {
    'lenet': Network('LeNet', scratch.train, 0.2, 256, 256, warm_up=5, steps=40),
    # A row takes about 20 MB: 256 on each of many cores is more than most machines have
    'resnet18': Network('ResNet-18', concise.train, 0.1, 256, 64, warm_up=1, steps=5),
}


class Case(NamedTuple):
    """A network, a number of devices and a batch size to measure."""

    network: str      # key of NETWORKS
    num_devices: int
    rows: int         # in a batch, over all devices


def main(argv: list | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = Parser('scaling', 'Measure how training scales from one device to all.')
    parser.prog = 'python benchmarks/scaling.py'
    parser.add_argument('--devices', type=text, metavar='LIST',
                        help="such as 'gpu:0,gpu:1' or 'cpu:0-3' (default: gpu:all, or cpu:all without a GPU)")
    parser.add_argument('--network', choices=[*NETWORKS, 'both'], default='both', help='(default: %(default)s)')
    parser.add_argument('--batch-size', type=positive_integer, metavar='ROWS',
                        help='images in a batch: on all devices together with a fixed total, else on each device '
                             '(default: 256; ResNet-18 on CPU contexts: 64)')
    parser.add_argument('--steps', type=positive_integer, metavar='N',
                        help='steps to measure per round, after the warm-up (default: LeNet 40, ResNet-18 5)')
    parser.add_argument('--rounds', type=positive_integer, metavar='N', help='(default: 5)')
    parser.add_argument('--quick', action='store_true',
                        help='by default, a quarter of the steps, at least 2, and 2 rounds')
    parser.add_argument('--dataset', choices=DATASETS, default='glyphs', help='(default: %(default)s)')
    parser.add_argument('--data-dir', type=path, metavar='DIR', help='folder that contains fashion-mnist/ and mnist/')
    parser.add_argument('--out-dir', type=path, metavar='DIR',
                        help='new folder for scaling.json and scaling.png (default: runs/scaling-DATE-TIME)')
    return parser.run(argv, _run)


def _run(args: argparse.Namespace) -> None:
    # Check everything before writing or measuring anything
    check_free(args.out_dir)
    if not args.devices and not num_mxnet_gpus():
        print(f'{why_no_gpus()}; measuring CPU contexts', flush=True)
    devices = parse_devices(args.devices or ('gpu:all' if num_mxnet_gpus() else 'cpu:all'))
    on_cpus = any(device.device_type == 'cpu' for device in devices)
    networks = {name: NETWORKS[name] for name in NETWORKS if args.network in (name, 'both')}
    train_iter, _ = load_data(args.dataset, 1, data_dir=args.data_dir)
    most = train_iter.num_rows // len(devices)  # so that each of very many devices can have a batch of its own
    batch_sizes = {name: args.batch_size or min(most, network.batch_size_on_cpus if on_cpus else network.batch_size)
                   for name, network in networks.items()}
    rounds, fewer = (args.rounds or 2, 4) if args.quick else (args.rounds or 5, 1)
    steps = {name: args.steps or max(2, network.steps // fewer) for name, network in networks.items()}
    cases = plan(batch_sizes, len(devices), train_iter.num_rows)
    machine = machine_line(devices)
    about = {'machine': machine, 'devices': [str(device) for device in devices], 'dataset': train_iter.dataset,
             'batch_sizes': batch_sizes, 'num_rounds': rounds, 'steps': steps, **versions(),
             'environment': environment()}
    out_dir = new_folder(args.out_dir, 'scaling')

    print(fill(machine, 80), f'{train_iter.dataset}, {rounds} rounds', sep='\n', flush=True)
    results = measure(cases, devices, train_iter, rounds, steps)
    print('', table(results), '', sep='\n')
    write_atomically(out_dir / 'scaling.json', json.dumps({**about, 'results': results}, indent=2).encode())
    chart(results, out_dir / 'scaling.png', machine)
    print(f'{out_dir}: scaling.json, scaling.png')


def device_counts(k: int) -> list[int]:
    """Return 1, 2, ... k or, for k above 4, the powers of two below k, and k: 6 -> [1, 2, 4, 6]."""
    if k <= 4:
        return list(range(1, k + 1))
    return [2**i for i in range((k - 1).bit_length())] + [k]


def plan(batch_sizes: dict[str, int], num_devices: int, num_rows: int) -> dict[tuple[str, str, int], Case]:
    """Return the cases to measure: (network, mode, number of devices) -> Case.

    On one device, both modes are the same case. `batch_sizes` has the rows per network: on all devices together in the
    first mode, on each device in the second. Raises ValueError if a batch has fewer rows than devices, or more than
    `num_rows`, the size of the dataset.
    """
    cases = {(network, mode, k): Case(network, k, rows * k if mode == 'fixed per device' else rows)
             for network, rows in batch_sizes.items() for mode in MODES for k in device_counts(num_devices)}
    for case in cases.values():
        if not case.num_devices <= case.rows <= num_rows:
            raise ValueError(f'a batch of {case.rows:,} rows on {case.num_devices} device(s): must have a row for each '
                             f'device, and at most the {num_rows:,} rows of the dataset; change --batch-size')
    return cases


def measure(cases: dict, devices: list, train_iter: BatchIterator, rounds: int, steps: dict[str, int]) -> list[dict]:
    """Measure each case from `plan` once per round, on `steps` of its network; return a `summary` of each; blocks."""
    rates: dict[Case, list[float]] = {case: [] for case in cases.values()}  # images/s in each round
    for number in range(rounds):
        for case in list(rates)[::-1 if number % 2 else 1]:
            rates[case].append(images_per_second(case, devices, train_iter, steps[case.network]))
        print(f'round {number + 1} of {rounds} done', flush=True)
    return [summary(case, mode, rates[case], rates[cases[network, mode, 1]])
            for (network, mode, _), case in cases.items()]


def images_per_second(case: Case, devices: list, train_iter: BatchIterator, steps: int) -> float:
    """Train a new network as its chapter does, for a warm-up and then `steps`; return the speed of these."""
    network, run, seconds = NETWORKS[case.network], Run(1, quiet=True), []
    source = _full_batches(train_iter, case.rows)

    def batches() -> Iterator:
        yield from islice(source, network.warm_up)
        run.synchronize()
        seconds.append(run.state()['seconds'])
        yield from islice(source, steps)

    X, y = next(source)
    network.train(case.num_devices, case.rows, network.lr, devices=devices[:case.num_devices],
                  data=(batches(), [(X[:1], y[:1])]), run=run)  # evaluates one row
    return steps * case.rows / (run.history[0].seconds - seconds[0])


def _full_batches(train_iter: BatchIterator, rows: int) -> Iterator:
    """Yield batches of `rows` rows without end."""
    train_iter = copy.copy(train_iter)
    train_iter.batch_size = rows
    while True:
        yield from (batch for batch in train_iter if len(batch[0]) == rows)


def summary(case: Case, mode: str, rates: list[float], rates_on_one: list[float]) -> dict:
    """Return the results of a case, medians and ranges, from the images/s of each round on its devices and on one.

    The speed-up is the median of the ratios in each round.
    """
    speed_ups = [rate / on_one for rate, on_one in zip(rates, rates_on_one)]
    return {**case._asdict(), 'mode': mode, 'images_per_second': median(rates),
            'images_per_second_range': [min(rates), max(rates)], 'images_per_second_by_round': rates,
            'speed_up': median(speed_ups), 'speed_up_range': [min(speed_ups), max(speed_ups)],
            'efficiency': median(speed_ups) / case.num_devices, 'ms_per_step': 1000 * case.rows / median(rates)}


def machine_line(devices: list) -> str:
    """Return one line with the devices, the processor and MXNet's version."""
    numbers = [device.device_id for device in devices if device.device_type == 'gpu']
    names = [gpu.name for gpu in ask_driver().gpus if gpu.index in numbers]
    names += ['CPU context'] * (len(devices) - len(numbers))
    facts = [f'{names.count(name)} x {name}' for name in dict.fromkeys(names)]
    return ', '.join([*facts, f'{num_cores()} cores of {processor()}', f'MXNet {mx.__version__}'])


def table(results: list) -> str:
    """Return the results as aligned text."""
    row = '{:9} {:16} {:>7} {:>6} {:>9} {:>8} {:17}'.format
    lines = [row('network', 'mode', 'devices', 'batch', 'images/s', 'speed-up', '')]
    for r in results:
        low, high = r['speed_up_range']
        lines.append(row(NETWORKS[r['network']].title, r['mode'], r['num_devices'], r['rows'],
                         f'{r["images_per_second"]:,.0f}', f'{r["speed_up"]:.2f}', f'({low:.2f} to {high:.2f})'))
    return '\n'.join(lines)


def chart(results: list, path, title: str) -> None:
    """Draw the speed-ups over devices, with the ideal line, as PNG."""
    fig, (axes,) = figure((7.2, 5.4))
    axes.set_title(in_lines(title), fontsize='medium')
    most = max(r['num_devices'] for r in results)
    axes.plot([1, most], [1, most], '--', color='0.5', label='ideal')
    cases = list(dict.fromkeys((r['network'], r['mode']) for r in results))
    for i, (network, mode) in enumerate(cases):
        points = [r for r in results if (r['network'], r['mode']) == (network, mode)]
        size = 4 + 2 * (len(cases) - 1 - i)  # later lines are thinner, so that they do not hide equal ones
        y = [r['speed_up'] for r in points]
        spread = [[r['speed_up'] - r['speed_up_range'][0] for r in points],
                  [r['speed_up_range'][1] - r['speed_up'] for r in points]]
        axes.errorbar([r['num_devices'] for r in points], y, yerr=spread, fmt='os^D'[i] + '-', markersize=size,
                      capsize=size, linewidth=size / 4,
                      label=f'{NETWORKS[network].title}, {mode}: {y[-1]:.2f} on {points[-1]["num_devices"]}')
    axes.set(xlabel='devices', ylabel='speed-up (images/s, divided by that of one device)',
             xticks=sorted({r['num_devices'] for r in results}))
    axes.set_ylim(bottom=0)
    axes.legend(loc='lower right')
    write_picture(fig, path)


if __name__ == '__main__':
    sys.exit(main())
