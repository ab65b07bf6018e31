"""The command line that both chapters share: its flags, their checks, and the folder a run leaves."""
from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy

from . import __version__
from .compat import mx
from .data import DATASETS, load_data
from .devices import devices_from, parse_devices
from .gpus import num_mxnet_gpus, why_no_gpus
from .plot import accuracy_curve
from .profiling import TimelineLog, check_devices
from .runtime import ENVIRONMENT
from .timeline import draw, read
from .training_log import TrainingLog

INTERRUPTED = 130  # the shell's exit status for Ctrl-C


def run(train: Callable, chapter: str, network: str, argv: list | None, batch_size: int, lr: float,
        own_flags: dict | None = None, check: Callable | None = None) -> int:
    """Run a chapter's `train` as a program.

    Parameters
    ----------
    train : callable
        The chapter's ``train``.
    chapter, network : str
        The chapter's module and what it trains, for help, headings and file names.
    argv : list of str or None
        The arguments; None means those of this process.
    batch_size, lr : int, float
        The chapter's defaults.
    own_flags : dict, optional
        Flags of this chapter alone, with what argparse is to know of them; `train` takes them by name.
    check : callable, optional
        Takes `devices` and these flags by name, raises ValueError where they don't fit: before anything is
        loaded or written.

    Returns
    -------
    int
        The exit status: 0, 2 for bad input (with one line on stderr that says what and why), 130 after
        Ctrl-C. What was recorded until then is in the output folder in any case.
    """
    own_flags = own_flags or {}
    parser = _parser(chapter, network, batch_size, lr)
    for flag, settings in own_flags.items():
        parser.add_argument(flag, **settings)
    args = parser.parse_args(argv)
    own = [flag.strip('-') for flag in own_flags]
    return exit_status(chapter, lambda: _run(train, chapter, network, args, own, check))


