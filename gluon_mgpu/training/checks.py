"""The check of the arguments of a chapter's ``train``."""
from __future__ import annotations

from typing import Any

from ..base.arguments import integer
from ..data.batches import check_training_data
from ..mxnet_setup.compat import gluon
from .parameters import plain
from .run import Run


class Default(int):
    """A default number. `check_training` can tell it from the same number given by the caller."""


def check_training(run: Run, num_epochs: int, batch_size: int, data: tuple, net: Any = None,
                   optimizer_params: dict | None = None) -> None:
    """Raise ValueError for what would give wrong numbers without an error, or fail late; reads no data but lists.

    `net` is the network, if it is not that of the chapter. All workers call this, because they compare `batch_size`.
    """
    if num_epochs != run.num_epochs and not isinstance(num_epochs, Default):
        raise ValueError(f'num_epochs {num_epochs}: must be {run.num_epochs}, as in run; leave it out')
    integer('batch_size', batch_size, minimum=1)
    run.workers.check_equal({'batch_size': batch_size})
    if 'learning_rate' in (optimizer_params or ()):
        raise ValueError('optimizer_params has a learning_rate, which lr would replace: leave it out')
    if net is not None:
        _check_net(plain(net))
    check_training_data(data, batch_size, plain(net), run.workers.allgather)
    run.check_data(*data)


def _check_net(net: Any) -> None:
    if not isinstance(net, gluon.HybridBlock):
        raise ValueError(f'net is a {type(net).__name__}: must be a gluon.HybridBlock, such as nn.HybridSequential')
    modes = {param.grad_req for param in net.collect_params().values()}
    if not modes - {'null'}:
        raise ValueError("net has no parameter to train: add layers, or set a parameter's grad_req to 'write'")
    if 'add' in modes:
        raise ValueError("net has parameters with grad_req 'add', whose gradients would grow from batch to batch: set "
                         "it to 'write'")
