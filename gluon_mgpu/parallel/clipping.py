"""Limit the norm of the gradient in a Trainer's step."""
from __future__ import annotations

from typing import Any

import numpy

from ..base.arguments import positive
from ..mxnet_setup.compat import gluon


class ClippingTrainer(gluon.Trainer):
    """``gluon.Trainer`` that limits the norm of the gradient, summed over all devices, before it updates.

    A gradient of the mean loss, over all rows, with a larger norm than `clip_norm` is scaled down to it, in place. None
    is no limit. The Trainer updates on each device, whatever `update_on_kvstore` is, because the key-value store would
    sum and update at once. The other arguments are those of ``gluon.Trainer``. Source: none in the book, which clips on
    one device (D2L 9.5).

    Examples
    --------
    >>> concise.train(2, 256, 0.1, Trainer=functools.partial(ClippingTrainer, clip_norm=1))
    """

    def __init__(self, params: Any, optimizer: str, optimizer_params: dict | None = None,
                 clip_norm: float | None = None, update_on_kvstore: bool = False, **settings: Any):
        super().__init__(params, optimizer, optimizer_params, update_on_kvstore=False, **settings)
        self.clip_norm = None if clip_norm is None else positive('clip_norm', clip_norm)

    def _update(self, ignore_stale_grad: bool = False) -> None:
        # `step` and `update` call this after the sum; `rescale_grad` has the divisor. If each device clipped its own
        # gradients before the sum, the result would depend on the number of devices
        if self.clip_norm is not None:
            params = [param for param in self._params if param.grad_req != 'null']
            _clip(params, self.clip_norm / self._optimizer.rescale_grad)
        super()._update(ignore_stale_grad)


def _clip(params: list, max_norm: float) -> None:
    """Scale the gradients to a norm of at most `max_norm`, which each device computes from its own, equal copies."""
    for device in params[0].list_ctx() if params else ():
        # Without those of an earlier batch, which the update ignores
        gradients = [param.grad(device) for param in params if param.data(device)._fresh_grad]
        if gradients:
            # g <- g min(1, max_norm / norm)
            scale = (max_norm / _norm(gradients)).clip(0, 1)
            for g in gradients:
                g *= scale.astype(g.dtype)


def _norm(gradients: list) -> Any:
    """Return the norm of all gradients as an array ()."""
    dtype = numpy.result_type('float32', *(g.dtype for g in gradients))  # in float16, the sum may overflow
    # Divide by about the largest number, because the squares of large numbers overflow
    unit = sum(abs(g).max().astype(dtype) / len(gradients) for g in gradients) + 1e-30
    return unit * sum(((g.astype(dtype) / unit)**2).sum() for g in gradients)**0.5