def exit_status(program: str, work: Callable) -> int:
    """Call `work` and tell how it ended, as the command line does.

    Returns
    -------
    int
        0; 2 after a ValueError or OSError and 130 after Ctrl-C, with one line on stderr.
    """
    try:
        work()
    except (ValueError, OSError) as error:
        print(f'{program}: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f'{program}: interrupted', file=sys.stderr)
        return INTERRUPTED
    return 0


def _run(train, chapter, network, args, own, check) -> None:
    say = (lambda line: None) if args.quiet else (lambda line: print(line, flush=True))
    devices = _devices(args, say)
    if args.timeline:
        check_devices(devices)
    own = {name: getattr(args, name) for name in own}
    if check:
        check(devices=devices, **own)
    train_iter, test_iter = load_data(args.dataset, args.batch_size, data_dir=args.data_dir,
                                      train_size=args.train_size, seed=args.seed, say=say,
                                      progress=not args.quiet)
    heading = f'{network} on {train_iter.dataset}, {", ".join(map(str, devices))}'
    say(f'{heading}: {train_iter.num_rows} training and {test_iter.num_rows} test images, '
        f'batches of {args.batch_size}, learning rate {args.lr:g}')

    out_dir = new_folder(args.out_dir, chapter)
    config = {'chapter': chapter, **vars(args), 'devices': [str(d) for d in devices], 'num_gpus': len(devices),
              'dataset': train_iter.dataset, 'train_size': train_iter.num_rows, 'out_dir': str(out_dir),
              **versions()}
    (out_dir / 'config.json').write_text(json.dumps(config, indent=2) + '\n')

    settings = {'quiet': args.quiet, 'path': out_dir / 'history.csv'}
    log = (TimelineLog(args.num_epochs, trace=out_dir / 'trace.json', **settings) if args.timeline
           else TrainingLog(args.num_epochs, **settings))
    try:
        train(len(devices), args.batch_size, args.lr, num_epochs=args.num_epochs, devices=devices,
              data=(train_iter, test_iter), log=log, seed=args.seed, **own)
    finally:  # also after an error or Ctrl-C: what was recorded until then
        log.close()
        if log.history and not args.no_plot:
            accuracy_curve(log.history, out_dir / 'accuracy.png', heading)
            say(f'curve: {out_dir / "accuracy.png"}')
        if args.timeline:
            _draw_timeline(log.trace, out_dir, heading, say)


def _draw_timeline(trace, out_dir, heading, say) -> None:
    if trace.exists():
        draw(read(trace), out_dir / 'timeline.png', f'One step of {heading}')
        say(f'timeline: {out_dir / "timeline.png"}')
    else:
        say('timeline: none, the run ended before its sixth batch')


def _devices(args, say) -> list:
    """The devices asked for; by default two, or the one GPU of a machine that has no more."""
    if args.devices:
        return parse_devices(args.devices)
    num_gpus = num_mxnet_gpus()
    if not num_gpus:
        say(f'training on CPU contexts: {why_no_gpus()}')
    return devices_from(args.num_gpus or min(num_gpus, 2) or 2)


def _parser(chapter, network, batch_size, lr) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f'python -m gluon_mgpu.{chapter}',
        description=f'Train {network} on several devices and tell its accuracy on the test images.')
    where = parser.add_mutually_exclusive_group()
    where.add_argument('--num-gpus', type=positive(int), metavar='N',
                       help='number of devices: GPUs, or CPU contexts on a machine with no GPU '
                            '(default: 2, or 1 on a machine with one GPU)')
    where.add_argument('--devices', metavar='LIST',
                       help="devices by name: 'gpu:0,gpu:1', 'cpu:0-3', 'gpu:all', 'cpu:all' (one a core)")
    parser.add_argument('--batch-size', type=positive(int), default=batch_size, metavar='ROWS',
                        help='images in a batch, over all devices (default: %(default)s)')
    parser.add_argument('--lr', type=positive(float), default=lr, metavar='RATE',
                        help='learning rate (default: %(default)s)')
    parser.add_argument('--num-epochs', type=positive(int), default=10, metavar='N',
                        help='passes over the training images (default: %(default)s)')
    parser.add_argument('--dataset', choices=DATASETS, default='auto',
                        help='auto is fashion-mnist if it is there or can be downloaded, else glyphs '
                             '(default: %(default)s)')
    parser.add_argument('--data-dir', metavar='DIR',
                        help='folder that holds fashion-mnist/ and mnist/ '
                             '(default: $GLUON_MGPU_DATA, else the cache folder)')
    parser.add_argument('--train-size', type=positive(int), metavar='N',
                        help='use the first N training images only (default: all)')
    parser.add_argument('--seed', type=_seed, default=0, metavar='N',
                        help='decides the initial parameters and the order of the images (default: %(default)s)')
    parser.add_argument('--out-dir', metavar='DIR',
                        help='new folder for config.json, history.csv and accuracy.png '
                             f'(default: runs/{chapter}-DATE-TIME)')
    parser.add_argument('--timeline', action='store_true',
                        help='profile one step of training: trace.json and timeline.png')
    parser.add_argument('--no-plot', action='store_true', help='draw no accuracy.png')
    parser.add_argument('--quiet', action='store_true', help='show the last line only')
    return parser


def positive(number: type) -> Callable:
    """A converter of text to a finite number above zero."""
    def convert(text):
        value = number(text)
        if not 0 < value < float('inf'):
            raise argparse.ArgumentTypeError(f'{text} is not a number above 0')
        return value
    convert.__name__ = number.__name__  # argparse: "invalid int value: 'x'"
    return convert


def _seed(text: str) -> int:
    value = int(text)
    if not 0 <= value < 2**31:
        raise argparse.ArgumentTypeError(f'{text} is not between 0 and 2147483647')
    return value


_seed.__name__ = 'int'


def new_folder(path, program: str) -> Path:
    """Make the folder for what a program leaves: `path`, or by default one in ``runs/`` named by the time.

    Raises
    ------
    ValueError
        If there is something in it already.
    """
    path = Path(path or f'runs/{program}-{time.strftime("%Y%m%d-%H%M%S")}')
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f'{path} is not an empty folder, and a run overwrites nothing: give another --out-dir')
    path.mkdir(parents=True, exist_ok=True)
    return path


def _listed(devices) -> str:
    return ', '.join(map(str, devices))


def versions() -> dict:
    """What a record of numbers needs to be understood later."""
    return {'gluon_mgpu': __version__, 'mxnet': mx.__version__, 'numpy': numpy.__version__,
            'python': platform.python_version(), 'platform': platform.platform(),
            'environment': {name: os.environ.get(name) for name in ENVIRONMENT}}
