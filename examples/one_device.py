"""The scratch chapter on one device, to compare with `gluon_mgpu/scratch.py`.

    python examples/one_device.py

The documentation shows `train_batch` beside the chapter's. Prints, after two epochs on images of bars:

    losses on one device 2.3028 2.3019, on two 2.3028 2.3019

The functions follow `train_ch6` of D2L 23.7, and 13.5.6.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy
from flags import read_flags, run_example
from gluon_mgpu import BatchIterator, Run, evaluate_accuracy_gpus, scratch
from gluon_mgpu.scratch import get_params, init_params, lenet, loss, sgd
from mxnet import autograd, npx


def train_batch(X, y, params, device, lr, batch_size):
    X, y = X.as_in_ctx(device), y.as_in_ctx(device)
    with autograd.record():
        l = loss(lenet(X, params), y)
    l.backward()
    sgd(params, lr, batch_size)
    return [l]


def train(batch_size, lr, devices, data, run):
    (device,), (train_iter, test_iter) = devices, data
    npx.random.seed(0)
    params = get_params(init_params(), device)
    for _ in run.epochs([params], seed=0):
        for X, y in run.batches(train_iter):
            run.record_losses(train_batch(X, y, params, device, lr, batch_size))
        run.end_epoch(evaluate_accuracy_gpus(lambda X: lenet(X, params), test_iter, devices=[device]))


def bars(rows: int) -> tuple:
    """Return noisy images, (rows, 28, 28), each with a bar whose height is its label, and the labels, (rows,)."""
    rng = numpy.random.default_rng(0)
    X, y = rng.integers(0, 100, (rows, 28, 28), 'uint8'), rng.integers(0, 10, rows)
    for image, label in zip(X, y):
        image[2 * label + 4:2 * label + 7] = 255
    return X, y


def losses(train: Callable, devices: list, rows: int, lr: float) -> list[float]:
    """Return the losses of two epochs."""
    batch_size = max(1, rows // 4)
    data = [BatchIterator(*bars(rows), batch_size, 'bars') for _ in range(2)]
    run = Run(2, quiet=True)
    train(batch_size, lr, devices=devices, data=data, run=run)
    return [epoch.loss for epoch in run.history]


def compare(one: Callable, several: Callable, devices: list, rows: int, lr: float) -> None:
    """Print the losses of two programs, one on the first device and one on the first two."""
    on_one, on_two = losses(one, devices[:1], rows, lr), losses(partial(several, 2), devices[:2], rows, lr)
    print('losses on one device {:.4f} {:.4f}, on two {:.4f} {:.4f}'.format(*on_one, *on_two))


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0,cpu:1', at_least=2, rows=512)
    compare(train, scratch.train, args.devices, args.rows, lr=0.2)


if __name__ == '__main__':
    run_example(main)
