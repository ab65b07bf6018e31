"""Command line of the examples: `--devices LIST`, other flags with the types of their defaults, and how they end."""
from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

from gluon_mgpu import parse_devices, run_program

PICTURES = '.png', '.pdf', '.svg', '.jpg'


class Parser(argparse.ArgumentParser):
    """Command line that reports a wrong flag in one line."""

    def error(self, message: str):
        self.exit(2, f'{Path(sys.argv[0]).stem}: {message}; --help shows all flags\n')


def read_flags(doc: str, argv: list | None, devices: str, at_least: int = 1, **defaults):
    """Read the flags; exit with status 2 if one is wrong.

    Parameters
    ----------
    doc : str
        The example's docstring; ``--help`` shows its first line.
    argv : list of str or None
        The arguments; by default those of this process.
    devices : str
        The default devices, in the format of `gluon_mgpu.parse_devices`.
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
    parser = Parser(f'python {sys.argv[0]}', description=doc.splitlines()[0], allow_abbrev=False)
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
        flag = f'--{name.replace("_", "-")} {value}'
        if type(default) is int and value < 1:
            parser.error(f'{flag}: must be an integer of at least 1')
        if type(default) is float and not 0 < value < math.inf:
            parser.error(f'{flag}: must be a number above 0')
        if name == 'out' and value != default:  # before a long computation
            if value.endswith('/') or Path(value).name in ('', '..') or Path(value).is_dir():
                parser.error(f'{flag}: must be the name of a file, not of a folder')
            args.out = value if Path(value).suffix else f'{value}.png'
            if Path(args.out).suffix.lower() not in PICTURES:
                parser.error(f'{flag}: must end in {", ".join(PICTURES)}')
    return args


def run_example(main: Callable[[], object]) -> None:
    """Call `main` and exit: an error, Ctrl-C, and `| head` end an example as they end the programs of the package."""
    sys.exit(run_program(Path(sys.argv[0]).stem, main))
