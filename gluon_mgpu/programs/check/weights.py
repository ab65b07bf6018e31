"""The weight of each row in the update of each device.

The update of plain SGD is a sum of one contribution per row, and each must count once. If a row is replaced by another
one that changes the update of a single device, that of each device changes by the row's weight times as much.
"""
from typing import Any

import numpy

from .comparison import LIMIT, Comparison, updates
from .user_training import Training

PRECISION = {'float64': 1e-4, None: 0.01}  # of a weight
RESIDUAL = {'float64': 1e-3, None: 0.2}    # relative to what another row changes, and to what is wrong

DIVIDE_ONCE = ('sum the losses on each device and the gradients over all devices, without means; divide once, by the '
               'rows of the whole batch or by the batch size')
SUM = ('sum the gradients over all devices, and write the sum into their arrays: total.copyto(data[i]), not data[i] = '
       "total; a Trainer needs kvstore='device', not None")
USE_ONCE = 'use each row once, and the gradient of each device once'
CLIP_ONE = f'clip by the norm of the gradients on one device, not by that of the copies on all; otherwise {DIVIDE_ONCE}'
SKIP_NONE = ('use every batch, also one with fewer rows than devices, after prepare_idle_devices(net, X, devices); or '
             'skip it on one device as well')
UPDATE_ALL = ('update all devices in each step, with the same learning rate and divisor; ignore_stale_grad=True skips '
              'devices without rows')


def row_weights(several: Training, found: Comparison) -> numpy.ndarray | None:
    """Return the weight of each row (column) in the update of each device (line); None if none explain the update.

    Those that are 1 but for rounding are exactly 1.
    """
    one, norm, weights = several.on_one_device(), numpy.linalg.norm, []
    *earlier, last = found.batches  # the earlier ones as well, because a step may update only after several
    others = [numpy.concatenate(arrays) for arrays in zip(last, found.batches[0])]
    [right_before], before = (updates(training, found, found.batches) for training in (one, several))
    for i in range(len(last[0])):
        right, changes = right_before, before  # of all rows, if they are alike
        for j in range(i + 1, i + len(others[0])):
            replaced = [array.copy() for array in last]
            for array, other in zip(replaced, others):
                array[i] = other[j % len(other)]
            change = updates(one, found, [*earlier, replaced])[0] - right_before
            if norm(change) > LIMIT[several.dtype] * norm(right_before):
                right, changes = change, updates(several, found, [*earlier, replaced]) - before
                break
        weights.append(changes @ right / (right @ right or 1))
        rest = norm(changes - numpy.outer(weights[-1], right))
        if not rest < RESIDUAL[several.dtype] * numpy.minimum(norm(right), norm(before - right_before)):
            return None
    by_device = numpy.stack(weights, axis=1)
    return numpy.where(abs(by_device - 1) > PRECISION[several.dtype], by_device, 1)


def explain(weights: numpy.ndarray, devices: list[str], precision: float) -> tuple[str, str]:
    """Return fault and remedy for the weights of the rows in the update of each device."""
    def same(numbers: Any, others: Any) -> bool:
        return numpy.allclose(numbers, others, rtol=0, atol=precision)

    def wrong(names: list, weights: Any) -> str:
        return ', '.join(f'{name} counts {number(weight)} times' for name, weight in zip(names, weights)
                         if weight != 1)

    first, by_device = weights[0], weights[:, :1]
    shards = numpy.array_split(numpy.arange(len(first)), min(len(first), len(devices)))
    if (weights == 1).all():
        return ('each row counts once, to three digits, but something else differs',
                'add weight decay, or a term of the loss without rows, once in each step; keep momentum on every '
                "device; write with param.set_data(), because a Trainer's key-value store has its own copy")
    if not same(weights, first):  # the devices differ
        if same(weights, by_device):  # [[1, 1], [0, 0]]
            return f'the update of {wrong(devices, by_device[:, 0])}', UPDATE_ALL
        alone = [device for device, row, shard in zip(devices, weights, shards) if same(numpy.delete(row, shard), 0)]
        reach = f'the sum of the gradients does not reach {", ".join(alone)}'  # [[1, 0], [0, 1]]
        return reach if alone else 'the devices get different sums of the gradients', SUM
    if same(first, 0):
        return 'no device is updated', SKIP_NONE
    if same(first, first[0]):  # [[2, 2], [2, 2]]
        return (f'the update is {number(first[0])} times that of one device',
                CLIP_ONE if same(first[0], len(devices) ** -0.5) else DIVIDE_ONCE)
    parts = [first[shard] for shard in shards]
    inverse = numpy.sort([1 / len(part) for part in parts for _ in part])  # the devices may have them in another order
    if same(numpy.sort(first), inverse * first.sum() / len(parts)):
        return 'each device has the same weight whatever its rows, a mean of means', DIVIDE_ONCE
    if all(same(part, part[0]) for part in parts):  # [[2, 0], [2, 0]]
        return f'the gradient of {wrong(devices, [part[0] for part in parts])}', USE_ONCE
    return wrong([f'row {i + 1}' for i in range(len(first))], first), USE_ONCE


def number(weight: float) -> str:
    """0.99999 -> '1', 1.01234 -> '1.012', 1/3 -> '0.333', 1.0004 -> '1.0004'"""
    return f'{round(weight, 3 if abs(weight - 1) > 0.001 else 4) + 0.0:g}'
