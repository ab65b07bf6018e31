"""Command line of the doctor: check what this machine has for training, what is wrong with it, and what to do."""
from __future__ import annotations

import argparse
import json
import sys

from ...base.flags import Parser, integer_flag
from ...base.program import JobError
from .report import MAX_TIMEOUT, TIMEOUT, examine
from .screen import screen


def main(argv: list | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = Parser('gluon_mgpu doctor',
                    'Check what this machine has for training, what is wrong with it, and what to do.',
                    epilog='Exit status: 0 if training can run, 1 if it cannot.')
    parser.add_argument('--json', action='store_true', help='print all facts as JSON, for a bug report')
    parser.add_argument('--timeout', type=integer_flag(1, MAX_TIMEOUT), default=TIMEOUT, metavar='SECONDS',
                        help='limit of the self-test (default: %(default)s)')
    return parser.run(argv, _run)


def _run(args: argparse.Namespace) -> None:
    if sys.stderr.isatty():
        print('checking, and training for a few seconds ...', file=sys.stderr)
    report = examine(args.timeout)
    print(json.dumps(report, indent=2) if args.json else '\n'.join(screen(report)), flush=True)
    if not report['can_train']:
        raise JobError('')


if __name__ == '__main__':
    sys.exit(main())
