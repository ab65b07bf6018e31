"""Training on multiple devices the concise way: ResNet-18 with Gluon's Trainer (D2L 13.6).

    python -m gluon_mgpu.concise --train-size 2048 --num-epochs 3 --batch-size 64   # two devices
    python -m gluon_mgpu.concise --devices gpu:0,gpu:1 --batch-size 512 --lr 0.2

The mathematics is that of `gluon_mgpu.scratch`. Here Gluon copies the parameters to the devices, and
its Trainer sums the gradients and updates the parameters.
"""
from __future__ import annotations

import gc
import sys
from collections.abc import Callable

from .base.checks import integer, positive
from .data import load_data_fashion_mnist
from .data.batches import check_data
from .devices import check_devices, devices_from
from .mxnet_setup.compat import autograd, gluon, init, np, seed as set_seed, zero_grad
from .networks.hybridize import hybridized
from .networks.precision import DTYPES, check_dtype
from .networks.resnet import check_network, resnet18
from .parallel.split import split_batch
from .plot import Animator
from .training.evaluate import evaluate_accuracy_gpus
from .training.parameters import trainable
from .training.run import Run


def train_batch(X: np.ndarray, y: np.ndarray, net: Callable, loss: Callable, trainer: gluon.Trainer,
                devices: list, batch_size: int | None = None) -> list:
    """Train on one batch, spread over the devices; does not wait.

    Source: D2L 13.6.3, the body of ``train``. Here a batch may be smaller than the number of
    devices.

    Parameters
    ----------
    X, y : np.ndarray, (n, ...) and (n,)
        The batch.
    net : gluon.Block or what `hybridized` makes of one
        Initialized on `devices`; its parameters are changed in place.
    loss : callable
        (y_hat, y) -> the loss of every row, (n,).
    trainer : gluon.Trainer
        Of the parameters of `net`.
    devices : list of mx.Context
        The devices.
    batch_size : int, optional
        The number that the update is divided by; by default the rows of `X`. `train` passes its own batch size for
        every batch, as in the book, so that each image has the same weight in an epoch: divided by its rows, a short
        last batch would take as large a step as a full one.

    Returns
    -------
    list of np.ndarray
        The loss of every row, an array for each device that got rows.

    Raises
    ------
    ValueError
        If `X` and `y` differ in rows, or have none.
    """
    batch_size = integer('batch_size', X.shape[0] if batch_size is None else batch_size, 1)
    X_shards, y_shards = split_batch(X, y, devices)
    idle = devices[len(X_shards):]
    # A device without rows gets the first one's, for its batch norm's statistics; they add nothing to the gradient
    others = [X_shard.as_in_ctx(device) for device in idle for X_shard in X_shards[:1]]
    with autograd.record():
        ls = [loss(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
        others = [net(X_shard) for X_shard in others]
    for l in ls + others:
        l.backward()
    zero_grad(net, idle)
    trainer.step(batch_size)
    return ls


def train(num_gpus: int, batch_size: int, lr: float, num_epochs: int = 10, devices: list | None = None,
          data: tuple | None = None, run: Run | None = None, seed: int = 0,
          net: gluon.HybridBlock | None = None, dtype: str = 'float32') -> None:
    """Train ResNet-18 on multiple devices; prints the accuracy, the seconds per epoch and the devices.

    Source: D2L 13.6.3, ``train``. Here the program waits once per epoch, not at every batch.

    Parameters
    ----------
    num_gpus : int
        How many devices, unless `devices` names them.
    batch_size : int
        Rows in a batch, over all devices. Every update is divided by it, also that of a smaller last batch.
    lr : float
        Learning rate.
    num_epochs : int
        Passes over the training rows, unless `run` says it.
    devices : list of mx.Context, optional
        By default the first GPUs, or as many CPU contexts where MXNet sees no GPU.
    data : (train_iter, test_iter), optional
        By default Fashion-MNIST.
    run : Run, optional
        Records the run. Its callbacks write checkpoints and pictures; its workers train together.
    seed : int
        Decides the initial parameters and, with the epoch, other random numbers.
    net : gluon.HybridBlock, optional
        By default ``resnet18(10, dtype)``. Initialized anew and trained in place, otherwise left as it is.
    dtype : str
        The precision that ResNet-18 computes in: float32, bfloat16 (CPUs that have it) or float16 (GPUs). Not for
        another `net`.

    Raises
    ------
    ValueError
        If an argument is out of range, the devices cannot be trained on or not in that precision, or the
        data cannot be had; and `DivergenceError`, which is one, when the loss or a parameter is no longer finite.
    """
    lr = positive('lr', lr)
    devices = devices_from(num_gpus) if devices is None else check_devices(devices)
    check_dtype(dtype, devices)
    run = Run(num_epochs) if run is None else run
    train_iter, test_iter = load_data_fashion_mnist(batch_size) if data is None else check_data(data, batch_size, net)
    run.check(train_iter, test_iter)
    set_seed(seed)
    gc.collect()  # free the networks of earlier calls: Gluon's blocks are in reference cycles
    net = resnet18(10, dtype) if net is None else check_network(net, dtype)
    net.initialize(init=init.Normal(sigma=0.01), ctx=devices, force_reinit=True)
    trainer = run.workers.trainer(trainable(net), 'sgd', {'learning_rate': lr})  # a gluon.Trainer
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    net, loss = hybridized(net), hybridized(loss)  # for speed: the same functions, each as one operator
    animator = Animator('epoch', 'test acc', xlim=[1, run.num_epochs])
    for epoch in run.epochs(net, trainer, seed):
        for X, y in run.batches(train_iter):
            run.record_losses(train_batch(X, y, net, loss, trainer, devices, batch_size))
        test_acc = evaluate_accuracy_gpus(net, test_iter, workers=run.workers)
        animator.add(epoch, (test_acc,))
        run.end_epoch(test_acc)
    run.print_summary(devices)


def main(argv: list | None = None) -> int:
    """The command line: ``python -m gluon_mgpu.concise --help``. Returns the exit status."""
    from . import cli
    own_flags = {'--dtype': {'choices': DTYPES, 'default': 'float32',
                             'help': 'precision of the convolutions: bfloat16 needs a CPU with avx512_bf16, float16 '
                                     'needs GPUs (default: %(default)s)'}}
    return cli.run(cli.Chapter('concise', 'ResNet-18', train, 256, 0.1, own_flags, check_dtype), argv)


if __name__ == '__main__':
    sys.exit(main())
