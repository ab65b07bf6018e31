"""Gradient accumulation: train a batch in parts, which needs the memory of one part, and update once."""
from __future__ import annotations

from collections.abc import Callable, Iterator

from ..base.checks import integer
from ..data.shards import shard_rows


def in_parts(X_shards: list, y_shards: list, num_parts: int, gradients: Callable[[int], list]) -> Iterator[tuple]:
    """Yield the shards of a batch in parts, and add up the gradients of all parts; does not block.

        for X_parts, y_parts in in_parts(X_shards, y_shards, 4, gradients):
            ...                                    # forward and backward on each device
        trainer.step(batch_size)                   # the gradients are sums over all rows, as without parts

    Parameters
    ----------
    X_shards, y_shards : list of np.ndarray
        From `split_batch`: one array per device that got rows. They are cut into parts as evenly as possible, and into
        fewer than `num_parts` if a shard has fewer rows, so that every part has rows on the same devices.
    gradients : callable
        Maps the number of a device to its gradients. Each backward pass must overwrite all of them
        (``grad_req='write'``, and every parameter is used). The first call follows the first part.
    """
    num_parts = min(integer('accumulate', num_parts, minimum=1), min(map(len, y_shards), default=0))
    if num_parts == 1:
        yield X_shards, y_shards
        return
    for i in range(num_parts):
        rows = [shard_rows(len(y), i, num_parts) for y in y_shards]
        # g <- (gradient of this part) + (sum over the parts before)
        before = [[g.copy() for g in gradients(device)] for device in range(len(rows) if i else 0)]
        yield [X[at] for X, at in zip(X_shards, rows)], [y[at] for y, at in zip(y_shards, rows)]
        for device, sums in enumerate(before):
            for g, so_far in zip(gradients(device), sums):
                g += so_far
