"""A network to be trained on several devices, and its Trainer."""
from collections.abc import Callable

import numpy

from ..base.arguments import positive
from ..devices.lists import check_same
from ..mxnet_setup.compat import gluon
from ..networks.hybridize.block import HybridizedBlock, unwrapped
from .devices import as_devices
from .sync_batch_norm.network import SyncBatchNorm
from .trainer import trainable


def data_parallel(net: gluon.Block, devices: list, optimizer: str, optimizer_params: dict,
                  sync_batch_norm: bool = False) -> tuple[Callable, gluon.Trainer]:
    """Return what trains `net` on `devices`: the network as one operator on each, and its Trainer; does not block.

        net.initialize(init=init.Normal(sigma=0.01), ctx=devices)
        net, trainer = data_parallel(net, devices, 'sgd', {'learning_rate': 0.1})

    The network is the result of `hybridized`; a ``gluon.Block`` that is no HybridBlock runs as it is. The Trainer sums
    all gradients as one array if possible; with several workers in `Devices`, it is Horovod's, which sums over these.

    Besides what ``gluon.Trainer`` knows, `optimizer_params` may have ``'clip_norm'``, the largest norm of the gradient
    of the mean loss over all rows. Before each update, a larger gradient is scaled down to it, in place. Raises
    ValueError if the network is not initialized on `devices`, a list, in this order.

    Source: D2L 13.6.3, ``trainer = gluon.Trainer(net.collect_params(), ...)``.
    """
    devices, net = as_devices(devices), unwrapped(net)  # a cell of a notebook may run twice
    for param in trainable(net):
        try:
            check_same(f'{param.name} is on', param.list_ctx(), devices)
        except RuntimeError:
            raise ValueError(f'{param.name} is on no device: call net.initialize(ctx=devices), which initializes only '
                             'such parameters') from None
    optimizer_params = dict(optimizer_params)
    clip_norm = optimizer_params.pop('clip_norm', None)
    workers = devices.workers
    fast = SyncBatchNorm(net, workers) if sync_batch_norm else HybridizedBlock(net)
    # `trainable` leaves out batch norm's statistics: at its first step, a Trainer would copy the first device's to all
    trainer = workers.trainer(trainable(net), optimizer, optimizer_params, move_gradients=fast)
    if clip_norm is not None:
        _clip_before_update(trainer, positive('clip_norm', clip_norm))
    return fast, trainer


def _clip_before_update(trainer: gluon.Trainer, max_norm: float) -> None:
    """Let a Trainer, also Horovod's, scale the summed gradients, which are equal on all devices, before it updates."""
    # If each device clipped its own gradients before the sum, the result would depend on the number of devices
    update = trainer._update

    def clip_and_update(ignore_stale_grad: bool = False) -> None:
        params = [param for param in trainer._params if param.grad_req != 'null']
        for weights, gradients in zip(zip(*(param.list_data() for param in params)),
                                      zip(*(param.list_grad() for param in params))):
            # A stale gradient, of an earlier batch, is not used in the update
            if not (fresh := [g for weight, g in zip(weights, gradients) if weight._fresh_grad]):
                continue
            dtype = numpy.result_type('float32', *(g.dtype for g in fresh))  # in float16, the sum would overflow
            # norm = unit * relative. The squares of large numbers would overflow, so `unit` is about the largest number
            unit = sum(abs(g).max().astype(dtype) / len(fresh) for g in fresh) + 1e-30
            relative = sum(((g.astype(dtype, copy=False) / unit) ** 2).sum() for g in fresh) ** 0.5
            # g <- g min(1, max_norm / norm) for the mean gradient, whose divisor `step` has just given to the optimizer
            scale = (max_norm / trainer._optimizer.rescale_grad / unit / relative).clip(0, 1)
            for g in fresh:
                g *= scale.astype(g.dtype, copy=False)
        update(ignore_stale_grad)
    trainer._update = clip_and_update
