"""Training on multiple devices the concise way: ResNet-18 with Gluon's Trainer (D2L 13.6).

    python -m gluon_mgpu.concise --train-size 2048 --num-epochs 3 --batch-size 64   # two devices
    python -m gluon_mgpu.concise --devices gpu:0,gpu:1 --batch-size 512 --lr 0.2

The mathematics is that of `gluon_mgpu.scratch`. Here Gluon copies the parameters to the devices, and
its Trainer sums the gradients and updates the parameters.
"""
from __future__ import annotations

import sys
from collections.abc import Callable

from . import cli
from .compat import autograd, gluon, init, np, npx, seed as set_seed, zero_grad
from .data import load_data_fashion_mnist
from .devices import split_batch, try_gpu
from .evaluate import evaluate_accuracy_gpus
from .hybridize import hybridize_block
from .plot import Animator
from .precision import DTYPES, check_dtype
from .resnet import resnet18
from .timer import Timer
from .training_log import TrainingLog


def train_batch(X: np.ndarray, y: np.ndarray, net: gluon.Block, loss: Callable, trainer: gluon.Trainer,
                devices: list) -> list:
    """Train on one batch, spread over the devices; does not wait.

    Source: D2L 13.6.3, the body of ``train``. Here the update is divided by the rows in the batch,
    also in the last and smaller one, and a batch may be smaller than the number of devices.

    Parameters
    ----------
    X, y : np.ndarray, (n, ...) and (n,)
        The batch.
    net : gluon.Block
        Initialized on `devices`; its parameters are changed in place.
    loss : callable
        (y_hat, y) -> the loss of every row, (n,).
    trainer : gluon.Trainer
        Of the parameters of `net`.
    devices : list of mx.Context
        The devices.

    Returns
    -------
    list of np.ndarray
        The loss of every row, an array for each device that got rows.
    """
    X_shards, y_shards = split_batch(X, y, devices)
    if len(X_shards) < len(devices):  # A device without rows adds nothing to the gradient
        zero_grad(net)
    with autograd.record():
        ls = [loss(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
    for l in ls:
        l.backward()
    trainer.step(X.shape[0], ignore_stale_grad=True)
    return ls


def train(num_gpus: int, batch_size: int, lr: float, num_epochs: int = 10, devices: list | None = None,
          data: tuple | None = None, log: TrainingLog | None = None, seed: int = 0,
          net: gluon.HybridBlock | None = None, dtype: str = 'float32') -> None:
    """Train ResNet-18 on multiple devices; prints the accuracy, the time an epoch takes and the devices.

    Source: D2L 13.6.3, ``train``.

    Parameters
    ----------
    num_gpus : int
        How many devices, unless `devices` names them.
    batch_size : int
        Rows in a batch, over all devices.
    lr : float
        Learning rate.
    num_epochs : int
        Passes over the training rows.
    devices : list of mx.Context, optional
        By default ``[try_gpu(i) for i in range(num_gpus)]``.
    data : (train_iter, test_iter), optional
        By default Fashion-MNIST.
    log : TrainingLog, optional
        Keeps the record of the run.
    seed : int
        Decides the initial parameters.
    net : gluon.HybridBlock, optional
        By default ``resnet18(10, dtype)``. Initialized anew, hybridized and trained in place.
    dtype : str
        The precision that ResNet-18 computes in: float32, bfloat16 (CPUs that have it) or float16 (GPUs).
    """
    train_iter, test_iter = data or load_data_fashion_mnist(batch_size)
    devices = devices or [try_gpu(i) for i in range(num_gpus)]
    check_dtype(dtype, devices)
    set_seed(seed)
    net = net or resnet18(10, dtype)
    net.initialize(init=init.Normal(sigma=0.01), ctx=devices, force_reinit=True)
    hybridize_block(net)
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': lr})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    hybridize_block(loss)
    log, timer = log or TrainingLog(num_epochs), Timer()
    animator = Animator('epoch', 'test acc', xlim=[1, num_epochs])
    for epoch in range(num_epochs):
        timer.start()
        for X, y in log.progress(train_iter):
            log.add(train_batch(X, y, net, loss, trainer, devices))
        npx.waitall()
        timer.stop()
        test_acc = evaluate_accuracy_gpus(net, test_iter)
        animator.add(epoch + 1, (test_acc,))
        log.end_epoch(timer.times[-1], test_acc)
    print(f'test acc: {animator.Y[0][-1]:.2f}, {timer.avg():.1f} sec/epoch on {devices}')


def main(argv: list | None = None) -> int:
    """The command line: ``python -m gluon_mgpu.concise --help``. Returns the exit status."""
    own_flags = {'--dtype': {'choices': DTYPES, 'default': 'float32',
                             'help': 'precision of the convolutions (default: %(default)s)'}}
    return cli.run(train, 'concise', 'ResNet-18', argv, batch_size=256, lr=0.1, own_flags=own_flags,
                   check=check_dtype)


if __name__ == '__main__':
    sys.exit(main())
