"""Command line of the scaling benchmark.

    python -m gluon_mgpu.benchmark              # all GPUs, or one CPU context per core; about 3 minutes on 2 cores
    python -m gluon_mgpu.benchmark --quick      # less than a minute
    python -m gluon_mgpu.benchmark --devices gpu:0-3 --network resnet18 --batch-size 512

Trains as the chapters do, in two modes: *fixed total* splits the same batch over more devices; with *fixed per device*,
the batch grows with the devices. Speed-up is images/s divided by that of one device; efficiency is speed-up divided by
the number of devices. A round measures each case once, on a new network after warm-up; every second round runs
backwards. The table shows medians over the rounds and, in brackets, the range.
"""
from __future__ import annotations

import argparse
import json
import sys

from ..base.files import write_atomically
from ..base.flags import Parser, integer_flag, path, text
from ..base.machine import versions
from ..checkpoints.run_folder import check_free, new_folder
from ..data import DATASETS, load_data
from ..devices import parse_devices
from ..devices.gpus import num_mxnet_gpus, why_no_gpus
from ..mxnet_setup.runtime import settings
from .report import chart, machine_line, table
from .scaling import NETWORKS, plan, scaling


def main(argv: list | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = Parser('gluon_mgpu.benchmark', 'Measure how training scales from one device to all.')
    parser.add_argument('--devices', type=text, metavar='LIST',
                        help="such as 'gpu:0,gpu:1' or 'cpu:0-3' (default: gpu:all, or cpu:all without a GPU)")
    parser.add_argument('--network', choices=[*NETWORKS, 'both'], default='both', help='(default: %(default)s)')
    parser.add_argument('--batch-size', type=integer_flag(), metavar='ROWS',
                        help='images in a batch: on all devices together with a fixed total, else on each device '
                             '(default: 256; ResNet-18 on CPU contexts: 64)')
    parser.add_argument('--steps', type=integer_flag(), metavar='N',
                        help='steps to measure per round, after the warm-up (default: LeNet 40, ResNet-18 5)')
    parser.add_argument('--rounds', type=integer_flag(), metavar='N', help='(default: 5)')
    parser.add_argument('--quick', action='store_true',
                        help='by default, a quarter of the steps, at least 2, and 2 rounds')
    parser.add_argument('--dataset', choices=DATASETS, default='glyphs', help='(default: %(default)s)')
    parser.add_argument('--data-dir', type=path, metavar='DIR', help='folder that contains fashion-mnist/ and mnist/')
    parser.add_argument('--out-dir', type=path, metavar='DIR',
                        help='new folder for scaling.json and scaling.png (default: runs/benchmark-DATE-TIME)')
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
             'batch_sizes': batch_sizes, 'num_rounds': rounds, 'steps': steps, **versions(), 'environment': settings()}
    out_dir = new_folder(args.out_dir, 'benchmark')

    print(f'{machine}, {train_iter.dataset}, {rounds} rounds', flush=True)
    results = scaling(cases, devices, train_iter, rounds, steps)
    print('', table(results), '', sep='\n')
    write_atomically(out_dir / 'scaling.json', json.dumps({**about, 'results': results}, indent=2).encode())
    chart(results, out_dir / 'scaling.png', machine)
    print(f'{out_dir}: scaling.json, scaling.png')


if __name__ == '__main__':
    sys.exit(main())
