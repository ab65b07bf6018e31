"""Command line of the check: ``python -m gluon_mgpu.check mymodule:make mymodule:train_batch``."""
from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import sys
from typing import Any

import numpy

from ..base.flags import Parser, text
from ..base.program import JobError
from ..devices import parse_devices
from ..distributed.horovod_workers import HorovodWorkers
from . import check_data_parallel


def main(argv: list | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = Parser('gluon_mgpu.check', 'Compare your training step on several devices with the same step on one.',
                    epilog='Exit status: 0 if the step is right, 1 if it is wrong.')
    parser.add_argument('make', metavar='MODULE:make', help='make(devices) returns networks, Trainers or arrays')
    parser.add_argument('train_batch', metavar='MODULE:train_batch', help='train_batch(state, X, y, devices)')
    parser.add_argument('batches', metavar='MODULE:batches', nargs='?', default=f'{__package__}.__main__:random_images',
                        help='list of (X, y), or a function that returns it (default: random 28x28 images)')
    parser.add_argument('--devices', metavar='LIST', type=text, help="such as 'cpu:0-3' (default: cpu:0-2)")
    parser.add_argument('--horovod', action='store_true', help='check all workers of a job; make(devices, workers)')
    return parser.run(argv, _run)


def _run(args: argparse.Namespace) -> None:
    if sys.__stderr__ and not faulthandler.is_enabled():
        faulthandler.enable(sys.__stderr__)  # shows the line if MXNet crashes, as for an array without rows in float64
    make, train_batch, batches = map(_load, (args.make, args.train_batch, args.batches))
    batches = batches() if callable(batches) else batches
    with HorovodWorkers(program='check') if args.horovod else contextlib.nullcontext() as workers:
        devices = parse_devices(args.devices) if args.devices else None
        report = check_data_parallel(make, train_batch, batches, devices, workers=workers)
        if not workers or workers.rank == 0:
            print(report)
        if not report.ok:
            raise JobError('', on_all_ranks=True)


def _load(name: str) -> Any:
    """Return the object that ``module:name`` names."""
    module, _, attribute = name.partition(':')
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # TypeError: './train'
        raise ValueError(f'{name!r} cannot be loaded ({error}): write MODULE:NAME, such as train:make for make in '
                         'train.py') from None


def random_images() -> list:
    """Return a batch of random images and labels."""
    rng = numpy.random.default_rng(0)
    return [(rng.normal(size=(256, 1, 28, 28)).astype('float32'), rng.integers(0, 10, 256).astype('int32'))]


if __name__ == '__main__':
    sys.exit(main())
