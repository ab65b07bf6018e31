"""ResNet-18 on multiple devices, the concise way with Gluon's Trainer (D2L 13.6).

    python -m gluon_mgpu.concise --train-size 8192 --num-epochs 3 --batch-size 64   # two devices, some minutes
    python -m gluon_mgpu.concise --devices gpu:0,gpu:1 --batch-size 512 --lr 0.2

The algorithm is that of `gluon_mgpu.scratch`. Gluon copies the parameters to the devices, and its Trainer sums the
gradients and updates the parameters. ResNet-18 also has batch norm, which each device computes over its own rows,
unless it is synchronized. Its code, D2L 13.6.1, is in `networks/resnet.py`; ``evaluate_accuracy_gpus``, D2L 13.6.3, is
in `training/evaluate.py`.
"""
from __future__ import annotations

import sys
from collections.abc import Callable

if not __package__:
    sys.exit('run this program as a module: python -m gluon_mgpu.concise')

from mxnet import autograd, gluon, init, np, npx

from .data import load_data
from .devices import devices_from
from .networks.loss import cross_entropy
from .networks.resnet import resnet18
from .outputs.plot import Animator
from .parallel.split import split_batch
from .parallel.step import params_with_gradients, prepare_idle_devices
from .training.checks import Default, check_training
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
        Maps (y_hat, y) to the loss of each row, (n,). With the mean over a shard instead, the step would depend on the
        number of devices.
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


def train(num_gpus: int | None, batch_size: int, lr: float | Callable, num_epochs: int = Default(10), *,
          devices: list | None = None, data: tuple | None = None, run: Run | None = None, seed: int = 0,
          net: gluon.HybridBlock | None = None, optimizer: str = 'sgd', optimizer_params: dict | None = None,
          Trainer: Callable = gluon.Trainer, train_batch: Callable = train_batch) -> Run:
    """Train ResNet-18 on multiple devices; print the accuracy, the seconds per epoch and the devices.

    Source: D2L 13.6.3, ``train``. The first arguments, the result and the errors are those of `scratch.train`.

    Parameters
    ----------
    net : gluon.HybridBlock, optional
        Another network, which is initialized anew. ``SyncBatchNorm(net)`` needs `train_batch_synchronized` as well;
        both are in `parallel/sync_batch_norm/`.
    optimizer, optimizer_params
        As for ``gluon.Trainer``, such as ``{'momentum': 0.9, 'wd': 1e-4}``, without a learning rate.
    Trainer : callable
        Makes the Trainer from the arguments of ``gluon.Trainer``, such as ``partial(ClippingTrainer, clip_norm=1)`` of
        `parallel/clipping.py`.
    train_batch : callable
        A function that is called like that above, such as ``concise_in_parts(train_batch, 4)`` of
        `parallel/accumulation.py`.
    """
    run = run or Run(num_epochs)
    devices = devices_from(num_gpus, devices)
    data = data or load_data('fashion-mnist', batch_size, seed=seed)
    check_training(run, num_epochs, batch_size, data, net, optimizer_params)
    train_iter, test_iter = data
    if net is None:
        net = resnet18(10)
        net.hybridize(static_alloc=True, static_shape=True)  # for speed: one operator, in memory allocated once
    # A network of known shapes draws its parameters now. ResNet-18 draws them in the first batch, from the seed of the
    # epoch, which `run.batches` sets
    npx.random.seed(seed)
    net.initialize(init=init.Normal(sigma=0.01), ctx=devices, force_reinit=True)
    # The book gives the Trainer all parameters. Then its first step also copies batch norm's statistics from the first
    # device to the others, while a backward pass may be writing them. Without updates on the key-value store, each
    # device updates its own parameters, as in scratch.py
    trainer = Trainer(params_with_gradients(net), optimizer, optimizer_params, update_on_kvstore=False)
    loss = cross_entropy  # gluon.loss.SoftmaxCrossEntropyLoss(), as one operator
    animator = Animator('epoch', f'{run.evaluated} acc', xlim=[1, run.num_epochs])
    for epoch in run.epochs(net, trainer, seed=seed, lr=lr):
        for X, y in run.batches(train_iter):  # as in scratch.py
            trainer.set_learning_rate(run.lr)  # the book's {'learning_rate': lr}; here, a schedule may change it
            run.record_losses(train_batch(X, y, net, loss, trainer, devices, batch_size))
        accuracy = evaluate_accuracy_gpus(net, test_iter, devices=devices, workers=run.workers)
        animator.add(epoch, (accuracy,))
        run.end_epoch(accuracy)
    run.print_summary(devices)
    return run


def main(argv: list | None = None) -> int:
    """Run the command line ``python -m gluon_mgpu.concise``; return the exit status."""
    from .settings import cli
    return cli.run('concise', sys.modules[__name__], argv)


if __name__ == '__main__':
    sys.exit(main())
