"""Find out what is wrong with a training step on several devices.

The update of plain SGD is a sum of one contribution per row, and each row must count once. To measure the weight of a
row in the update of each device, replace the row by another: the update changes by the weight times what the update of
a single device changes.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy

from ..data.shards import shard_rows
from .comparison import Comparison, compare, largest
from .user_step import Training

RESIDUAL = {'float64': 1e-4, None: 0.2}   # relative to what another row changes
PRECISION = {'float64': 1e-3, None: 0.01}  # of a weight


def diagnose(several: Training, batches: Iterable, devices: list[str]) -> list[str]:
    """Return fault, remedy and evidence, one line each, for a step whose parameters differ from one device's."""
    start, *others = several.values()
    if any(largest(start, other).any() for other in others) and not compare(several, batches, start).wrong:
        return ['WRONG: the devices start with different parameters. From the same ones, k devices equal one.',
                'Do: draw the parameters once, and copy them to all devices.']
    several = replace(several, plain_sgd=True)
    found = compare(several, batches, start)
    if not found.wrong:
        return ['WRONG: the state of the optimizer differs. With plain SGD instead, k devices equal one.',
                'Do: update every device after every batch, including devices without rows.']
    n = len(found.batches[-1][1])
    where = (f'WRONG in {len(found.wrong)} of {len(found.rows)} parameters after batch {len(found.batches)}, of {n} '
             f'{"row" if n == 1 else "rows"}')
    if not compare(replace(several, zero_gradients=True), batches, start).wrong:
        idle = f', from {", ".join(devices[n:])} without rows' if n < len(devices) else ''
        return [f'{where}: the gradient of the batch before is added{idle}.',
                'Do: set the gradients of devices without rows to zero before the sum: param.grad[:] = 0, or '
                "net.collect_params().zero_grad() before backward(); with grad_req 'add', those of all devices.", '',
                'If all gradients are set to zero before each step, this does not happen.']
    if _is_right_alone(several, found):
        return [f'{where}: what the step keeps from the batches before, such as momentum, differs between devices.',
                'Do: keep it on every device, and update it after every batch, including devices without rows.', '',
                'Without the batches before, from the same parameters, this does not happen.']
    weights, same = _row_weights(several, found), partial(_same, precision=PRECISION[several.dtype])
    if weights is not None and not same(weights, 1):
        fault, remedy = _explain(weights, devices, same)
        return [f'{where}: {fault}.', f'Do: {remedy}.', '', 'Weight of each row in the update of each device; 1 is '
                'right:', *(f'{device}: {", ".join(map(_number, row))}' for device, row in zip(devices, weights))]
    if _is_random(several, found):
        return ['NOT CHECKED: the step draws random numbers, such as npx.dropout, and k devices draw others than one.',
                'Do: for the check, leave them out, or draw them for the whole batch before it is split.', '',
                'With another seed, one device computes something else as well.']
    return [f'{where}. The cause is unknown: no weights of the rows explain the update. Gradients may '
            'be clipped, rows may influence each other, weight decay may differ, or the optimizer is not SGD.']


def _is_right_alone(several: Training, found: Comparison) -> bool:
    """Return whether the last batch is right in a new training that starts with it, from the same parameters."""
    try:
        alone = compare(several, found.batches[-1:], found.before)
    except UserWarning:  # from Gluon's Trainer, if a gradient was never written
        return False
    return alone.changed and not alone.wrong


def _is_random(several: Training, found: Comparison) -> bool:
    """Return whether the last batch changes the parameters on one device otherwise with another seed."""
    one = several.on_one_device()
    first, second = (_after(replace(one, seed=seed), found, found.batches[-1])[0] for seed in (0, 1))
    return bool(largest([first], [second]) > RESIDUAL['float64'] * largest([first], [_joined(found.before, found)]))


def _after(training: Training, found: Comparison, batch: Sequence) -> numpy.ndarray:
    """Return the parameters that are wrong, joined, on each device, after a step from the values before the last one.

    The batch before comes first, because a step may update only after every second batch.
    """
    training = replace(training)
    for earlier in found.batches[-2:-1]:
        training.assign(found.before)
        training.step(*earlier)
    training.assign(found.before)
    return numpy.stack([_joined(values, found) for values in training.step(*batch)])


def _joined(values: Sequence, found: Comparison) -> numpy.ndarray:
    return numpy.concatenate([values[i].ravel() for i in found.wrong])


def _row_weights(several: Training, found: Comparison) -> numpy.ndarray | None:
    """Return the weight of each row in the update of each device; None if no weights explain the updates."""
    one, first, last, weights = several.on_one_device(), found.batches[0], found.batches[-1], []
    [right_before], before = _after(one, found, last), _after(several, found, last)
    for i in range(len(last[1])):
        j = next((j for j in range(len(first[1])) if any(numpy.any(a[i] != b[j]) for a, b in zip(last, first))), None)
        if j is None:  # all rows are equal
            return None
        replaced = [numpy.concatenate([a[:i], b[j:j + 1], a[i + 1:]]) for a, b in zip(last, first)]
        right, changes = _after(one, found, replaced)[0] - right_before, _after(several, found, replaced) - before
        weights.append(changes @ right / (right @ right or 1))
        rest = changes - numpy.outer(weights[-1], right)
        if not numpy.linalg.norm(rest) < RESIDUAL[several.dtype] * numpy.linalg.norm(right):
            return None
    return numpy.stack(weights, axis=1)


def _explain(weights: numpy.ndarray, devices: list[str], same: Callable) -> tuple[str, str]:
    """Return fault and remedy for the weights of the rows in the update of each device."""
    n, first, ratio = weights.shape[1], weights[0], weights[0, 0]
    shards = [shard_rows(n, i, len(devices)) for i in range(min(n, len(devices)))]
    left_out = [device for device, row in zip(devices, weights) if same(row, 0)]
    alone = [device for device, row, shard in zip(devices, weights, shards) if same(numpy.delete(row, shard), 0)]
    if left_out:
        return (f'the update leaves out {", ".join(left_out)}',
                'update every device; ignore_stale_grad=True skips devices without rows')
    if not same(weights, first):
        return (f'the sum of the gradients does not reach {", ".join(alone) or "all devices"}',
                'sum the gradients over the devices, and write the sum into their arrays: total.copyto(data[i]), not '
                "data[i] = total; a Trainer needs kvstore='device', not None")
    counts = {f'row {i + 1}': weight for i, weight in enumerate(first)}
    if all(same(first[shard], first[shard.start]) for shard in shards):
        counts = {f'the gradient of {device}': first[shard.start] for device, shard in zip(devices, shards)}
    fault = ', '.join(f'{unit} counts {_number(weight)} times' for unit, weight in counts.items()
                      if not same(weight, 1))
    if same(first, ratio):
        fault = f'the update is {_number(ratio)} times that of one device: {n} rows are divided by {n / ratio:.4g}'
    elif same([first[shard].sum() for shard in shards], first[shards[0]].sum()):
        fault = 'each device has the same weight whatever its rows, a mean of means'
    return fault, ('use all rows; sum the losses on each device and the gradients over all devices, without means; '
                   'divide once, by the rows of the whole batch or by the batch size')


def _same(values, others, precision: float) -> bool:
    return numpy.allclose(values, others, rtol=0, atol=precision)


def _number(weight: float) -> str:
    """0.99999 -> '1', 1.01234 -> '1.012', 1/3 -> '0.333'"""
    return f'{round(weight, 3) + 0.0:.4g}'
