"""ResNet-18 on multiple devices, the concise way with Gluon's Trainer (D2L 13.6).

    python -m gluon_mgpu.concise --train-size 8192 --num-epochs 3 --batch-size 64   # two devices
    python -m gluon_mgpu.concise --devices gpu:0,gpu:1 --batch-size 512 --lr 0.2

The mathematics is the same as in `gluon_mgpu.scratch`. Here Gluon copies the parameters to the devices, and its
Trainer sums the gradients and updates the parameters.
"""
from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

from .base.checks import at_least_0, integer
from .base.flags import number_flag
from .data import load_data_fashion_mnist
from .data.batches import check_data
from .devices import check_devices, devices_from
from .distributed.workers import Workers
from .mxnet_setup.compat import autograd, gluon, init, np, npx
from .networks.hybridize import hybridized
from .networks.precision import DTYPES, check_dtype
from .networks.resnet import check_network, resnet18
from .parallel.accumulate import in_parts
from .parallel.split import split_batch, split_by
from .parallel.sync_batch_norm import SyncBatchNorm
from .parallel.trainer import prepare_idle_devices
from .plot import Animator
from .training.evaluate import evaluate_accuracy_gpus
from .training.parameters import gradients, trainable
from .training.run import Run
from .training.schedules import check_lr


def train_batch(X: np.ndarray, y: np.ndarray, net: Callable, loss: Callable, trainer: gluon.Trainer,
                devices: list, batch_size: int | None = None, accumulate: int = 1,
                split_batch: Callable = split_batch) -> list:
    """Train on one batch, split over the devices; does not block.

    Returns the loss of each row, as a list of arrays: one for each part and each device that got rows. Raises
    ValueError if `X` and `y` have different numbers of rows, or if they have none and `batch_size` is not given.

    Source: D2L 13.6.3, the body of ``train``. Here a batch may have fewer rows than there are devices.

    Parameters
    ----------
    X, y : np.ndarray, (n, ...) and (n,)
    net : gluon.Block, or the result of `hybridized` or `SyncBatchNorm`
        Initialized on `devices`; its parameters are updated in place.
    loss : callable
        Maps (y_hat, y) to the loss of each row, (n,).
    batch_size, accumulate, split_batch
        As in `scratch.train_batch`. With `accumulate`, batch norm's statistics are those of each part.
    """
    batch_size = integer('batch_size', X.shape[0] if batch_size is None else batch_size, minimum=1)
    X_shards, y_shards = split_batch(X, y, devices)
    ls = []
    for X_parts, y_parts in in_parts(X_shards, y_shards, accumulate, lambda i: gradients(net, devices[i])):
        with autograd.record():
            y_hats = (net.forward(X_parts) if isinstance(net, SyncBatchNorm)  # Not in the book
                      else [net(X_part) for X_part in X_parts])
            ls_of_parts = [loss(y_hat, y_part) for y_hat, y_part in zip(y_hats, y_parts)]
        # In the book, l.backward() for each l. With synchronized batch norm, each l depends on the rows of all devices
        backward = net.backward if isinstance(net, SyncBatchNorm) else autograd.backward
        backward(ls_of_parts)
        ls += ls_of_parts
    prepare_idle_devices(net, X_shards, devices)  # Those without rows; in the book, every device has rows
    trainer.step(batch_size)
    return ls


