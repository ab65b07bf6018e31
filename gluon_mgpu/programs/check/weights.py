"""Measure the weight of each row in the update of each device, and explain the weights.

The update of plain SGD is a sum of one contribution per row, and each must count once. If a row is replaced, the update
of a device changes by its weight times the change on a single device. Where no weights explain the update,
`explain_scaling` compares it with the updates by the shards alone.
"""
from __future__ import annotations

from collections.abc import Callable

import numpy

from .step_comparison import Comparison, updates
from .user_step import Training

NEGLIGIBLE = 1e-4  # relative to the largest number of an update
COUNT_ALL = 'divide the sum of the losses by the count of the whole batch, on all devices'
CLIP_AFTER = ("sum the gradients first, with update_on_kvstore=False and trainer.allreduce_grads(); clip each device's "
              'copy by the norm of that copy alone; then trainer.update()')
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
    # A line of `weights` is a device, a column is a row of the batch. The examples have two of each
    n, first, ratio = weights.shape[1], weights[0], weights[0, 0]
    if same(weights, 1):
        return ('each row counts once, to three digits, but something else differs',
                'add weight decay, or a term of the loss without rows, once in each step and equally on all devices')
    if same(weights, weights[:, :1]) and (same(ratio, 0) or not same(weights, ratio)):  # [[1, 1], [0.5, 0.5]]
        faults = [f'leaves out {device}' if same(row, 0) else f'counts {number(row[0])} times on {device}'
                  for device, row in zip(devices, weights) if not same(row, 1)]
        rows = [shard.stop - shard.start for shard in shards]
        if n >= len(devices) and same(weights[:, 0] * rows, ratio * rows[0]):
            return (f'each device divides by its own rows, so the update {", ".join(faults)}',
                    'divide by the rows of the whole batch, or by the batch size, on all devices')
        return (f'the update {", ".join(faults)}', 'update all devices, with the same learning rate; '
                'ignore_stale_grad=True skips devices without rows')
    if not same(weights, first):  # [[1, 0], [0, 1]]
        alone = [device for device, row, shard in zip(devices, weights, shards) if same(numpy.delete(row, shard), 0)]
        return (f'the sum of the gradients does not reach {", ".join(alone) or "all devices"}',
                'sum the gradients over the devices, and write the sum into their arrays: total.copyto(data[i]), not '
                "data[i] = total; a Trainer needs kvstore='device', not None")
    # From here on, the devices have equal updates: [[2, 0], [2, 0]]
    counts = {f'row {i + 1}': weight for i, weight in enumerate(first)}
    if all(same(first[shard], first[shard.start]) for shard in shards):
        counts = {f'the gradient of {device}': first[shard.start] for device, shard in zip(devices, shards)}
    fault = ', '.join(f'{unit} counts {number(weight)} times' for unit, weight in counts.items() if not same(weight, 1))
    if clipped and same(first, len(devices) ** -0.5):
        return (f'the update is {number(ratio)} times that of one device, 1 over the square root of {len(devices)}: '
                'the gradients are clipped by the norm of the copies of all devices', CLIP_AFTER)
    if same(first, ratio):  # [[2, 2], [2, 2]]
        fault = (f'the update is {number(ratio)} times that of one device, as if {n} rows were divided by '
                 f'{n / ratio:.4g}')
    elif same([first[shard].sum() for shard in shards], first[shards[0]].sum()):
        fault = 'each device has the same weight whatever its rows, a mean of means'
    return fault, ('use all rows; sum the losses on each device and the gradients over all devices, without means; '
                   'divide once, by the rows of the whole batch or by the batch size')


def number(weight: float) -> str:
    """0.99999 -> '1', 1.01234 -> '1.012', 1/3 -> '0.333'"""
    return f'{round(weight, 3) + 0.0:.4g}'


def explain_scaling(several: Training, found: Comparison, shards: list[slice]) -> tuple[str, str] | None:
    """Return fault and remedy if the gradients are scaled or clipped by something that differs from one device's."""
    # Compare the update by the last batch with those that one device makes with the whole of it and with its shards. If
    # update = a * whole, all rows are scaled; if update = sum_i a_i parts_i, each device does something to its own
    one, batch = several.on_one_device(), found.batches[-1]
    try:
        [update, *others], [whole] = (updates(training, found, [batch]) for training in (several, one))
        parts = numpy.concatenate([updates(one, found, [[a[rows] for a in batch]]) for rows in shards])
    except Exception:  # the step needs batches before this one, or whole batches
        return None
    is_valid = parts.any(axis=1).all() and numpy.isfinite(parts).all()  # a shard alone may have no labels that count
    if len(whole) < 3 * len(parts) or not is_valid or not all(_equal(other, update) for other in others):
        return None
    factor, numbers, shares = (_combination(*pair) for pair in ((update, whole[None]), (update, parts), (whole, parts)))
    divides = shares is not None and abs(shares.sum() - 1) < NEGLIGIBLE  # one device divides by the count of its rows
    if factor is not None:
        fault = f'the update is {factor[0]:.3g} times that of one device, and this number changes with the rows: '
        own_rows = numpy.array([rows.stop - rows.start for rows in shards]) / len(batch[0])
        if shares is not None and divides and not _equal(shares, own_rows):  # which may be all that it divides by
            return f'{fault}its divisor, such as a number of valid labels, is not that of the whole batch', COUNT_ALL
        return f'{fault}the norm by which the gradients are clipped is not that of their sum', CLIP_AFTER
    if numbers is None:
        return None
    if divides:
        return 'each device divides by its own count, such as that of its valid labels', COUNT_ALL
    # Clipped by value, the largest size of a number occurs three times in an update; twice, it may be of two classes
    largest = numpy.isclose(abs(parts), abs(parts).max(axis=1, keepdims=True), rtol=NEGLIGIBLE, atol=0)
    if shares is not None or (largest.sum(axis=1) > 2).any():
        return 'each device clips its own gradient before the sum', CLIP_AFTER
    kind = {1: 'sum', len(parts): 'mean'}.get(round(1 / numbers[0], 3) if _equal(numbers, numbers[:1]) else 0)
    return (f'the update is the {kind or "weighted sum"} of what each device does with its rows alone, and the whole '
            'batch on one device does something else: terms of the loss are divided by counts of each device, or rows '
            'influence each other', 'divide each term of the loss by its count in the whole batch, on all devices, and '
            'step by 1')


def _combination(update: numpy.ndarray, parts: numpy.ndarray) -> numpy.ndarray | None:
    """Return the numbers, all positive, with which the sum of `parts` is `update`; None if there are none."""
    numbers, *_ = numpy.linalg.lstsq(parts.T, update, rcond=None)
    return numbers if (numbers > 0).all() and _equal(numbers @ parts, update) else None


def _equal(update: numpy.ndarray, other: numpy.ndarray) -> bool:
    return bool(abs(update - other).max() <= NEGLIGIBLE * abs(other).max())
