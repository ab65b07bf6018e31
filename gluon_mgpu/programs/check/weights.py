"""The weight of each row in the update of each device.

The update of plain SGD is a sum of one contribution per row, and each must count once. If a row is replaced, the update
of a device changes by its weight times the change on a single device.
"""
from typing import Any

import numpy

from .comparison import Comparison, updates
from .user_training import Training

PRECISION = {'float64': 1e-3, None: 0.01}  # of a weight
RESIDUAL = {'float64': 1e-4, None: 0.2}    # relative to what another row changes

DIVIDE_ONCE = ('sum the losses on each device and the gradients over all devices, without means; divide once, by the '
               'rows of the whole batch or by the batch size')
SUM = ('sum the gradients over all devices, and write the sum into their arrays: total.copyto(data[i]), not data[i] = '
       "total; a Trainer needs kvstore='device', not None")
USE_ONCE = 'use each row once, and the gradient of each device once'
UPDATE_ALL = ('update all devices in each step, with the same learning rate and divisor; ignore_stale_grad=True skips '
              'devices without rows')


def row_weights(several: Training, found: Comparison) -> numpy.ndarray | None:
    """Return the weight of each row (column) in the update of each device (line); None if none explain the update."""
    one, first, weights = several.on_one_device(), found.batches[0], []
    *earlier, last = found.batches  # the earlier ones as well, because a step may update only after several
    [right_before], before = (updates(training, found, found.batches) for training in (one, several))
    for i in range(len(last[0])):
        replaced = [array.copy() for array in last]
        for array, other in zip(replaced, first):
            array[i] = other[(i + 1) % len(other)]
        batches = [*earlier, replaced]
        right, changes = updates(one, found, batches)[0] - right_before, updates(several, found, batches) - before
        weights.append(changes @ right / (right @ right or 1))
        rest = changes - numpy.outer(weights[-1], right)
        if not numpy.linalg.norm(rest) < RESIDUAL[several.dtype] * numpy.linalg.norm(right):
            return None
    return numpy.stack(weights, axis=1)


def explain(weights: numpy.ndarray, devices: list[str], shards: list[slice], precision: float) -> tuple[str, str]:
    """Return fault and remedy for the weights of the rows in the update of each device."""
    def same(numbers: Any, others: Any) -> bool:
        return numpy.allclose(numbers, others, rtol=0, atol=precision)

    first, by_device = weights[0], weights[:, :1]
    if same(weights, 1):
        return ('each row counts once, to three digits, but something else differs',
                'add weight decay, or a term of the loss without rows, once in each step; keep momentum on every '
                "device; write with param.set_data(), because a Trainer's key-value store has its own copy")
    if not same(weights, first):  # the devices differ
        if same(weights, by_device):  # [[1, 1], [0, 0]]
            return f'the update of {_wrong(devices, by_device[:, 0], precision)}', UPDATE_ALL
        alone = [device for device, row, shard in zip(devices, weights, shards) if same(numpy.delete(row, shard), 0)]
        reach = f'the sum of the gradients does not reach {", ".join(alone)}'  # [[1, 0], [0, 1]]
        return reach if alone else 'the devices get different sums of the gradients', SUM
    if same(first, first[0]):  # [[2, 2], [2, 2]]
        return f'the update is {number(first[0])} times that of one device', DIVIDE_ONCE
    sums, weight_of = [first[shard].sum() for shard in shards], [first[shard.start] for shard in shards]
    if same(sums, sums[0]):
        return 'each device has the same weight whatever its rows, a mean of means', DIVIDE_ONCE
    if all(same(first[shard], weight) for shard, weight in zip(shards, weight_of)):  # [[2, 0], [2, 0]]
        return f'the gradient of {_wrong(devices, weight_of, precision)}', USE_ONCE
    return _wrong([f'row {i + 1}' for i in range(len(first))], first, precision), USE_ONCE


def _wrong(names: list[str], weights: list | numpy.ndarray, precision: float) -> str:
    return ', '.join(f'{name} counts {number(weight)} times' for name, weight in zip(names, weights)
                     if abs(weight - 1) > precision)


def number(weight: float) -> str:
    """0.99999 -> '1', 1.01234 -> '1.012', 1/3 -> '0.333'"""
    return f'{round(weight, 3) + 0.0:.4g}'
