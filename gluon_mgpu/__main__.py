"""List of this package's programs."""
from __future__ import annotations

import sys

from .base.flags import Parser

PROGRAMS = {
    'scratch': 'train LeNet, implemented from scratch (D2L 13.5)',
    'concise': "train ResNet-18 with Gluon's Trainer on several devices (D2L 13.6)",
    'predict': 'evaluate a trained run on the test set, or classify image files',
    'export': 'write the network of a run as an ONNX model',
    'doctor': 'check this machine and suggest what to fix',
    'devices': 'show the GPUs, whether MXNet can use them, and the CPU contexts',
    'check': 'compare your own training step on several devices with the same step on one',
    'timeline': 'draw what the devices do in a training step, from a trace',
    'plot': 'plot the accuracy of several runs',
}


def main(argv: list | None = None) -> int:
    """Print the programs; return the exit status."""
    lines = [*(f'python -m gluon_mgpu.{name:11} {purpose}' for name, purpose in PROGRAMS.items()),
             'Each program has --help.']
    return Parser('gluon_mgpu', __doc__).run(argv, lambda _: print(*lines, sep='\n'))


if __name__ == '__main__':
    sys.exit(main())
