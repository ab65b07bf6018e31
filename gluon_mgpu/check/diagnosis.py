"""Compare a step on several devices with the same step on one, and find out what is wrong with it.

The update of plain SGD is a sum of one contribution per row, and each row must count once. To measure the weight of a
row in the update of each device, replace the row by another: the update changes by the weight times what the update of
a single device changes.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy

from ..data.shards import shard_rows
from ..mxnet_setup.compat import gluon
from .training import Training, find

# Allowed differences, relative to what a parameter has changed. In float64, a Trainer still keeps the learning rate and
# the divisor in float32. A step that cannot compute in float64 (None) may use bfloat16, where the sum of k rounded
# gradients differs by k / 512; a missing row changes more.
LIMIT, LIMIT_WITH_TRAINER = {'float64': 1e-9, None: 0.02}, 1e-6
RESIDUAL = {'float64': 1e-4, None: 0.2}  # relative to what another row changes


class Comparison(NamedTuple):
    """Training on one device and on several, until the first batch after which parameters differ."""

    batches: list  # those trained on
    before: list   # values on one device before the last batch
    rows: list     # (name, difference from one device, difference between devices) for each parameter
    wrong: list    # numbers of the parameters that differ
    skipped: list  # notes on batches that the step cannot take


def compare(several: Training, batches: Iterable, start: list | None = None) -> Comparison:
    """Train on the batches on one device and on all, by default from the values of `make`, until parameters differ."""
    one, several = several.on_one_device(), replace(several)
    limit = LIMIT[several.dtype] + LIMIT_WITH_TRAINER * any(True for _ in find(one.state, gluon.Trainer))
    right = start = start or several.values()[0]
    done: list = []
    skipped: list = []
    for training in (one, several):
        training.assign(start)
    for X, y in batches:
        try:
            replicas = several.step(X, y)
        except Exception as error:
            if not done or several.workers.size > 1:
                raise
            [reason] = str(error).strip().splitlines()[:1] or ['no message']
            skipped.append(f'batches of {len(y)} rows are not checked, because the step raises {type(error).__name__} '
                           f'({reason[:100]})')
            several.assign(right)  # the step may have updated some devices
            continue
        done.append((X, y))
        before, right = right, one.step(X, y)[0]
        changes = _largest(right, start)
        if not changes.max():
            raise ValueError('train_batch changes no parameter on one device: it must update those that make returns')
        # A parameter that hardly changes, such as a bias before batch norm, is measured against the others
        scales = numpy.maximum(changes, 0.01 * changes.max())
        from_one, between = (numpy.max([_largest(replica, values) for replica in replicas], axis=0) / scales
                             for values in (right, replicas[0]))
        wrong = ~(numpy.maximum(from_one, between) <= limit)
        if wrong.any():
            break
        several.assign(right)  # otherwise relu could turn a rounding error into a larger one
    names = [name for name, _ in next(iter(one.params().values()))]
    return Comparison(done, before, [*zip(names, from_one, between)], numpy.flatnonzero(wrong).tolist(), skipped)


def diagnose(several: Training, batches: Iterable, devices: list[str]) -> list[str]:
    """Return fault, remedy and evidence, one line each, for a step whose parameters differ from one device's."""
    several = replace(several, plain_sgd=True)
    found = compare(several, batches)
    if not found.wrong:
        return ['WRONG: the state of the optimizer differs. With plain SGD instead, k devices equal one.',
                'Do: update every device after every batch, including devices without rows.']
    n = len(found.batches[-1][1])
    where = (f'WRONG in {len(found.wrong)} of {len(found.rows)} parameters after batch {len(found.batches)}, of {n} '
             f'row{"s" * (n > 1)}')
    if _is_right_alone(several, found):
        idle = f', from {", ".join(devices[n:])} without rows' * (n < len(devices))
        return [f'{where}: the gradient of the batch before is added{idle}.',
                'Do: set the gradients of devices without rows to zero before the sum: param.grad[:] = 0, or '
                "net.collect_params().zero_grad() before backward(); with grad_req 'add', those of all devices.", '',
                'Without the batch before, from the same parameters, this does not happen.']
    weights = _row_weights(several, found)
    if weights is None or _same(weights, 1):
        return [f'{where}. The cause is unknown: no weights of the rows explain the update. Gradients may '
                'be clipped, rows may influence each other, weight decay may differ, or the optimizer is not SGD.']
    fault, remedy = _explain(weights, devices)
    return [f'{where}: {fault}.', f'Do: {remedy}.', '', 'Weight of each row in the update of each device; 1 is right:',
            *(f'{device}: {", ".join(f"{weight:.3g}" for weight in row)}'
              for device, row in zip(devices, weights.round(3) + 0.0))]


