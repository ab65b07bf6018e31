"""The flags that both chapters have."""
from __future__ import annotations

import argparse

from .data import DATASETS
from .devices.lists import MOST_DEVICES
from .program import Parser, number, text


def parser(chapter: str, network: str, batch_size: int, lr: float) -> argparse.ArgumentParser:
    """Return the parser of the flags that both chapters have.

    Parameters
    ----------
    chapter, network : str
        The chapter's module and what it trains, for the help.
    batch_size, lr : int, float
        The chapter's defaults.
    """
    flags = Parser(
        prog=f'python -m gluon_mgpu.{chapter}',
        description=f'Train {network} on several devices and tell its accuracy on the test images.')
    where = flags.add_mutually_exclusive_group()
    where.add_argument('--num-gpus', type=number(int, 1, MOST_DEVICES), metavar='N',
                       help='number of devices: GPUs, or CPU contexts on a machine with no GPU '
                            '(default: 2, or 1 on a machine with one GPU)')
    where.add_argument('--devices', type=text, metavar='LIST',
                       help="devices by name: 'gpu:0,gpu:1', 'cpu:0-3', 'gpu:all', 'cpu:all' (one per core)")
    flags.add_argument('--horovod', action='store_true',
                       help='be one of the workers that horovodrun, mpirun or srun has started: each on one device')
    flags.add_argument('--fp16-allreduce', action='store_true', help='with --horovod: send gradients as float16')
    flags.add_argument('--batch-size', type=number(int), default=batch_size, metavar='ROWS',
                       help='images in a batch, over all devices (default: %(default)s)')
    flags.add_argument('--lr', type=number(float), default=lr, metavar='RATE',
                       help='learning rate (default: %(default)s)')
    flags.add_argument('--num-epochs', type=number(int), default=10, metavar='N',
                       help='passes over the training images (default: %(default)s)')
    flags.add_argument('--dataset', choices=DATASETS, default='auto',
                       help='auto is fashion-mnist if it is there or can be downloaded, else glyphs '
                            '(default: %(default)s)')
    flags.add_argument('--data-dir', type=text, metavar='DIR',
                       help='folder that holds fashion-mnist/ and mnist/ '
                            '(default: $GLUON_MGPU_DATA, else the cache folder)')
    flags.add_argument('--train-size', type=number(int), metavar='N',
                       help='use the first N training images only (default: all)')
    flags.add_argument('--seed', type=number(int, 0, 2**31 - 1), default=0, metavar='N',
                       help='decides the initial parameters and the order of the images (default: %(default)s)')
    flags.add_argument('--out-dir', type=text, metavar='DIR',
                       help='new folder for config.json, history.csv and accuracy.png '
                            f'(default: runs/{chapter}-DATE-TIME)')
    flags.add_argument('--checkpoint-every', type=number(int), metavar='STEPS',
                       help='write a checkpoint after so many batches (default: after every epoch)')
    flags.add_argument('--resume', type=text, metavar='auto|PATH',
                       help='go on with the run in --out-dir, or begin it (auto); or with the run in a folder, or '
                            'from a checkpoint in it; flags left out are those of the run')
    flags.add_argument('--require-checkpoint', action='store_true',
                       help='end the run if a checkpoint cannot be written (default: say so and go on)')
    flags.add_argument('--export', type=text, metavar='MODEL.onnx',
                       help='write what has been trained as an ONNX model, at the end')
    flags.add_argument('--timeline', action='store_true',
                       help='profile steps of training: trace.json and timeline.png show the median one')
    flags.add_argument('--no-plot', action='store_true', help='draw no accuracy.png')
    flags.add_argument('--quiet', action='store_true', help='show the last line only')
    return flags
