"""Command line of the check: ``python -m gluon_mgpu check mymodule:make mymodule:train_batch``."""
from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import inspect
import re
import sys
import traceback
from types import FrameType
from typing import Any

import numpy

from ...base.flags import Parser, text
from ...base.program import BAD_INPUT, FAILED, JobError, engine_line, warn
from ...base.text import print_text
from ...devices import parse_devices
from ...distributed.horovod_workers import HorovodWorkers
from . import check_data_parallel


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
    try:
        _check(args)
    except JobError:
        raise
    except Exception as error:
        line = engine_line(error)
        trace = traceback.TracebackException.from_exception(error)
        frames = zip(trace.stack, traceback.walk_tb(error.__traceback__))
        users = [summary for summary, (frame, _) in frames if _is_users(frame)]
        if users or not (line or isinstance(error, (ValueError, OSError))):
            trace.stack = traceback.StackSummary.from_list(users or trace.stack)  # those of MXNet would be longer
            warn(*''.join(trace.format()).rstrip().split('\n'))  # here, because Python's status would be 1: wrong
            line = line or 'nothing was checked because of the error above'
        if not line:
            raise
        if not args.batches:
            line += '; X has random images, (256, 1, 28, 28): for other inputs, name MODULE:batches as well'
        raise JobError(line, BAD_INPUT) from None


def _check(args: argparse.Namespace) -> None:
    if sys.__stderr__ and not faulthandler.is_enabled():
        faulthandler.enable(sys.__stderr__)  # shows the line if MXNet crashes, as for an array without rows in float64
    make, train_batch, rng = _load(args.make), _load(args.train_batch), numpy.random.default_rng(0)
    batches = _load(args.batches) if args.batches else [
        (rng.normal(size=(256, 1, 28, 28)).astype('float32'), rng.integers(0, 10, 256).astype('int32'))]
    _check_signature(args.make, make, 'devices', *['workers'] * args.horovod)
    _check_signature(args.train_batch, train_batch, 'state', 'X', 'y', 'devices')
    batches = batches() if callable(batches) else batches
    with HorovodWorkers(program='check') if args.horovod else contextlib.nullcontext() as workers:
        report = check_data_parallel(make, train_batch, batches, args.devices and parse_devices(args.devices), workers)
        if not workers or workers.rank == 0:
            print_text(*str(report).splitlines())
        if not report.ok:
            raise JobError('', FAILED if report.is_checked else BAD_INPUT, on_all_ranks=True)


def _check_signature(name: str, function: Any, *passed: str) -> None:
    try:
        parameters = inspect.signature(function)
    except (TypeError, ValueError):  # no function, or one without a signature
        return
    try:
        parameters.bind(*passed)
    except TypeError:
        advice = ': several inputs are a tuple X' if 'X' in passed else ''
        raise ValueError(f'{name} takes {parameters}, but the check passes ({", ".join(passed)}){advice}') from None


def _load(name: str) -> Any:
    module, _, attribute = name.partition(':')
    problem = 'not of this form'
    if re.fullmatch(r'\w+(\.\w+)*:\w+', name):
        try:
            loaded = importlib.import_module(module)
            if hasattr(loaded, attribute):
                return getattr(loaded, attribute)
            problem = f'{module} has no {attribute}'
        except ModuleNotFoundError as error:
            if not f'{module}.'.startswith(f'{error.name}.'):  # of an import in the module
                raise
            problem = str(error)
    raise ValueError(f'{name!r} cannot be loaded ({problem}): write MODULE:NAME, such as train:make for make in '
                     'train.py')


def _is_users(frame: FrameType) -> bool:
    """Return True for a call of code outside this package and those that it uses."""
    package = frame.f_globals.get('__package__')
    return package is not None and package.partition('.')[0] not in ('gluon_mgpu', 'mxnet', 'numpy', 'horovod')


if __name__ == '__main__':
    sys.exit(main())
