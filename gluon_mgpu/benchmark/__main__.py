"""Command line of the scaling benchmark.

    python -m gluon_mgpu.benchmark              # all GPUs, or one CPU context per core; about 3 minutes on 2 cores
    python -m gluon_mgpu.benchmark --quick      # less than a minute
    python -m gluon_mgpu.benchmark --devices gpu:0-3 --network resnet18 --batch-size 512
    python -m gluon_mgpu.benchmark --dispatch   # also Python's time to start a step on up to 16 devices
    python -m gluon_mgpu.benchmark --network lenet --device-images-per-second 250000    # also expect 16 such GPUs

Two modes: *fixed total* splits the same batch over more devices; with *fixed per device*, the batch grows with the
devices. Speed-up is images/s divided by that of one device; efficiency is speed-up divided by the number of devices. A
round measures each case once, on a new network after warm-up; every second round runs backwards. The tables show
medians over the rounds and, in brackets, the range.

The time of a step is shown in two ways:

- *As trained*, by Python's clock: loading the batch, dispatch (the `train_batch` call, which queues the work) and
  waiting for the devices to finish earlier batches. Much waiting is good: the devices set the pace, not Python.
- *Part by part*, with a wait (``npx.waitall``) after each part. In training the parts overlap, so their sum is greater
  than the step as trained; the difference is the *overlap*. A negative overlap is noise.
"""
from __future__ import annotations

import argparse
import json
import sys

from ..base.flags import Parser, integer_flag, number_flag, path, text
from ..base.machine import versions
from ..checkpoints.run_folder import check_free, new_folder
from ..cost_model.measure import gradient_sizes, measure_link
from ..data import DATASETS, load_data
from ..devices import check_devices, parse_devices
from ..devices.gpus import num_mxnet_gpus, why_no_gpus
from ..mxnet_setup.compat import mx
from ..mxnet_setup.runtime import settings
from . import report
from .expected import BATCHES, LATENCY, Expected, expect
from .measure import DISPATCH_COUNTS, measure_dispatch
from .picture import expected_curves, scaling_curves
from .scaling import plan, scaling
from .workloads import NETWORKS

LINK = 10.0  # GB/s, the default of --link-gigabytes-per-second


def main(argv: list | None = None) -> int:
    """Run the command line and return the exit status."""
    return _parser().run(argv, _run)


