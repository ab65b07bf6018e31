"""Command line that draws a trace: ``python -m gluon_mgpu timeline --help``."""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ...base.flags import Parser, path, picture
from .draw import draw
from .read import read


def main(argv: list | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = Parser('gluon_mgpu timeline', "Draw a Chrome trace of MXNet's profiler, one lane per device.")
    parser.add_argument('trace', type=path, metavar='TRACE.json', help='trace written by a chapter with --timeline')
    parser.add_argument('--out', type=picture, metavar='FILE',
                        help='the picture to write (default: beside the trace, .png)')
    parser.add_argument('--title', help='title of the picture (default: the name of the trace)')
    return parser.run(argv, _run)


def _run(args: argparse.Namespace) -> None:
    trace = Path(args.trace)
    out = args.out or trace.with_suffix('.png')
    draw(read(trace), out, args.title or trace.name)
    print(f'picture: {out}')


if __name__ == '__main__':
    sys.exit(main())
