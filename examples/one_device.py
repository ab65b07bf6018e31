"""The scratch chapter on one device, to compare with `gluon_mgpu/scratch.py`.

    python examples/one_device.py

The documentation shows these functions beside the chapter's. Prints, after two epochs on images of bars:

    losses on one device 2.3028 2.3019, on two 2.3028 2.3019

The functions follow `train_ch6` of D2L 23.7, and 13.5.6.
"""
from __future__ import annotations

from collections.abc import Callable

import numpy
from flags import read_flags, run_example
from gluon_mgpu import Animator, BatchIterator, Run, TrainingSetup, evaluate_accuracy_gpus, scratch
from gluon_mgpu.scratch import get_params, init_params, lenet, loss, sgd
from mxnet import autograd, npx


def forward_backward(X, y, params, device):
    X, y = X.as_in_ctx(device), y.as_in_ctx(device)
    with autograd.record():
        ls = [loss(lenet(X, params), y)]
    for l in ls:
        l.backward()
    return ls


def train_batch(X, y, params, device, lr, batch_size):
    ls = forward_backward(X, y, params, device)
    sgd(params, lr, batch_size)
    return ls


def train(num_gpus, batch_size, lr, **settings):
    setup = TrainingSetup('scratch', num_gpus, batch_size, lr, settings)
    (device,), (train_iter, test_iter), run = setup.devices, setup.data, setup.run
    npx.random.seed(setup.seed)  # for the initial parameters
    params = init_params()
    params = get_params(params, device)
    animator = Animator('epoch', 'test acc', xlim=[1, run.num_epochs])
    # `run` counts from 1, seeds each epoch (for data that draws random numbers), and checks at its end that the
    # parameters are finite. run.lr is lr, or what the function returns
    for epoch in run.epochs([params], seed=setup.seed, lr=lr):
        # After the last batch, this waits for the devices, as npx.waitall() in 13.6, and stops the clock
        for X, y in run.batches(train_iter):
            run.record_losses(train_batch(X, y, params, device, run.lr, batch_size))
        test_acc = evaluate_accuracy_gpus(lambda X: lenet(X, params), test_iter, devices=[device])
        animator.add(epoch, (test_acc,))
        run.end_epoch(test_acc)
    run.print_summary([device])


def bars(rows: int) -> tuple:
    """Return noisy images, (rows, 28, 28), each with a bar whose height is its label, and the labels, (rows,)."""
    rng = numpy.random.default_rng(0)
    X, y = rng.integers(0, 100, (rows, 28, 28), 'uint8'), rng.integers(0, 10, rows)
    for image, label in zip(X, y):
        image[2 * label + 4:2 * label + 7] = 255
    return X, y


def losses(train: Callable, rows: int, lr: float = 0.2) -> list[float]:
    """Return the losses of two epochs."""
    batch_size = max(1, rows // 4)
    data = [BatchIterator(*bars(rows), batch_size, 'bars') for _ in range(2)]
    run = Run(2, quiet=True)
    train(batch_size, lr, data=data, run=run)
    return [epoch.loss for epoch in run.history]


def compare(one: Callable, several: Callable, devices: list, rows: int, lr: float) -> None:
    """Print the losses of two programs, one on the first device and one on the first two."""
    on_one = losses(lambda *args, **kwargs: one(1, *args, devices=devices[:1], **kwargs), rows, lr)
    on_two = losses(lambda *args, **kwargs: several(2, *args, devices=devices[:2], **kwargs), rows, lr)
    print('losses on one device {:.4f} {:.4f}, on two {:.4f} {:.4f}'.format(*on_one, *on_two))


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0,cpu:1', at_least=2, rows=512)
    compare(train, scratch.train, args.devices, args.rows, lr=0.2)


if __name__ == '__main__':
    run_example(main)
