"""Command line of the check: ``python -m gluon_mgpu check mymodule:make mymodule:train_batch``."""
import argparse
import contextlib
import faulthandler
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy

from ...base.flags import Parser, text
from ...base.program import BAD_INPUT, FAILED, JobError, engine_line, warn
from ...base.text import print_text
from ...devices import parse_devices
from ...distributed.horovod_workers import HorovodWorkers
from . import check_data_parallel

RANDOM_IMAGES = 'X has random images, (256, 1, 28, 28): for other inputs, name MODULE:batches as well'


def main(argv: list | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = Parser('gluon_mgpu check', 'Compare your training step on several devices with the same step on one.',
                    epilog='Exit status: 0 if the step is right, 1 if it is wrong, 2 if it was not checked.')
    parser.add_argument('make', metavar='MODULE:make', help='make(devices) returns networks, Trainers or arrays')
    parser.add_argument('train_batch', metavar='MODULE:train_batch', help='train_batch(state, X, y, devices)')
    parser.add_argument('batches', metavar='MODULE:batches', nargs='?',
                        help='list of (X, y), or a function that returns it (default: random 28x28 images)')
    parser.add_argument('--devices', metavar='LIST', type=text, help="such as 'cpu:0-3' (default: cpu:0-2)")
    parser.add_argument('--horovod', action='store_true', help='check all workers of a job; make(devices, workers)')
    return parser.run(argv, _run)


def _run(args: argparse.Namespace) -> None:
    if sys.__stderr__ and not faulthandler.is_enabled():
        faulthandler.enable(sys.__stderr__)  # shows the line if MXNet crashes, as for an array without rows
    sys.argv = sys.argv[:1]  # for a module that reads its own arguments
    with _errors_of_user():
        make, train_batch = _load(args.make), _load(args.train_batch)
        batches = _load(args.batches) if args.batches else _random_images
        batches = batches() if callable(batches) else batches
    advice = '' if args.batches else f'; {RANDOM_IMAGES}'
    os.environ.setdefault('GLUON_MGPU_EXCHANGE_TIMEOUT', '60')  # seconds; a step takes milliseconds
    with HorovodWorkers(program='check') if args.horovod else contextlib.nullcontext() as workers:
        with _errors_of_user(advice):
            devices = parse_devices(args.devices) if args.devices else None
            report = check_data_parallel(make, train_batch, batches, devices, workers)
        if not workers or workers.rank == 0:
            print_text(*str(report).splitlines())
        if not report.ok:
            raise JobError('', FAILED if report.is_checked else BAD_INPUT, on_all_ranks=True)


@contextlib.contextmanager
def _errors_of_user(advice: str = '') -> Iterator[None]:
    """Print the traceback of errors in the user's code, without the calls of others, and end with status 2."""
    try:
        yield
    except JobError:
        raise
    except (Exception, SystemExit) as error:
        trace = traceback.TracebackException.from_exception(error)
        frames = zip(trace.stack, traceback.walk_tb(error.__traceback__))
        users = [summary for summary, (frame, _) in frames if _is_users(frame)]
        line = engine_line(error) if isinstance(error, Exception) else ''
        # A TypeError without a call of the user's code: a function with other arguments
        if not users and (line or isinstance(error, (TypeError, ValueError, OSError))):
            raise JobError(line or str(error), BAD_INPUT) from None
        trace.stack = traceback.StackSummary.from_list(users or trace.stack)
        warn(*''.join(trace.format()).rstrip().split('\n'))  # here, because Python's status would be 1: wrong
        raise JobError((line or 'nothing was checked because of the error above') + advice, BAD_INPUT) from None


def _random_images() -> list:
    X = numpy.random.default_rng(0).normal(size=(256, 1, 28, 28))
    return [(X, numpy.arange(256, dtype='int32') % 10)]


def _load(name: str) -> Any:
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        if any(_is_users(frame) for frame, _ in traceback.walk_tb(error.__traceback__)):  # in the module
            raise
        raise ValueError(f'{name!r} cannot be loaded ({error}): write MODULE:NAME, such as train:make for make in '
                         'train.py') from None


def _is_users(frame: FrameType) -> bool:
    """Return True for a call of code outside this package and those that it uses."""
    package = frame.f_globals.get('__name__', '').partition('.')[0]
    return package not in {'gluon_mgpu', 'mxnet', 'numpy', 'horovod', *sys.stdlib_module_names}


if __name__ == '__main__':
    sys.exit(main())
