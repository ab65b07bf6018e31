"""Command line that measures allreduce and plots its cost next to the alpha-beta model; see docs/allreduce.md.

    python -m gluon_mgpu.cost_model                                    # all GPUs, or four CPU contexts
    python -m gluon_mgpu.cost_model --devices cpu:0-3 --out-dir costs
"""
from __future__ import annotations

import argparse
import json
import sys

from ..base.files import write_atomically
from ..base.flags import Parser, integer_flag, path, text
from ..base.machine import num_cores, processor, versions
from ..checkpoints.run_folder import check_free, new_folder
from ..devices import parse_devices
from ..devices.gpus import num_mxnet_gpus
from ..mxnet_setup.runtime import settings
from .measure import measure
from .picture import draw_bytes, draw_times


def main(argv: list | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = Parser('gluon_mgpu.cost_model',
                    'Measure allreduce on several devices and plot its expected cost on up to 1024.')
    parser.add_argument('--devices', type=text, metavar='LIST',
                        help="two or more devices, such as 'gpu:0,gpu:1' or 'cpu:0-3' (default: gpu:all, or cpu:0-3 "
                             'without a GPU)')
    parser.add_argument('--rounds', type=integer_flag(), default=9, metavar='N',
                        help='number of measurements for each median (default: %(default)s)')
    parser.add_argument('--out-dir', type=path, metavar='DIR',
                        help='new folder for costs.json, allreduce.png and bytes.png '
                             '(default: runs/cost_model-DATE-TIME)')
    return parser.run(argv, _run)


def _run(args: argparse.Namespace) -> None:
    check_free(args.out_dir)
    names = args.devices or ('gpu:all' if num_mxnet_gpus() else 'cpu:0-3')
    devices = parse_devices(names)
    if len(devices) < 2:
        raise ValueError(f'--devices {names}: an allreduce needs two or more devices')
    about = {'processor': processor(), 'num_cores': num_cores(), **versions(), 'environment': settings()}
    out_dir = new_folder(args.out_dir, 'cost_model')
    costs = measure(devices, args.rounds)
    write_atomically(out_dir / 'costs.json', json.dumps({**costs, **about}, indent=2).encode())
    draw_times(costs, out_dir / 'allreduce.png')
    draw_bytes(costs, out_dir / 'bytes.png')
    print(f'{out_dir}: costs.json, allreduce.png, bytes.png')


if __name__ == '__main__':
    sys.exit(main())
