"""Command line of the examples: `--devices LIST`, other flags with the types of their defaults, and how they end."""
from __future__ import annotations

import signal
import sys
from os.path import abspath, dirname

# Ctrl-C ends an example without a traceback while it is imported, and before other imports; see `run_program`
if (abspath(sys.argv[0]).startswith(f'{dirname(abspath(__file__))}/')
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler):
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
from collections.abc import Callable
from pathlib import Path

from gluon_mgpu.base.arguments import integer, positive
from gluon_mgpu.base.flags import Parser, picture
from gluon_mgpu.base.program import run_program
from gluon_mgpu.devices import parse_devices


def read_flags(doc: str, argv: list | None, devices: str, at_least: int = 1, **defaults):
    """Read the flags; exit with status 2 if one is wrong.

    Parameters
    ----------
    doc : str
        The example's docstring; ``--help`` shows its first line.
    argv : list of str or None
        The arguments; by default those of this process.
    devices : str
        The default devices, in the format of `gluon_mgpu.devices.parse_devices`.
    at_least : int
        Number of devices that the example needs.
    **defaults
        Name and default of each other flag: an int of at least 1, a float above 0, a str, or False. ``out`` is the path
        of a picture.

    Returns
    -------
    argparse.Namespace
        The flags as attributes, ``devices`` as a list. ``refuse('why')`` exits as for a wrong flag.
    """
    parser = Parser(Path(sys.argv[0]).stem, doc.splitlines()[0])
    parser.prog = f'python {sys.argv[0]}'
    parser.add_argument('--devices', default=devices, metavar='LIST',
                        help="such as 'gpu:0,gpu:1', 'gpu:all' or 'cpu:0-3' (default: %(default)s)")
    for name, default in defaults.items():
        kind = {'action': 'store_true'} if default is False else {
            'type': type(default), 'default': default, 'metavar': type(default).__name__.upper(),
            'help': '(default: %(default)s)'}
        parser.add_argument('--' + name.replace('_', '-'), **kind)
    args = parser.parse_args(argv)
    args.refuse = parser.error
    try:
        args.devices = parse_devices(args.devices)
    except ValueError as error:
        parser.error(str(error))
    if len(args.devices) < at_least:
        parser.error(f'--devices: at least {at_least} are needed, not {args.devices}')
    for name, default in defaults.items():
        value = getattr(args, name)
        flag = f'--{name.replace("_", "-")}'
        try:
            if type(default) is int:
                integer(flag, value, minimum=1)
            elif type(default) is float:
                positive(flag, value)
        except ValueError as error:
            parser.error(str(error))
        if name == 'out' and value != default:  # before a long computation
            try:
                args.out = str(picture(value))
            except argparse.ArgumentTypeError as error:
                parser.error(f'--out {error}')
    return args


def run_example(main: Callable[[], object]) -> None:
    """Call `main` and exit: an error, Ctrl-C, and `| head` end an example as they end the programs of the package."""
    sys.exit(run_program(Path(sys.argv[0]).stem, main))
