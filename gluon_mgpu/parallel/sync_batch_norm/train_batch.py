"""The training step with synchronized batch norm."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...mxnet_setup.compat import autograd, gluon
from ..split import split_batch
from ..step import params_with_gradients, prepare_idle_devices
from .synchronized import SyncBatchNorm


def train_batch_synchronized(X: Any, y: Any, net: SyncBatchNorm, loss: Callable, trainer: gluon.Trainer, devices: list,
                             batch_size: int | None = None) -> list:
    """Do the same as `concise.train_batch`, but on all devices together, because each loss depends on all rows.

    `net` is a `SyncBatchNorm`. Source: none in the book, where each device normalizes its own rows.

    Examples
    --------
    >>> concise.train(2, 256, 0.1, net=SyncBatchNorm(resnet18(10)), train_batch=train_batch_synchronized)
    """
    if not isinstance(net, SyncBatchNorm):
        raise ValueError('train_batch_synchronized needs a SyncBatchNorm: pass net=SyncBatchNorm(net)')
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        y_hats = net.forward(X_shards)
        ls = [loss(y_hat, y_shard) for y_hat, y_shard in zip(y_hats, y_shards)]
    net.backward(ls)
    prepare_idle_devices(params_with_gradients(net), X, devices)  # all devices have the same statistics
    trainer.step(batch_size or y.shape[0])
    return ls
