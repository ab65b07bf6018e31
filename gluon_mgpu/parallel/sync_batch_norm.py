"""Synchronized batch norm: mean and variance over the rows of all devices, so that k devices equal one.

`networks.cut` cuts a network at its batch norms; `norm` has the formulas.
"""
from __future__ import annotations

from typing import Any, NamedTuple

from ..mxnet_setup.compat import autograd, mx, np
from ..networks.cut import cut
from ..networks.hybridize import HybridizedBlock, unwrapped
from ..networks.pieces import Backward, Piece, as_input
from .norm import Norm
from .workers import Workers


class SyncBatchNorm(HybridizedBlock):
    """A network whose batch norm layers use the rows of all devices; the block itself does not change.

        net = SyncBatchNorm(net)
        with autograd.record():
            ls = [loss(y_hat, y_shard) for y_hat, y_shard in zip(net.forward(X_shards), y_shards)]
        net.backward(ls)          # not autograd.backward: each loss depends on the rows of all devices
        scores = net(X)           # after training; uses the running statistics

    The network is cut at its batch norms. All devices compute a piece, then the statistics of its output are combined,
    then all compute the next piece. Running statistics are updated in the backward pass, as by ``gluon.nn.BatchNorm``
    on one device. They are the same on all devices, including those without rows.

    Parameters
    ----------
    net : gluon.HybridBlock or the result of `hybridized`
        Initialized on all devices. Only its ``gluon.nn.BatchNorm`` layers may combine rows.
    workers : Workers, optional
        The processes that train together; by default, this one alone. All must call `forward` and `backward` equally
        often, a worker without rows with ``net.forward([])`` and ``net.backward([])``.
    """

    def __init__(self, net: Any, workers: Workers | None = None):
        super().__init__(unwrapped(net))
        self._workers = workers or Workers()
        self._parts: list[Piece | Norm] = []
        self._data = self._result = ''              # names of the network's input and output
        self._frozen: list[bool] = []               # of each parameter, when the network was cut
        self._pending: _ForwardPass | None = None   # waits for its backward pass
        self._outdated: list = []                   # outputs of a forward pass before that one

    gradients_can_move = True  # `backward` copies them

    def __call__(self, *args):
        if autograd.is_training():
            raise ValueError('SyncBatchNorm needs the rows of all devices to train: call net.forward(X_shards)')
        return super().__call__(*args)

    def forward(self, X_shards: list) -> list:
        """Return the output for each shard of a batch, while autograd records; does not block after the first call.

        `X_shards` has one array (n_i, ...) with at least one row per device, for some or all devices of the network.
        With several workers, it may be empty. Raises ValueError outside training mode, without shards, for two on one
        device, if ``autograd.backward`` was called instead of `backward` for the previous batch, or if the network
        cannot be traced or has another batch norm than ``gluon.nn.BatchNorm``.
        """
        if not autograd.is_training() or (not X_shards and self._workers.size == 1):
            raise ValueError('SyncBatchNorm.forward trains on at least one shard: call it within autograd.record(); '
                             'without training, call net(X)')
        if len({X.ctx for X in X_shards}) < len(X_shards):
            raise ValueError(f'X_shards are on {[X.ctx for X in X_shards]}: pass one array per device')
        self._outdated, self._pending = self._pending.y_hats if self._pending else [], None
        _check_not_reached(self._outdated, 'autograd.backward(ls) ends at the outputs of SyncBatchNorm: call '
                                           'net.backward(ls)')
        params = {param.var().name: param for param in self.collect_params().values()}
        frozen = [param.grad_req == 'null' for param in params.values()]
        if not self._parts or frozen != self._frozen:
            parts, self._data, self._result = cut(self.block, X_shards[0] if X_shards else None)
            self._parts = [part if isinstance(part, Piece) else Norm(part, self._workers) for part in parts]
            self._frozen = frozen
        trained = {name for name, param in params.items() if param.grad_req != 'null'}
        if any(map(_is_recorded, X_shards)):
            self._check_all_exchange(trained)
            trained.add(self._data)
        inputs_on = [{**{name: param.data(X.ctx) for name, param in params.items()}, self._data: X} for X in X_shards]
        arrays_on = [inputs.copy() for inputs in inputs_on]
        backwards = [part.run(arrays_on, trained) for part in self._parts]
        y_hats = [as_input(arrays[self._result]) for arrays in arrays_on]
        if autograd.is_recording():
            self._pending = _ForwardPass(inputs_on, backwards, y_hats)
        return y_hats

    def backward(self, ls: list, head_grads: list | None = None) -> None:
        """Do the same as ``autograd.backward`` for losses that were computed from the outputs; does not block.

        Raises ValueError if `forward` was not called before, or if the losses also depend on an earlier `forward`.
        """
        if not self._pending:
            raise ValueError('SyncBatchNorm.backward has no forward pass: call net.forward(X_shards) for each backward')
        (inputs_on, backwards, y_hats), self._pending = self._pending, None  # first, for a new try after Ctrl-C
        ls, head_grads = list(ls), list(head_grads or [None] * len(ls))
        with autograd.pause(train_mode=True):
            # 1. The gradients of the outputs. The losses need not depend on all of them
            others = [y_hat for y_hat in y_hats if not any(y_hat is l for l in ls)]
            zeros = [np.zeros_like(y_hat) for y_hat in others]
            gradients = autograd.grad(ls + others, y_hats, head_grads + zeros, retain_graph=True) if y_hats else []
            # 2. Those of the parameters and of X, through the network
            gradients_on = [{self._result: gradient} for gradient in gradients]
            for backward in reversed(backwards):
                backward(gradients_on)
            # 3. Pass them on to what is in front of X, and write all gradients. It must be one pass, because the losses
            # may also use X, what is in front of it, and parameters in other ways, such as in a penalty
            for inputs, gradients in zip(inputs_on, gradients_on):
                if not _is_recorded(inputs[self._data]):  # unlike that of another device
                    gradients.pop(self._data, None)
                names = [name for name in gradients if name in inputs]  # not the output, if all layers are frozen
                ls += [inputs[name] for name in names]
                head_grads += [gradients[name] for name in names]
            if ls:
                autograd.backward(ls, head_grads)
        _check_not_reached(self._outdated, 'the losses depend on two forward passes of SyncBatchNorm, but '
                                           'net.backward(ls) only works for the last one: call it after each forward')

    def _check_all_exchange(self, trained: set[str]) -> None:
        """Raise ValueError if X is recorded and a worker without rows would not know which norms need gradients."""
        norms = [part.layer for part in self._parts if isinstance(part, Norm)]
        if self._workers.size > 1 and any(trained.isdisjoint((layer.gamma, layer.beta)) for layer in norms):
            raise ValueError('with several workers, SyncBatchNorm does not pass gradients on to X through a batch norm '
                             'without trained scale or shift: use X.detach(), or train them')


class _ForwardPass(NamedTuple):
    inputs_on: list[dict]       # on each device, X and the parameters by name
    backwards: list[Backward]   # of each part
    y_hats: list


def _check_not_reached(y_hats: list, message: str) -> None:
    """Raise ValueError if a backward pass has ended at these outputs, which belong to no backward pass."""
    if any(y_hat._fresh_grad for y_hat in y_hats):
        y_hats.clear()
        raise ValueError(message)


def _is_recorded(array: Any) -> bool:
    """Return whether autograd passes gradients on to an array, or behind it."""
    try:
        autograd.get_symbol(array)
    except mx.base.MXNetError:
        return False
    return True
