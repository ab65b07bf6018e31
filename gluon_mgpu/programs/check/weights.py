"""Measure the weight of each row in the update of each device, and explain the weights.

The update of plain SGD is a sum of one contribution per row, and each row must count once. To measure the weight of a
row in the update of each device, replace the row by another: the update changes by the weight times what the update of
a single device changes.
"""
from __future__ import annotations

from collections.abc import Callable

import numpy

from .clipping import CLIP_AFTER
from .comparison import Comparison, updates
from .user_step import Training

RESIDUAL = {'float64': 1e-4, None: 0.2}  # relative to what another row changes


def row_weights(several: Training, found: Comparison) -> numpy.ndarray | None:
    """Return the weight of each row in the update of each device; None if no weights explain the updates."""
    one, first, weights = several.on_one_device(), found.batches[0], []
    *earlier, last = found.batches  # the earlier ones as well, because a step may update only after several
    [right_before], before = (updates(training, found, found.batches) for training in (one, several))
    for i in range(len(last[0])):
        j = next((j for j in range(len(first[0])) if any(numpy.any(a[i] != b[j]) for a, b in zip(last, first))), None)
        if j is None:  # all rows are equal
            return None
        replaced = [numpy.concatenate([a[:i], b[j:j + 1], a[i + 1:]]) for a, b in zip(last, first)]
        batches = [*earlier, replaced]
        right, changes = updates(one, found, batches)[0] - right_before, updates(several, found, batches) - before
        weights.append(changes @ right / (right @ right or 1))
        rest = changes - numpy.outer(weights[-1], right)
        if not numpy.linalg.norm(rest) < RESIDUAL[several.dtype] * numpy.linalg.norm(right):
            return None
    return numpy.stack(weights, axis=1)


def explain(weights: numpy.ndarray, devices: list[str], shards: list[slice], same: Callable,
            clipped: bool) -> tuple[str, str]:
    """Return fault and remedy for the weights of the rows in the update of each device."""
    n, first, ratio = weights.shape[1], weights[0], weights[0, 0]
    if same(weights, 1):
        return ('each row counts once, to three digits, but something else differs',
                'add weight decay, or a term of the loss without rows, once in each step and equally on all devices')
    if same(weights, weights[:, :1]) and (same(ratio, 0) or not same(weights, ratio)):
        faults = [f'leaves out {device}' if same(row, 0) else f'counts {number(row[0])} times on {device}'
                  for device, row in zip(devices, weights) if not same(row, 1)]
        rows = [shard.stop - shard.start for shard in shards]
        if n >= len(devices) and same(weights[:, 0] * rows, ratio * rows[0]):
            return (f'each device divides by its own rows, so the update {", ".join(faults)}',
                    'divide by the rows of the whole batch, or by the batch size, on all devices')
        return (f'the update {", ".join(faults)}', 'update all devices, with the same learning rate; '
                'ignore_stale_grad=True skips devices without rows')
    if not same(weights, first):
        alone = [device for device, row, shard in zip(devices, weights, shards) if same(numpy.delete(row, shard), 0)]
        return (f'the sum of the gradients does not reach {", ".join(alone) or "all devices"}',
                'sum the gradients over the devices, and write the sum into their arrays: total.copyto(data[i]), not '
                "data[i] = total; a Trainer needs kvstore='device', not None")
    counts = {f'row {i + 1}': weight for i, weight in enumerate(first)}
    if all(same(first[shard], first[shard.start]) for shard in shards):
        counts = {f'the gradient of {device}': first[shard.start] for device, shard in zip(devices, shards)}
    fault = ', '.join(f'{unit} counts {number(weight)} times' for unit, weight in counts.items()
                      if not same(weight, 1))
    if clipped and same(first, len(devices) ** -0.5):
        return (f'the update is {number(ratio)} times that of one device, 1 over the square root of {len(devices)}: '
                'the gradients are clipped by the norm of the copies of all devices', CLIP_AFTER)
    if same(first, ratio):
        fault = (f'the update is {number(ratio)} times that of one device, as if {n} rows were divided by '
                 f'{n / ratio:.4g}')
    elif same([first[shard].sum() for shard in shards], first[shards[0]].sum()):
        fault = 'each device has the same weight whatever its rows, a mean of means'
    return fault, ('use all rows; sum the losses on each device and the gradients over all devices, without means; '
                   'divide once, by the rows of the whole batch or by the batch size')


def number(weight: float) -> str:
    """0.99999 -> '1', 1.01234 -> '1.012', 1/3 -> '0.333'"""
    return f'{round(weight, 3) + 0.0:.4g}'
