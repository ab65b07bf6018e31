"""How does it scale? The networks of both chapters on 1, 2, ... k devices of this machine.

    python -m gluon_mgpu.benchmark              # all GPUs, else a CPU context per core; about 3 minutes on 2 cores
    python -m gluon_mgpu.benchmark --quick      # less than a minute
    python -m gluon_mgpu.benchmark --devices gpu:0-3 --network resnet18 --batch-size 512
    python -m gluon_mgpu.benchmark --dispatch   # and what Python needs to start a step, up to 16 devices
    python -m gluon_mgpu.benchmark --network lenet --device-images-per-second 250000    # and what 16 such GPUs would do

Two modes: with a *fixed total* the same batch is split over more devices; with *fixed per device* the batch
grows with the devices. Speed-up is images/s divided by that of one device; efficiency is speed-up divided by
the devices. A round measures every case once, on a fresh network after steps that warm it up; every second
goes backwards. The tables show the medians of the rounds and, in brackets, the least and the greatest.

Where the time of a step goes is shown twice, since devices compute while Python goes on:

- *As trained*, by Python's clock: loading the batch, dispatching (the call of `train_batch`, which queues the
  work), and waiting, for the devices to finish earlier batches. The three are the step. Much waiting is good:
  it means that the devices, not Python, set the pace.
- *One part after the other*: the same step with a wait (``npx.waitall``) after each of its parts. The parts
  overlap in training, so that their sum is more than the step as trained: the difference is the *overlap*.
  Below zero it is noise: the two are measured one after the other.
"""
from __future__ import annotations

import argparse
import json
import sys

from ..base.machine import versions
from ..base.program import Parser, exit_status, number, text
from ..checkpoints.run_folder import check_free, new_folder
from ..cost_model.measure import gradient_sizes, measure_link
from ..data import DATASETS, load_data
from ..devices import check_devices, parse_devices
from ..devices.gpus import num_mxnet_gpus, why_no_gpus
from ..mxnet_setup.compat import mx
from ..mxnet_setup.runtime import settings
from .expected import BATCHES, LATENCY, expect
from .measure import DISPATCH_COUNTS, measure_dispatch
from .picture import expected_curves, scaling_curves
from .report import (
    TITLES,
    comparison_table,
    dispatch_table,
    expected_table,
    machine_line,
    scaling_table,
    shares_table,
)
from .scaling import plan, scaling
from .workloads import NETWORKS


def main(argv: list | None = None) -> int:
    """The command line: ``python -m gluon_mgpu.benchmark --help``. Returns the exit status."""
    args = _parser().parse_args(argv)
    return exit_status('benchmark', lambda: _run(args))


