"""The commands of this package, each in a line."""
from __future__ import annotations

import sys

from .base.program import Parser

COMMANDS = {
    'scratch': 'train LeNet from scratch on several devices (D2L 13.5)',
    'concise': "train ResNet-18 with Gluon's Trainer on several devices (D2L 13.6)",
    'predict': 'what a trained run tells of images',
    'export': 'write what a run has trained as an ONNX model',
    'doctor': 'what this machine has, what is wrong with it, and what to do',
    'devices': 'show the GPUs, whether MXNet can use them, and the CPU contexts',
    'benchmark': 'measure how training scales with the devices, and where the time of a step goes',
    'cost_model': 'measure what an allreduce costs, beside the alpha-beta model',
    'timeline': 'draw a trace of what the devices do in a step',
    'plot': 'draw the accuracy of several runs in one picture',
}


def main(argv: list | None = None) -> int:
    """Print the commands. Returns the exit status, 0."""
    Parser(prog='python -m gluon_mgpu', description=__doc__).parse_args(argv)
    for name, what in COMMANDS.items():
        print(f'python -m gluon_mgpu.{name:11} {what}')
    print('Each has --help.')
    return 0


if __name__ == '__main__':
    sys.exit(main())
