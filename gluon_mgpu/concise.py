"""ResNet-18 on multiple devices, the concise way with Gluon's Trainer (D2L 13.6).

    python -m gluon_mgpu.concise --train-size 2048 --num-epochs 3 --batch-size 64   # two devices
    python -m gluon_mgpu.concise --devices gpu:0,gpu:1 --batch-size 512 --lr 0.2

The mathematics is the same as in `gluon_mgpu.scratch`. Here Gluon copies the parameters to the devices, and its
Trainer sums the gradients and updates the parameters.
"""
from __future__ import annotations

import gc
import sys
from collections.abc import Callable

from .base.checks import integer, positive
from .data import load_data_fashion_mnist
from .data.batches import check_data
from .devices import check_devices, devices_from
from .mxnet_setup.compat import autograd, gluon, init, np, npx
from .networks.hybridize import hybridized
from .networks.precision import DTYPES, check_dtype
from .networks.resnet import check_network, resnet18
from .parallel.split import split_batch
from .parallel.trainer import prepare_idle_devices
from .plot import Animator
from .training.evaluate import evaluate_accuracy_gpus
from .training.parameters import trainable
from .training.run import Run


def train_batch(X: np.ndarray, y: np.ndarray, net: Callable, loss: Callable, trainer: gluon.Trainer,
                devices: list, batch_size: int | None = None) -> list:
    """Train on one batch, split over the devices; does not block.

    Source: D2L 13.6.3, the body of ``train``. Here a batch may have fewer rows than there are devices.

    Parameters
    ----------
    X, y : np.ndarray, (n, ...) and (n,)
    net : gluon.Block or the result of `hybridized`
        Initialized on `devices`; its parameters are updated in place.
    loss : callable
        Maps (y_hat, y) to the loss of each row, (n,).
    batch_size : int, optional
        The number that divides the update; by default the rows of `X`. `train` always passes its own batch size, as
        in the book, so that each image has the same weight in an epoch.

    Returns
    -------
    list of np.ndarray
        The loss of each row, one array per device that got rows.

    Raises
    ------
    ValueError
        If `X` and `y` have different numbers of rows, or no rows.
    """
    batch_size = integer('batch_size', X.shape[0] if batch_size is None else batch_size, 1)
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        ls = [loss(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
    for l in ls:
        l.backward()
    prepare_idle_devices(net, X_shards, devices)  # Those without rows; in the book, every device has rows
    trainer.step(batch_size)
    return ls


def train(num_gpus: int, batch_size: int, lr: float, num_epochs: int = 10, devices: list | None = None,
          data: tuple | None = None, run: Run | None = None, seed: int = 0,
          net: gluon.HybridBlock | None = None, dtype: str = 'float32') -> None:
    """Train ResNet-18 on multiple devices; print the accuracy, the seconds per epoch and the devices.

    Source: D2L 13.6.3, ``train``. Here the program waits for the devices once per epoch, not after every batch.

    Parameters
    ----------
    num_gpus, batch_size, lr, num_epochs, devices, data, run, seed
        As in `scratch.train`.
    net : gluon.HybridBlock, optional
        By default ``resnet18(10, dtype)``. It is initialized again and trained in place.
    dtype : str
        The precision of ResNet-18: float32, bfloat16 (on CPUs that support it) or float16 (on GPUs). Another `net`
        requires float32.

    Raises
    ------
    ValueError
        If an argument is invalid, a device or the data is missing, or a device does not support `dtype`. Its subclass
        `DivergenceError` if the loss or a parameter is NaN or infinite.
    """
    lr = positive('lr', lr)
    devices = devices_from(num_gpus) if devices is None else check_devices(devices)
    check_dtype(dtype, devices)
    run = Run(num_epochs) if run is None else run
    train_iter, test_iter = load_data_fashion_mnist(batch_size) if data is None else check_data(data, batch_size, net)
    run.check(train_iter, test_iter)
    npx.random.seed(seed)
    gc.collect()  # Free the networks of earlier calls, because Gluon's blocks are in reference cycles
    net = resnet18(10, dtype) if net is None else check_network(net, dtype)
    net.initialize(init=init.Normal(sigma=0.01), ctx=devices, force_reinit=True)
    # A gluon.Trainer. The book passes all parameters, see `trainable`
    trainer = run.workers.trainer(trainable(net), 'sgd', {'learning_rate': lr})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    net, loss = hybridized(net), hybridized(loss)  # For speed: each runs as one operator
    animator = Animator('epoch', 'test acc', xlim=[1, run.num_epochs])
    for epoch in run.epochs(net, trainer, seed):
        for X, y in run.batches(train_iter):
            run.record_losses(train_batch(X, y, net, loss, trainer, devices, batch_size))
        test_acc = evaluate_accuracy_gpus(net, test_iter, workers=run.workers)
        animator.add(epoch, (test_acc,))
        run.end_epoch(test_acc)
    run.print_summary(devices)


def main(argv: list | None = None) -> int:
    """Run the command line ``python -m gluon_mgpu.concise``; return the exit status."""
    from . import cli
    own_flags = {'--dtype': {'choices': DTYPES, 'default': 'float32',
                             'help': 'precision of the convolutions: bfloat16 needs a CPU with avx512_bf16, float16 '
                                     'needs GPUs (default: %(default)s)'}}
    return cli.run(cli.Chapter('concise', 'ResNet-18', train, 256, 0.1, own_flags, check_dtype), argv)


if __name__ == '__main__':
    sys.exit(main())
