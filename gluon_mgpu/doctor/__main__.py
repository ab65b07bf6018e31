"""What this machine has for training, what is wrong with it, and what to do."""
from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TextIO

from ..base.program import FAILED, Parser, exit_status, number
from . import TIMEOUT, examine
from .screen import screen


def main(argv: list | None = None) -> int:
    """The command line: ``python -m gluon_mgpu.doctor --help``. Returns the exit status: 1 if training cannot run."""
    parser = Parser(prog='python -m gluon_mgpu.doctor', description=__doc__,
                    epilog='Exit status: 0 if training can run, 1 if it cannot.')
    parser.add_argument('--json', action='store_true', help='all that was found as JSON, for a report of a bug')
    parser.add_argument('--timeout', type=number(float), default=TIMEOUT, metavar='SECONDS',
                        help='how long the self-test may take (default: %(default)s)')
    args = parser.parse_args(argv)
    can_train = False

    def work() -> None:
        nonlocal can_train
        report = _examine(args)
        can_train = report['can_train']
        colour = _is_terminal(sys.stdout) and 'NO_COLOR' not in os.environ and os.environ.get('TERM') != 'dumb'
        try:
            print(json.dumps(report, indent=2) if args.json else '\n'.join(screen(report, colour)), flush=True)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python fails again when it ends
            if not isinstance(error, BrokenPipeError):  # a reader that has seen enough is no error
                raise

    return exit_status('doctor', work) or (0 if can_train else FAILED)


def _examine(args: argparse.Namespace) -> dict:
    """`examine`, with a line on the terminal while it lasts."""
    wait = 'looking, and training for some seconds ...' if _is_terminal(sys.stderr) else ''
    print(end=wait, file=sys.stderr, flush=True)
    try:
        return examine(args.timeout)
    finally:
        print(end=f'\r{" " * len(wait)}\r' if wait else '', file=sys.stderr, flush=True)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()  # None: it was closed when Python started


if __name__ == '__main__':
    sys.exit(main())