def _run(args: argparse.Namespace) -> None:
    # Check everything before writing or measuring anything
    check_free(args.out_dir)
    if args.device_images_per_second and args.network == 'both':
        raise ValueError('--device-images-per-second is for one network: add --network lenet or --network resnet18')
    if args.link_gigabytes_per_second and not args.device_images_per_second:
        raise ValueError('--link-gigabytes-per-second: needs --device-images-per-second')
    dispatch = args.dispatch or args.device_images_per_second is not None
    if not args.devices and not num_mxnet_gpus():
        print(f'{why_no_gpus()}; measuring CPU contexts', flush=True)
    devices = parse_devices(args.devices or ('gpu:all' if num_mxnet_gpus() else 'cpu:all'))
    counts = sorted({*DISPATCH_COUNTS, len(devices)})
    if dispatch:
        check_devices([mx.cpu(i) for i in range(counts[-1])])
    on_cpus = any(device.device_type == 'cpu' for device in devices)
    networks = {name: NETWORKS[name] for name in NETWORKS if args.network in (name, 'both')}
    train_iter, _ = load_data(args.dataset, 1, data_dir=args.data_dir)
    most = train_iter.num_rows // len(devices)  # so that each of very many devices can have a batch of its own
    batch_sizes = {name: args.batch_size or min(most, network.batch_size_on_cpus if on_cpus else network.batch_size)
                   for name, network in networks.items()}
    rounds, fewer = (args.rounds or 2, 4) if args.quick else (args.rounds or 5, 1)
    steps = {name: args.steps or max(2, network.steps // fewer) for name, network in networks.items()}
    cases = plan(batch_sizes, len(devices), train_iter.num_rows)
    machine = report.machine_line(devices)
    about = {'machine': machine, 'devices': [str(device) for device in devices], 'dataset': train_iter.dataset,
             'batch_sizes': batch_sizes, 'num_rounds': rounds, 'steps': steps, **versions(),
             'environment': settings()}
    out_dir = new_folder(args.out_dir, 'benchmark', 'scaling.json', about)
    files = [out_dir / 'scaling.json', out_dir / 'scaling.png']

    print(f'{machine}, {train_iter.dataset}, {rounds} rounds', flush=True)
    results = {'results': scaling(cases, devices, train_iter, rounds, steps)}
    _print(report.scaling_table(results['results']), report.shares_table(results['results']))
    scaling_curves(results['results'], files[1], machine)
    if dispatch:
        results['dispatch'] = [line for name in networks for line in measure_dispatch(name, counts)]
        _print(report.dispatch_table(results['dispatch']))
        files += _expect(args, results, devices, batch_sizes, out_dir)
    files[0].write_text(json.dumps({**about, **results}, indent=2) + '\n')
    _print([', '.join(map(str, files))])


def _print(*tables: list) -> None:
    for table in tables:
        print('', *table, sep='\n', flush=True)


def _expect(args, results: dict, devices: list, batch_sizes: dict, out_dir) -> list:
    """Print the model's steps, next to the measured ones and, on request, for other devices. Return the files."""
    sizes = gradient_sizes()

    def model(network: str, rows: int, k: int, rate: float, alpha: float, beta: float) -> Expected:
        dispatch = {d['devices']: d['cpu_ms'] / 1000 for d in results['dispatch'] if d['network'] == network}
        return expect(rows, k, rate, alpha, beta, dispatch, 4 * sizes[report.TITLES[network]])

    if len(devices) > 1:
        alpha, beta = measure_link(*devices[:2])
        rate = {(r['network'], r['mode']): r['images_per_second'] for r in results['results'] if r['num_devices'] == 1}
        _print(report.comparison_table(results['results'], [
            model(r['network'], r['rows'], r['num_devices'], rate[r['network'], r['mode']], alpha, beta)
            for r in results['results']]))
    if not args.device_images_per_second:
        return []
    name, gigabytes = args.network, args.link_gigabytes_per_second or LINK
    expected = [model(name, factor * batch_sizes[name], k, args.device_images_per_second, LATENCY, 1e-9 / gigabytes)
                for factor in BATCHES for k in DISPATCH_COUNTS]
    heading = (f'{report.TITLES[name]} on devices that compute {args.device_images_per_second:,.0f} images/s each, '
               f'a link of {gigabytes:g} GB/s, dispatch as measured')
    _print([f'expected: {heading}', *report.expected_table(expected, name)])
    expected_curves(expected, out_dir / 'expected.png', heading)
    results['expected'] = [{**e._asdict(), 'step': e.step, 'pace': e.pace} for e in expected]
    return [out_dir / 'expected.png']


def _parser() -> Parser:
    parser = Parser('gluon_mgpu.benchmark',
                    'Measure how training scales from one device to all, and where the time of a step goes.')
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
    parser.add_argument('--dispatch', action='store_true',
                        help='also measure how long Python needs to start a step on 1 to 16 CPU contexts')
    parser.add_argument('--device-images-per-second', type=number_flag(), metavar='RATE',
                        help='also plot the expected speed on 1 to 16 devices of this speed, such as GPUs, with the '
                             'measured dispatch; needs --network and implies --dispatch')
    parser.add_argument('--link-gigabytes-per-second', type=number_flag(), metavar='RATE',
                        help=f'speed of the link between those devices (default: {LINK}, PCIe 3.0 x16)')
    parser.add_argument('--dataset', choices=DATASETS, default='glyphs', help='(default: %(default)s)')
    parser.add_argument('--data-dir', type=path, metavar='DIR', help='folder that contains fashion-mnist/ and mnist/')
    parser.add_argument('--out-dir', type=path, metavar='DIR',
                        help='new folder for scaling.json and scaling.png (default: runs/benchmark-DATE-TIME)')
    return parser


if __name__ == '__main__':
    sys.exit(main())
