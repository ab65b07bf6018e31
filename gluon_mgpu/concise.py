"""ResNet-18 on multiple devices, the concise way with Gluon's Trainer (D2L 13.6).

    python -m gluon_mgpu.concise --train-size 8192 --num-epochs 3 --batch-size 64   # two devices, some minutes
    python -m gluon_mgpu.concise --devices gpu:0,gpu:1 --batch-size 512 --lr 0.2

The algorithm is that of `gluon_mgpu.scratch`. Gluon copies the parameters to the devices, and its Trainer sums the
gradients and updates the parameters. ResNet-18 also has batch norm, which each device computes over its own rows,
unless it is synchronized.
"""
from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

if not __package__:
    sys.exit('run this program as a module: python -m gluon_mgpu.concise')

from .mxnet_setup.compat import autograd, gluon, init, np, npx
from .networks.loss import cross_entropy
from .networks.resnet import resnet18
from .outputs.plot import Animator
from .parallel.split import split_batch
from .parallel.step import params_with_gradients, prepare_idle_devices
from .parallel.sync_batch_norm.synchronized import SyncBatchNorm
from .parallel.sync_batch_norm.train_batch import train_batch_synchronized
from .settings.setup import TrainingSetup, with_settings
from .training.evaluate import evaluate_accuracy_gpus
from .training.run import Run


def train_batch(X: np.ndarray, y: np.ndarray, net: Callable, loss: Callable, trainer: gluon.Trainer, devices: list,
                batch_size: int | None = None) -> list:
    """Train on one batch, split over the devices; does not block.

    Returns the losses, one array for each device that got rows.

    Source: D2L 13.6.3, the body of ``train``.

    Parameters
    ----------
    X, y : np.ndarray, (n, ...) and (n,)
    net : gluon.Block
        Initialized on `devices`; its parameters are updated in place.
    loss : callable
        Maps (y_hat, y) to the loss of each row, (n,). With the mean over a shard, the step would depend on the number
        of devices.
    trainer : gluon.Trainer
        Made after the network was initialized on `devices`.
    batch_size : int, optional
        Divisor of the summed gradient, by default n.
    """
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        ls = [loss(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
    for l in ls:
        l.backward()
    # A device that got no rows of a small batch still holds the gradients of the batch before: it must add 0
    prepare_idle_devices(net, X, devices)
    trainer.step(batch_size or y.shape[0])
    return ls


@with_settings('concise')
def train(num_gpus: int | None, batch_size: int, lr: float | Callable, **settings: Any) -> Run:
    """Train ResNet-18 on multiple devices; print the accuracy, the seconds per epoch and the devices.

    Source: D2L 13.6.3, ``train``. Arguments, result and errors are those of `scratch.train`. There is no ``allreduce``,
    and there are more settings, such as ``dtype``, ``momentum``, or ``net``, another network, whose parameters are
    initialized anew; `settings/settings.py` declares all. Raises ValueError also if a device does not support `dtype`.
    """
    setup = TrainingSetup('concise', num_gpus, batch_size, lr, settings)
    devices, (train_iter, test_iter), run = setup.devices, setup.data, setup.run
    # For another network, whose shapes are known; ResNet-18 draws its parameters in the first batch, after run.batches
    # has set the seed of the epoch
    npx.random.seed(setup.seed)
    net = resnet18(10, setup.dtype) if setup.net is None else setup.net
    net.initialize(init=init.Normal(sigma=0.01), ctx=devices, force_reinit=True)  # setup.net may have parameters
    if setup.net is None:
        net.hybridize(static_alloc=True, static_shape=True)  # for speed: one operator, in memory allocated once
    # The book gives the Trainer all parameters. Then it also copies batch norm's statistics from the first device to
    # the others, while a backward pass may be writing them
    params = params_with_gradients(net)
    # gluon.Trainer(params, optimizer, optimizer_params, update_on_kvstore=False); with --horovod or --clip-norm, a
    # subclass of it
    trainer = run.workers.trainer(params, setup.optimizer, setup.optimizer_params, setup.clip_norm)
    # These are net and train_batch, unless --sync-batch-norm or --accumulate ask for others
    trained_net = SyncBatchNorm(net, run.workers) if setup.sync_batch_norm else net
    step = setup.step(train_batch_synchronized if setup.sync_batch_norm else train_batch)
    loss = cross_entropy  # as in scratch.py
    num_epochs = run.num_epochs
    animator = Animator('epoch', f'{run.evaluated} acc', xlim=[1, num_epochs])
    for epoch in run.epochs(net, trainer, seed=setup.seed, lr=lr):
        for X, y in run.batches(train_iter):  # measures the time, and waits at the end, as npx.waitall()
            trainer.set_learning_rate(run.lr)  # the book's {'learning_rate': lr}; here, a schedule may change it
            run.record_losses(step(X, y, trained_net, loss, trainer, devices, batch_size))
        test_acc = evaluate_accuracy_gpus(net, test_iter, devices=devices, workers=run.workers)
        animator.add(epoch, (test_acc,))
        run.end_epoch(test_acc)
    run.print_summary(devices)
    return run


def main(argv: list | None = None) -> int:
    """Run the command line ``python -m gluon_mgpu.concise``; return the exit status."""
    from .settings import cli
    return cli.run('concise', argv)


if __name__ == '__main__':
    sys.exit(main())
