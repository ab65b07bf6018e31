"""The networks of both chapters, ready to train one batch at a time, as in the chapter or part by part."""
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


class _Workload:
    """Base class for a network on `devices`. Subclasses define `net`, as `Run.epochs` takes it, and its steps."""

    def parts(self: Any, X, y) -> Iterator[str]:
        """Do the same as `train_batch`, and yield the name of each part when it is queued."""
        X_shards, y_shards = split_batch(X, y, self.devices)
        yield 'split'
        with autograd.record():
            ls = self._losses(X_shards, y_shards)
        for l in ls:
            l.backward()
        yield 'forward+backward'
        self._allreduce()
        yield 'allreduce'
        self._update(len(X))
        yield 'update'


class LeNet(_Workload):
    """The scratch chapter's network."""

    batch_size, batch_size_on_cpus = 256, 256
    warm_up, steps, part_steps = 5, 40, 10

    def __init__(self, devices: list):
        params = scratch.init_params()
        self.devices = devices
        self.net = [scratch.get_params(params, device) for device in devices]

    def train_batch(self, X, y) -> list:
        """Train on `X` (n, 1, 28, 28) and `y` (n,), like the chapter; return the losses; does not block."""
        return scratch.train_batch(X, y, self.net, self.devices, lr=0.2)

    def _losses(self, X_shards, y_shards) -> list:
        return [scratch.loss(scratch.lenet(X, params), y) for X, y, params in zip(X_shards, y_shards, self.net)]

    def _allreduce(self) -> None:
        scratch.allreduce([params.flat.grad for params in self.net])

    def _update(self, batch_size: int) -> None:
        for params in self.net:
            scratch.sgd([params.flat], 0.2, batch_size)


class ResNet18(_Workload):
    """The concise chapter's network."""

    # A row takes about 20 MB: 256 on each of many cores is more than most machines have
    batch_size, batch_size_on_cpus = 256, 64
    warm_up, steps, part_steps = 1, 5, 2

    def __init__(self, devices: list):
        net = resnet18(10)
        net.initialize(init=init.Normal(sigma=0.01), ctx=devices)
        self.devices, self.net = devices, hybridized(net, used_once=True)
        self.loss = hybridized(gluon.loss.SoftmaxCrossEntropyLoss())
        self.trainer = Trainer(trainable(self.net), 'sgd', {'learning_rate': 0.1}, move_gradients=True)
        self._allreduce, self._update = self.trainer.allreduce_grads, self.trainer.update

    def train_batch(self, X, y) -> list:
        """Train on `X` (n, 1, 28, 28) and `y` (n,), like the chapter; return the losses; does not block."""
        return concise.train_batch(X, y, self.net, self.loss, self.trainer, self.devices)

    def _losses(self, X_shards, y_shards) -> list:
        return [self.loss(self.net(X), y) for X, y in zip(X_shards, y_shards)]


NETWORKS: dict[str, Any] = {'lenet': LeNet, 'resnet18': ResNet18}