def divides_by_own_rows(several: Training, X: numpy.ndarray, y: numpy.ndarray) -> bool:
    """Return whether the update is divided by the rows of its batch: with every row twice, it is no larger."""
    updates = []
    for times in (1, 2):
        one = replace(several, plain_sgd=True).on_one_device()
        [before], [after] = one.values(), one.step(X.repeat(times, 0), y.repeat(times, 0))
        updates.append(_largest(after, before).max())
    return bool(updates[1] < 1.5 * updates[0])


def _largest(arrays: Iterable, others: Iterable) -> numpy.ndarray:
    return numpy.array([abs(a - b).max() for a, b in zip(arrays, others)])


def _is_right_alone(several: Training, found: Comparison) -> bool:
    """Return whether the last batch is right in a new training that starts with it, from the same parameters."""
    try:
        return not compare(several, found.batches[-1:], found.before).wrong
    except UserWarning:  # from Gluon's Trainer, if a gradient was never written
        return True


def _row_weights(several: Training, found: Comparison) -> numpy.ndarray | None:
    """Return the weight of each row in the update of each device; None if no weights explain the updates."""
    def parameters(training: Training, batch: Sequence) -> numpy.ndarray:
        training = replace(training)
        training.assign(found.before)
        return numpy.stack([numpy.concatenate([values[i].ravel() for i in found.wrong])
                            for values in training.step(*batch)])

    one, first, last, weights = several.on_one_device(), found.batches[0], found.batches[-1], []
    [right_before], before = parameters(one, last), parameters(several, last)
    for i in range(len(last[1])):
        j = next((j for j in range(len(first[1])) if any(numpy.any(a[i] != b[j]) for a, b in zip(last, first))), None)
        if j is None:  # all rows are equal
            return None
        replaced = [numpy.concatenate([a[:i], b[j:j + 1], a[i + 1:]]) for a, b in zip(last, first)]
        right, changes = parameters(one, replaced)[0] - right_before, parameters(several, replaced) - before
        weights.append(changes @ right / (right @ right or 1))
        rest = changes - numpy.outer(weights[-1], right)
        if not numpy.linalg.norm(rest) < RESIDUAL[several.dtype] * numpy.linalg.norm(right):
            return None
    return numpy.stack(weights, axis=1)


def _explain(weights: numpy.ndarray, devices: list[str]) -> tuple[str, str]:
    """Return fault and remedy for the weights of the rows in the update of each device."""
    n, first, ratio = weights.shape[1], weights[0], weights[0, 0]
    shards = [shard_rows(n, i, len(devices)) for i in range(min(n, len(devices)))]
    left_out = [device for device, row in zip(devices, weights) if _same(row, 0)]
    alone = [device for device, row, shard in zip(devices, weights, shards) if _same(numpy.delete(row, shard), 0)]
    if left_out:
        return (f'the update leaves out {", ".join(left_out)}',
                'update every device; ignore_stale_grad=True skips devices without rows')
    if not _same(weights, first):
        return (f'the sum of the gradients does not reach {", ".join(alone) or "all devices"}',
                'sum the gradients over the devices, and write the sum into their arrays: total.copyto(data[i]), not '
                "data[i] = total; a Trainer needs kvstore='device', not None")
    counts = {f'row {i + 1}': weight for i, weight in enumerate(first)}
    if all(_same(first[shard], first[shard.start]) for shard in shards):
        counts = {f'the gradient of {device}': first[shard.start] for device, shard in zip(devices, shards)}
    fault = ', '.join(f'{unit} counts {weight:.3g} times' for unit, weight in counts.items() if not _same(weight, 1))
    if _same(first, ratio):
        fault = f'the update is {ratio:.3g} times that of one device: {n} rows are divided by {n / ratio:.3g}'
    elif _same([first[shard].sum() for shard in shards], first[shards[0]].sum()):
        fault = 'each device has the same weight whatever its rows, a mean of means'
    return fault, ('use all rows; sum the losses on each device and the gradients over all devices, without means; '
                   'divide once, by the rows of the whole batch or by the batch size')


def _same(values, others) -> bool:
    return numpy.allclose(values, others, rtol=0, atol=0.01)
