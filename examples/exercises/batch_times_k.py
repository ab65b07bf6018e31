"""13.5, exercise 1: k times the batch on k devices, at the same learning rate and at larger ones.

    python examples/exercises/batch_times_k.py
    python examples/exercises/batch_times_k.py --devices gpu:all --batch-size 256 --lr 0.2 --train-size 60000

Prints, on four CPU contexts (… are times, and accuracies of at least 0.7 if the epochs are fewer than 16):

    LeNet, 6144 images, to a test accuracy of 0.7, at most 16 epochs
    devices  batch  rate  steps per epoch  epochs  accuracy  seconds per epoch
          1     32   0.2              192       4         …                  …
          2     64   0.2               96       7         …                  …
          4    128   0.2               48      12         …                  …
    larger rates, after a warm-up of one epoch
          2     64   0.4               96       6         …                  …
          4    128   0.4               48       8         …                  …
          4    128   0.8               48      16         …                  …

A step on k times the rows moves the parameters about as far as a step on the small batch, because the gradient is
divided by the batch size. But there are k times fewer steps per epoch, so at the same rate, training takes more epochs.
A larger rate makes up for part of it, unless the steps become too large.
"""
from __future__ import annotations

import contextlib
import math
from statistics import median

from common import part_of, read_flags, run_example
from gluon_mgpu import Callback, DivergenceError, Run, schedule, scratch


class Reached(Exception):  # noqa: N818
    """The accuracy is reached."""


class StopAt(Callback):
    """Callback that raises `Reached` after the first epoch with this test accuracy."""

    def __init__(self, accuracy: float):
        self.accuracy = accuracy

    def epoch_end(self, run: Run) -> None:
        if run.history[-1].accuracy >= self.accuracy:
            raise Reached


def train_to(accuracy: float, devices: list, lr, args) -> tuple[int, float, float]:
    """Train to an accuracy, unless training diverges; return the epochs, the accuracy and the seconds per epoch."""
    batch_size = args.batch_size * len(devices)
    run = Run(args.num_epochs, quiet=True, callbacks=[StopAt(accuracy)])
    data = part_of(args.dataset, batch_size, args.train_size, args.test_size)
    with contextlib.suppress(Reached, DivergenceError):
        scratch.train(len(devices), batch_size, lr, devices=devices, data=data, run=run)
    if not run.history:  # diverged in the first epoch
        return 0, math.nan, math.nan
    return len(run.history), run.history[-1].accuracy, median(e.seconds for e in run.history)


def report(k: int, lr: float, warm_up: bool, args) -> None:
    """Print the line of k devices."""
    steps = -(-args.train_size // (k * args.batch_size))
    rate = schedule('constant', lr, args.num_epochs * steps, warmup_steps=steps) if warm_up else lr
    epochs, reached, seconds = train_to(args.accuracy, args.devices[:k], rate, args)
    print(f'{k:7}  {k * args.batch_size:5}  {lr:4.1f}  {steps:15}  {epochs:6}  {reached:8.2f}  {seconds:17.2f}')


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0-3', at_least=4, batch_size=32, lr=0.2, train_size=6144,
                      test_size=2048, num_epochs=16, accuracy=0.7, dataset='auto')
    print(f'LeNet, {args.train_size} images, to a test accuracy of {args.accuracy:g}, at most {args.num_epochs} epochs')
    print('devices  batch  rate  steps per epoch  epochs  accuracy  seconds per epoch')
    for k in (1, 2, 4):
        report(k, args.lr, False, args)
    print('larger rates, after a warm-up of one epoch')
    for k, factor in ((2, 2), (4, 2), (4, 4)):
        report(k, factor * args.lr, True, args)


if __name__ == '__main__':
    run_example(main)
