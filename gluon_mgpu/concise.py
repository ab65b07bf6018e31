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
from .parallel import step
from .parallel.sharing import as_devices
from .parallel.split import split_batch
from .parallel.sync_batch_norm.synchronized import SyncBatchNorm
from .settings.setup import TrainingSetup, with_settings
from .training.evaluate import evaluate_accuracy_gpus
from .training.run import Run


def forward_backward(X: np.ndarray, y: np.ndarray, net: Callable, devices: list, loss: Callable) -> list:
    """On each device, compute the gradient of its shard of a batch; return the losses; does not block.

    Source: D2L 13.6.3, in the body of ``train``.
    """
    X_shards, y_shards = split_batch(X, y, devices)
    # The book's net(X_shard) for each shard, and l.backward() for each l. `step` calls them for all devices together,
    # because with synchronized batch norm, each loss depends on the rows of all
    with autograd.record():
        y_hats = step.forward(net, X_shards)
        ls = [loss(y_hat, y_shard) for y_hat, y_shard in zip(y_hats, y_shards)]
    step.backward(net, ls)
    step.prepare_idle_devices(net, X, devices)  # without rows: gradients 0, statistics of device 0
    return ls


def train_batch(X: np.ndarray, y: np.ndarray, net: Callable, loss: Callable, trainer: gluon.Trainer,
                devices: list) -> list:
    """Train on one batch, split over the devices; does not block.

    Returns the losses, as `scratch.train_batch`. Raises the same errors, and ValueError if the Trainer is on other
    devices or sums no gradients.

    Source: D2L 13.6.3, the body of ``train``. Here the batch may have any number of rows, and be trained in parts.

    Parameters
    ----------
    X, y : np.ndarray, (n, ...) and (n,)
    net : gluon.Block or SyncBatchNorm
        Initialized on `devices`; its parameters are updated in place.
    loss : callable
        Maps (y_hat, y) to the loss of each row, (n,).
    trainer : gluon.Trainer
        Made after the network was initialized on this list of devices; it must sum the gradients.
    devices : list of mx.Context
        Possibly `parallel.sharing.Devices`, whose allreduce is not used, because the trainer sums the gradients. With
        parts, batch norm uses the rows of each part.
    """
    devices = as_devices(devices)  # equal shards for a plain list
    step.prepare_trainer(trainer, devices)  # checks it: otherwise the devices could drift apart
    batch_size = devices.divisor(X)  # the batch_size of `train`, as in the book; for a plain list, the rows of X
    ls = step.in_parts(forward_backward, X, y, net, devices, loss)  # once; with --accumulate, for each part
    step.check_losses(ls, X)
    trainer.step(batch_size)
    return ls


@with_settings('concise')
def train(num_gpus: int | None, batch_size: int, lr: float | Callable, **settings: Any) -> Run:
    """Train ResNet-18 on multiple devices; print the accuracy, the seconds per epoch and the devices.

    Source: D2L 13.6.3, ``train``. Takes, returns and raises the same as `scratch.train`, but has no ``allreduce``, and
    more settings, such as ``dtype``, ``momentum``, or ``net``, another network, whose parameters are initialized anew;
    `settings.py` declares all. Raises ValueError also if a device does not support `dtype`.
    """
    setup = TrainingSetup('concise', num_gpus, batch_size, lr, settings)
    devices, (train_iter, test_iter), run = setup.devices, setup.data, setup.run
    npx.random.seed(setup.seed)  # for known shapes; ResNet-18 draws its weights in the first batch, when `run` seeds
    net = resnet18(10, setup.dtype) if setup.net is None else setup.net
    net.initialize(init=init.Normal(sigma=0.01), ctx=devices, force_reinit=True)  # setup.net may have parameters
    if setup.net is None:
        net.hybridize(static_alloc=True, static_shape=True)  # for speed: one operator, in memory allocated once
    # The book passes all parameters. The Trainer would also copy batch norm's statistics from the first device to the
    # others, while a backward pass may be writing them
    params = step.params_with_gradients(net)
    # gluon.Trainer(params, optimizer, optimizer_params, update_on_kvstore=False); with --horovod or --clip-norm, a
    # subclass of it
    trainer = devices.workers.trainer(params, setup.optimizer, setup.optimizer_params, setup.clip_norm)
    trained_net = SyncBatchNorm(net, devices.workers) if setup.sync_batch_norm else net
    loss = cross_entropy  # as in scratch.py
    num_epochs = run.num_epochs
    animator = Animator('epoch', f'{run.evaluated} acc', xlim=[1, num_epochs])
    for epoch in run.epochs(net, trainer, seed=setup.seed, lr=lr):
        for X, y in run.batches(train_iter):  # measures the time, and waits at the end, as npx.waitall()
            trainer.set_learning_rate(run.lr)  # the book's {'learning_rate': lr}; here, a schedule may change it
            run.record_losses(train_batch(X, y, trained_net, loss, trainer, devices))
        # `devices` also carry the shares and the other workers
        test_acc = evaluate_accuracy_gpus(net, test_iter, devices=devices)
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
