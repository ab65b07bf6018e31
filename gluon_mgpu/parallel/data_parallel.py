"""A network to be trained on several devices, and its Trainer."""
from __future__ import annotations

from collections.abc import Callable

from ..mxnet_setup.compat import gluon
from ..networks.hybridize import HybridizedBlock
from .devices import as_devices
from .sync_batch_norm import SyncBatchNorm
from .trainer import trainable


def data_parallel(net: gluon.HybridBlock, devices: list, optimizer: str, optimizer_params: dict,
                  sync_batch_norm: bool = False) -> tuple[Callable, gluon.Trainer]:
    """Return what trains `net` on `devices`: the network as one operator on each, and its Trainer; does not block.

        net.initialize(init=init.Normal(sigma=0.01), ctx=devices)
        net, trainer = data_parallel(net, devices, 'sgd', {'learning_rate': 0.1})

    Each loss must come from one call of the returned network, and from its parameters in no other way, such as a
    penalty on the weights. Then gradients are written without a copy. (Otherwise use `hybridized`.) The Trainer sums
    all gradients of a device as one array; with several workers in `Devices`, it also sums over these.

    Source: D2L 13.6.3, ``trainer = gluon.Trainer(net.collect_params(), ...)``.
    """
    workers = as_devices(devices).workers
    fast = SyncBatchNorm(net, workers) if sync_batch_norm else HybridizedBlock(net, used_once=True)
    # `trainable` leaves out batch norm's statistics: at its first step, a Trainer would copy the first device's to all
    return fast, workers.trainer(trainable(net), optimizer, optimizer_params, move_gradients=fast)
