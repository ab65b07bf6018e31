"""A network on all devices: its forward and backward pass, its gradients, and devices that get no rows.

It is a Gluon network, the result of `hybridized` or `SyncBatchNorm`, or lists of parameters, one per device.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..mxnet_setup.compat import autograd, gluon, np
from ..networks.tracing import leaves
from .flat import flattened
from .split import split_and_load
from .sync_batch_norm import SyncBatchNorm


def forward(net: Callable, X_shards: list) -> list:
    """Return the output of a Gluon network for each shard, while autograd records; does not block."""
    return net.forward(X_shards) if isinstance(net, SyncBatchNorm) else [net(X_shard) for X_shard in X_shards]


def backward(net: Callable, ls: list) -> None:
    """Compute the gradients of all parameters from the losses of the shards; does not block.

    In the book, ``l.backward()`` for each l. With synchronized batch norm, each l depends on the rows of all devices.
    """
    if isinstance(net, SyncBatchNorm):
        net.backward(ls)
    elif ls:
        autograd.backward(ls)


def gradients(net: Any, devices: list) -> list:
    """Return the gradients on all devices that a backward pass overwrites (``grad_req='write'``); does not wait."""
    if not hasattr(net, 'collect_params'):
        return [param.grad for params in net for param in flattened(params)]
    params = {id(param): param for param in net.collect_params().values()}  # MXNet 2 lists a shared one several times
    return [param.grad(device) for device in devices for param in params.values() if param.grad_req == 'write']


def prepare_idle_devices(net: Any, X: Any, devices: list) -> None:
    """Prepare the devices that got no rows of the batch `X` for the update, see `zero_grad`; does not block.

    Their batch norm statistics are updated with the first row of `X`. (`SyncBatchNorm` has updated those of all.)
    """
    idle_devices = devices[len(X):]
    if not idle_devices:
        return
    if not hasattr(net, 'collect_params'):
        for gradient in gradients(net[len(X):], idle_devices):
            gradient[()] = 0  # also for the shape ()
        return
    for device in idle_devices if len(X) and not isinstance(net, SyncBatchNorm) else ():
        with autograd.record():
            y_hat = net(*split_and_load(X[:1], [device]))
        y_hats = leaves(y_hat)
        autograd.backward(y_hats, [np.zeros_like(y_hat) for y_hat in y_hats])  # updates the statistics on MXNet 2
    zero_grad(net, idle_devices)


def zero_grad(net: gluon.Block, devices: list) -> None:
    """Set the gradients of `net` on some of its devices to zero, in place; does not block.

    Gradients with ``grad_req='add'`` stay: they are sums, to which these devices add nothing. All are marked as written
    by a backward pass. Otherwise Gluon's Trainer would reject or skip them.
    """
    for gradient in gradients(net, devices):
        gradient[()] = 0  # also for the shape ()
    for param in net.collect_params().values():
        for device in devices if param.grad_req != 'null' else ():
            param.data(device)._fresh_grad = True
