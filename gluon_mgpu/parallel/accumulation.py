"""Gradient accumulation: train on a batch in parts, which needs less memory, and update once."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from ..base.arguments import integer
from ..data.shards import shard_rows
from ..mxnet_setup.compat import fill
from .split import num_rows, rows_of
from .step import gradients


def scratch_in_parts(train_batch: Callable, num_parts: int) -> Callable:
    """Return a function like `scratch.train_batch`, which calls that for each of `num_parts` parts of a batch.

    It sums the gradients of the parts on each device, and updates once. There are fewer parts if a device would get no
    rows of a part. With one part, this is `train_batch` itself. All arguments must be given; a `batch_size` of None is
    the rows of the whole batch. Source: none in the book.

    Examples
    --------
    >>> scratch.train(2, 256, 0.2, train_batch=scratch_in_parts(scratch.train_batch, 4))
    """
    if integer('num_parts', num_parts, minimum=1) == 1:
        return train_batch

    def train_batch_in_parts(X: Any, y: Any, device_params: list, devices: list, lr: float, batch_size: int | None,
                             allreduce: Callable) -> list:
        sums = _PartSums(X, y, devices, num_parts)

        def allreduce_sums(data: list) -> None:
            sums.add(data)
            if sums.is_last:
                allreduce(data)

        return [l for X, y in sums.parts()
                for l in train_batch(X, y, device_params, devices, lr, batch_size or sums.num_rows, allreduce_sums)]
    return train_batch_in_parts


def concise_in_parts(train_batch: Callable, num_parts: int, always: bool = False) -> Callable:
    """Return a function like `concise.train_batch`, which calls that for each of `num_parts` parts of a batch.

    The rules are those of `scratch_in_parts`. With `always`, there are `num_parts` parts even without rows: with
    `train_batch_synchronized`, all workers take part in the exchanges of each part.

    Examples
    --------
    >>> concise.train(2, 256, 0.1, train_batch=concise_in_parts(concise.train_batch, 4))
    """
    if integer('num_parts', num_parts, minimum=1) == 1:
        return train_batch

    def train_batch_in_parts(X: Any, y: Any, net: Any, loss: Callable, trainer: Any, devices: list,
                             batch_size: int | None = None) -> list:
        sums = _PartSums(X, y, devices, num_parts, always)
        for gradient in gradients(net, devices):
            fill(gradient, 0)  # the first part need not use every parameter

        def step(batch_size: int) -> None:
            sums.add(gradients(net, devices))
            if sums.is_last:
                trainer.step(batch_size)

        trainer_of_parts = SimpleNamespace(step=step)
        return [l for X, y in sums.parts()
                for l in train_batch(X, y, net, loss, trainer_of_parts, devices, batch_size or sums.num_rows)]
    return train_batch_in_parts


class _PartSums:
    """The parts of a batch, and the sums of their gradients on each device.

    There are fewer parts if some device would get no rows of a part.
    """

    def __init__(self, X: Any, y: Any, devices: list, num_parts: int, always: bool = False):
        self._X, self._y, self.num_rows = X, y, num_rows(X, y)
        self._num_parts = num_parts if always else max(1, min(num_parts, self.num_rows // len(devices)))
        self._part = 0
        self._sums: list[list] = []  # of each call of `add` in this part

    @property
    def is_last(self) -> bool:
        """True in the last part, which updates the parameters."""
        return self._part == self._num_parts - 1

    def parts(self) -> Iterator[tuple[Any, Any]]:
        """Yield (X, y) of each part."""
        for part in range(self._num_parts):
            self._part = part
            self._sums_before, self._sums = iter(self._sums), []
            rows = shard_rows(self.num_rows, part, self._num_parts)
            yield rows_of(self._X, rows), rows_of(self._y, rows)

    def add(self, arrays: list) -> None:
        """Make gradients the sums over the parts so far; before the last part, keep these and set the gradients to 0.

        With gradients of 0, `sgd` does not change parameters. Each part calls this with the gradients of the same
        parameters, in the same order.
        """
        if self._part > 0:
            for gradient, so_far in zip(arrays, next(self._sums_before)):
                gradient += so_far
        if self.is_last:
            return
        self._sums.append([gradient.copy() for gradient in arrays])
        for gradient in arrays:
            fill(gradient, 0)