def _run(args: argparse.Namespace) -> None:
    # All that can be refused is refused before anything is written or measured
    check_free(args.out_dir)
    if args.device_images_per_second and args.network == 'both':
        raise ValueError('--device-images-per-second is of one network: add --network lenet or --network resnet18')
    args.dispatch = args.dispatch or args.device_images_per_second is not None
    if not args.devices and not num_mxnet_gpus():
        print(f'{why_no_gpus()}: measuring CPU contexts', flush=True)
    devices = parse_devices(args.devices or ('gpu:all' if num_mxnet_gpus() else 'cpu:all'))
    if args.dispatch:
        check_devices([mx.cpu(i) for i in range(max(DISPATCH_COUNTS))])
    networks = list(NETWORKS) if args.network == 'both' else [args.network]
    on_cpus = any(device.device_type == 'cpu' for device in devices)
    batch_sizes = {name: args.batch_size or (NETWORKS[name].batch_size_on_cpus if on_cpus else
                                             NETWORKS[name].batch_size) for name in networks}
    rounds, fewer = (args.rounds or 2, 4) if args.quick else (args.rounds or 5, 1)
    steps = {name: args.steps or max(2, NETWORKS[name].steps // fewer) for name in networks}
    train_iter, _ = load_data(args.dataset, 1, data_dir=args.data_dir)
    cases = plan(batch_sizes, len(devices), train_iter.num_rows)
    machine = machine_line(devices)
    about = {'machine': machine, 'devices': [str(device) for device in devices], 'dataset': train_iter.dataset,
             'batch_sizes': batch_sizes, 'num_rounds': rounds, 'steps': steps, **versions(),
             'environment': settings()}
    out_dir = new_folder(args.out_dir, 'benchmark', 'scaling.json', about)
    print(f'{machine}, {train_iter.dataset}, {rounds} rounds', flush=True)

    results = {'results': scaling(cases, devices, train_iter, rounds, steps)}
    print('', *scaling_table(results['results']), '', *shares_table(results['results']), sep='\n', flush=True)
    if args.dispatch:
        results['dispatch'] = [line for name in networks for line in measure_dispatch(name)]
        print('', *dispatch_table(results['dispatch']), sep='\n', flush=True)
        _expected(args, results, devices, batch_sizes, out_dir)
    (out_dir / 'scaling.json').write_text(json.dumps({**about, **results}, indent=2) + '\n')
    scaling_curves(results['results'], out_dir / 'scaling.png', machine)
    pictures = [out_dir / 'scaling.png', *[out_dir / 'expected.png'] * bool(args.device_images_per_second)]
    print('', ', '.join(map(str, [out_dir / 'scaling.json', *pictures])), sep='\n')


def _expected(args, results: dict, devices: list, batch_sizes: dict, out_dir) -> None:
    """Tell what the model expects: beside what was measured here and, if asked for, of other devices."""
    sizes = gradient_sizes()
    num_bytes = {name: 4 * sizes[TITLES[name]] for name in batch_sizes}
    dispatch = {name: {d['devices']: d['cpu_ms'] / 1000 for d in results['dispatch'] if d['network'] == name}
                for name in batch_sizes}
    if len(devices) > 1:
        alpha, beta = measure_link(*devices[:2])
        rate = {(r['network'], r['mode']): r['images_per_second'] for r in results['results'] if r['num_devices'] == 1}
        beside = [expect(r['rows'], r['num_devices'], rate[r['network'], r['mode']], dispatch[r['network']],
                         num_bytes[r['network']], alpha, beta) for r in results['results']]
        print('', *comparison_table(results['results'], beside), sep='\n', flush=True)
    if args.device_images_per_second:
        name, gigabytes = args.network, args.link_gigabytes_per_second
        expected = [expect(factor * batch_sizes[name], k, args.device_images_per_second, dispatch[name],
                           num_bytes[name], LATENCY, 1e-9 / gigabytes) for factor in BATCHES for k in DISPATCH_COUNTS]
        heading = (f'{TITLES[name]} on devices that compute {args.device_images_per_second:,.0f} images/s each\n'
                   f'a link of {gigabytes:g} GB/s, dispatch as measured')
        print('', f'expected: {heading}'.replace('\n', ', '), *expected_table(expected, name), sep='\n', flush=True)
        expected_curves(expected, out_dir / 'expected.png', heading)
        results['expected'] = [{**e._asdict(), 'step': e.step, 'pace': e.pace} for e in expected]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog='python -m gluon_mgpu.benchmark',
        description='Measure how training scales from one device to all, and where the time of a step goes.')
    parser.add_argument('--devices', type=text, metavar='LIST',
                        help="'gpu:0,gpu:1', 'cpu:0-3', ... (default: gpu:all, without a GPU cpu:all, one per "
                             'core)')
    parser.add_argument('--network', choices=[*NETWORKS, 'both'], default='both', help='(default: %(default)s)')
    parser.add_argument('--batch-size', type=number(int), metavar='ROWS',
                        help='images in a batch: over all devices in the first mode, on each in the second '
                             '(default: 256; ResNet-18 on CPU contexts: 64)')
    parser.add_argument('--steps', type=number(int), metavar='N',
                        help='steps to measure per round, after the warm-up (default: LeNet 40, ResNet-18 5)')
    parser.add_argument('--rounds', type=number(int), metavar='N', help='(default: 5)')
    parser.add_argument('--quick', action='store_true', help='a quarter of the steps and 2 rounds, unless given')
    parser.add_argument('--dispatch', action='store_true',
                        help='also measure what Python needs to start a step on 1 to 16 CPU contexts')
    parser.add_argument('--device-images-per-second', type=number(float), metavar='RATE',
                        help='also draw what the --network would do on 1 to 16 devices that compute so many images/s '
                             'each, such as GPUs, with dispatch as measured here (implies --dispatch)')
    parser.add_argument('--link-gigabytes-per-second', type=number(float), default=10.0, metavar='RATE',
                        help='of the link between those devices (default: %(default)s, PCIe 3.0 with 16 lanes)')
    parser.add_argument('--dataset', choices=DATASETS, default='glyphs', help='(default: %(default)s)')
    parser.add_argument('--data-dir', type=text, metavar='DIR', help='folder that holds fashion-mnist/ and mnist/')
    parser.add_argument('--out-dir', type=text, metavar='DIR',
                        help='new folder for scaling.json and scaling.png (default: runs/benchmark-DATE-TIME)')
    return parser


if __name__ == '__main__':
    sys.exit(main())
