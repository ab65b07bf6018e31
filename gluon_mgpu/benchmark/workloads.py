"""What is measured: the networks of both chapters, a step as it is trained and part by part.

A workload has the `devices` and the `net` that is trained there, as `Run.epochs` takes it.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import concise, scratch
from ..mxnet_setup.compat import autograd, gluon, init
from ..networks.hybridize import hybridized
from ..networks.resnet import resnet18
from ..parallel.split import split_batch
from ..parallel.trainer import Trainer
from ..training.parameters import trainable


class LeNet:
    """The scratch chapter's network on `devices`, ready to train."""

    batch_size, batch_size_on_cpus = 256, 256
    warm_up, steps, part_steps = 5, 40, 10

    def __init__(self, devices: list):
        params = scratch.init_params()
        self.devices = devices
        self.net = [scratch.get_params(params, device) for device in devices]

    def train_batch(self, X, y) -> list:
        """Train on a batch, `X` (n, 1, 28, 28) and `y` (n,), as the chapter does; returns the losses, does not wait."""
        return scratch.train_batch(X, y, self.net, self.devices, lr=0.2)

    def parts(self, X, y) -> Iterator[str]:
        """Do what `train_batch` does with `X` and `y`, and yield the name of each part when it is queued."""
        X_shards, y_shards = split_batch(X, y, self.devices)
        yield 'split'
        with autograd.record():
            ls = [scratch.loss(scratch.lenet(X_shard, params), y_shard)
                  for X_shard, y_shard, params in zip(X_shards, y_shards, self.net)]
        for l in ls:
            l.backward()
        yield 'forward+backward'
        scratch.allreduce([params.flat.grad for params in self.net])
        yield 'allreduce'
        for params in self.net:
            scratch.sgd([params.flat], 0.2, len(X))
        yield 'update'


class ResNet18:
    """The concise chapter's network on `devices`, ready to train."""

    # A row takes some 20 MB: 256 of them on each of many cores are more than most machines have
    batch_size, batch_size_on_cpus = 256, 64
    warm_up, steps, part_steps = 1, 5, 2

    def __init__(self, devices: list):
        net = resnet18(10)
        net.initialize(init=init.Normal(sigma=0.01), ctx=devices)
        self.devices, self.net = devices, hybridized(net)
        self.loss = hybridized(gluon.loss.SoftmaxCrossEntropyLoss())
        self.trainer = Trainer(trainable(self.net), 'sgd', {'learning_rate': 0.1})

    def train_batch(self, X, y) -> list:
        """Train on a batch, `X` (n, 1, 28, 28) and `y` (n,), as the chapter does; returns the losses, does not wait."""
        return concise.train_batch(X, y, self.net, self.loss, self.trainer, self.devices)

    def parts(self, X, y) -> Iterator[str]:
        """Do what `train_batch` does with `X` and `y`, and yield the name of each part when it is queued."""
        X_shards, y_shards = split_batch(X, y, self.devices)
        yield 'split'
        with autograd.record():
            ls = [self.loss(self.net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
        for l in ls:
            l.backward()
        yield 'forward+backward'
        self.trainer.allreduce_grads()
        yield 'allreduce'
        self.trainer.update(len(X))
        yield 'update'


NETWORKS: dict[str, Any] = {'lenet': LeNet, 'resnet18': ResNet18}