def train(num_gpus: int, batch_size: int, lr: float | Callable, num_epochs: int = 10, devices: list | None = None,
          data: tuple | None = None, run: Run | None = None, seed: int = 0,
          net: gluon.HybridBlock | None = None, dtype: str = 'float32', accumulate: int = 1,
          momentum: float = 0.0, weight_decay: float = 0.0, sync_batch_norm: bool = False,
          shares: list | str | None = None) -> None:
    """Train ResNet-18 on multiple devices; print the accuracy, the seconds per epoch and the devices.

    Source: D2L 13.6.3, ``train``. The book waits for the devices after every batch; here, the program reads
    losses some batches later, so that the devices always have work, and waits for all batches only at the end of an
    epoch.

    Raises ValueError as `scratch.train` does, and if a device does not support `dtype`.

    Parameters
    ----------
    num_gpus, batch_size, lr, num_epochs, devices, data, run, seed, shares
        As in `scratch.train`.
    net : gluon.HybridBlock, optional
        By default ``resnet18(10, dtype)``. It is initialized again and trained in place. To compare runs, pass a new
        one each time: the initial weights also depend on whether layers know their shapes already.
    dtype : str
        The precision of the convolutions and of the arrays between layers: float32, bfloat16 (on CPUs that support it)
        or float16 (on GPUs). Another `net` requires float32.
    accumulate : int
        Number of parts in which each shard is trained, as in `train_batch`.
    momentum, weight_decay : float
        Settings of the optimizer, ``mx.optimizer.SGD``. Weight decay acts on all parameters.
    sync_batch_norm : bool
        Compute the mean and variance of batch norm over the rows of all devices; see `SyncBatchNorm`. Otherwise, each
        device computes its own, as in the book. Does not work with several workers.
    """
    lr, accumulate = check_lr(lr), integer('accumulate', accumulate, minimum=1)
    optimizer_params = {'momentum': at_least_0('momentum', momentum, below=1),
                        'wd': at_least_0('weight_decay', weight_decay)}
    devices = devices_from(num_gpus) if devices is None else check_devices(devices)
    split_f = split_by(shares, devices)
    run = Run(num_epochs) if run is None else run  # Not in the book: progress, checkpoints, several machines
    check_flags(devices, run.workers, dtype, sync_batch_norm)
    train_iter, test_iter = load_data_fashion_mnist(batch_size) if data is None else check_data(data, batch_size, net)
    run.check(train_iter, test_iter)
    npx.random.seed(seed)
    gc.collect()  # Free the networks of earlier calls, because Gluon's blocks are in reference cycles
    net = resnet18(10, dtype) if net is None else check_network(net, dtype)
    net.initialize(init=init.Normal(sigma=0.01), ctx=devices, force_reinit=True)
    # A gluon.Trainer that with --horovod also sums over machines. The book passes all parameters, see `trainable`
    trainer = run.workers.trainer(trainable(net), 'sgd', optimizer_params, move_gradients=True)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    # For speed: each runs as one operator; with synchronized batch norm, as one between two norms
    net, loss = SyncBatchNorm(net) if sync_batch_norm else hybridized(net, used_once=True), hybridized(loss)
    animator = Animator('epoch', 'test acc', xlim=[1, run.num_epochs])
    for epoch in run.epochs(net, trainer, seed, lr):
        for X, y in run.batches(train_iter):
            trainer.set_learning_rate(run.lr)
            run.record_losses(train_batch(X, y, net, loss, trainer, devices, batch_size, accumulate, split_f))
        test_acc = evaluate_accuracy_gpus(net, test_iter, split_f, workers=run.workers)
        animator.add(epoch, (test_acc,))
        run.end_epoch(test_acc)
    run.print_summary(devices)


def check_flags(devices: list, workers: Workers, dtype: str, sync_batch_norm: bool, **others: Any) -> None:
    """Raise ValueError if a device does not support `dtype`, or several workers would synchronize batch norm."""
    check_dtype(dtype, devices)
    if sync_batch_norm and workers.size > 1:
        raise ValueError('synchronized batch norm works on the devices of one process only, because Horovod would '
                         'have to sum at every layer; use several devices in one process, or train without it')


def main(argv: list | None = None) -> int:
    """Run the command line ``python -m gluon_mgpu.concise``; return the exit status."""
    from . import cli
    extra_flags: dict[str, dict] = {
        '--dtype': {'choices': DTYPES, 'default': 'float32',
                    'help': 'precision of the convolutions: bfloat16 needs a CPU with avx512_bf16, float16 needs GPUs '
                            '(default: %(default)s)'},
        '--momentum': {'type': number_flag(at_least_0, 1), 'default': 0.0, 'metavar': 'M',
                       'help': 'share of the last step that is added to each step (default: %(default)s)'},
        '--weight-decay': {'type': number_flag(at_least_0), 'default': 0.0, 'metavar': 'WD',
                           'help': 'share of the parameters that is added to their gradients (default: %(default)s)'},
        '--sync-batch-norm': {'action': 'store_true',
                              'help': 'compute batch norm over the rows of all devices (default: each over its own)'}}
    # 256 and 0.1 are the book's settings for one GPU; it trains two with 512 and 0.2, to give each GPU 256 rows
    return cli.run(cli.Chapter('concise', 'ResNet-18', train, batch_size=256, lr=0.1, extra_flags=extra_flags,
                               check=check_flags), argv)


if __name__ == '__main__':
    sys.exit(main())
