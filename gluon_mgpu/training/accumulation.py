"""Gradient accumulation: train on a batch in parts, which needs less memory, and update once."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ..data.shards import shard_rows
from ..mxnet_setup.compat import autograd, fill
from ..parallel.split import check_rows, rows_of
from ..parallel.step import gradients, params_with_gradients


class NoUpdate:
    """Takes the place of a Trainer in the parts before the last."""

    def step(self, batch_size: int) -> None:
        """Leave the gradients as they are, for the next part."""


def in_parts(train_batch: Callable, num_parts: int, always: bool = False, **without_update: Any) -> Callable:
    """Return a function that calls a chapter's `train_batch` for each part of a batch; the last call updates.

    The calls before get the keywords `without_update`. A batch has fewer parts if some device would get no rows; not if
    `always`, because each part exchanges something with other workers.
    """
    def train_batch_in_parts(X: Any, y: Any, net: Any, *args: Any, devices: list, batch_size: int | None = None,
                             **kwargs: Any) -> list:
        num_rows = check_rows(X, y)
        parts = num_parts if always else max(1, min(num_parts, num_rows // len(devices)))
        kwargs.update(devices=devices, batch_size=batch_size or num_rows)
        ls: list = []
        with _sums_of_gradients(net, devices):
            for part in range(parts):
                rows, changes = shard_rows(num_rows, part, parts), without_update if part < parts - 1 else {}
                ls += train_batch(rows_of(X, rows), rows_of(y, rows), net, *args, **{**kwargs, **changes})
        return ls
    return train_batch_in_parts


@contextlib.contextmanager
def _sums_of_gradients(net: Any, devices: list) -> Iterator[None]:
    """Let autograd add gradients in the block, as with ``grad_req='add'``, beginning with 0."""
    for gradient in gradients(net, devices):
        fill(gradient, 0)
    _mark(net, 'add')
    try:
        yield
    finally:
        _mark(net, 'write')  # otherwise a checkpoint would have the sums


def _mark(net: Any, grad_req: str) -> None:
    """Set how autograd writes gradients; ``param.grad_req = ...`` would allocate other arrays for them."""
    if hasattr(net, 'collect_params'):
        params = params_with_gradients(net)
        for param in params:
            param._grad_req = grad_req
        pairs = [pair for param in params if param._grad for pair in zip(param._data, param._grad)]
    else:
        pairs = [(param, param.grad) for on_device in net for param in on_device]
    if pairs:  # none before the first batch, which gives the layers their shapes
        autograd.mark_variables([data for data, _ in pairs], [gradient for _, gradient in pairs], grad_req)
