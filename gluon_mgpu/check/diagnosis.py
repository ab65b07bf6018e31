"""Compare a step on several devices with the same step on one, and find out what is wrong with it.

The update of plain SGD is a sum of one contribution per row, c_1 + ... + c_n, which one device can measure. So the
update of each of the k devices is a_1 c_1 + ... + a_n c_n, with a by least squares. All a are 1 if the step is right;
otherwise they show the mistake.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy

from ..data.shards import shard_rows
from .state import Setup, State

# Allowed differences, relative to what a parameter has changed. In float64, a Trainer still keeps the learning rate and
# the divisor in float32. A step that cannot compute in float64 (None) may use bfloat16, where the sum of k rounded
# gradients differs by k / 512; a missing row changes more.
LIMIT, LIMIT_WITH_TRAINER = {'float64': 1e-9, None: 0.02}, 1e-6
RESIDUAL = {'float64': 1e-5, None: 0.05}  # relative, of the least squares
SAMPLE, MAX_NAMES = 2000, 4               # elements of a parameter in the least squares; parameters in a sentence


class Comparison(NamedTuple):
    """Training on one device and on several, until the first batch after which parameters differ."""

    batches: list    # those trained on
    values: list     # on one device, before the last two batches and after them
    replicas: list   # on each device, after the last batch
    rows: list       # (name, difference from one device, difference between devices)
    wrong: list      # numbers of the parameters that differ
    notes: list


def compare(setup: Setup, batches: list) -> Comparison:
    """Train on the batches on one device and on all, until parameters differ."""
    one, several = State(setup, one=True), State(setup)
    limit = LIMIT[setup.dtype] + LIMIT_WITH_TRAINER * one.has_trainer
    values, differences = one.values(), numpy.zeros((2, 1))  # from one device and between devices, for each parameter
    done: list = []
    notes: list = []
    for X, y in batches:
        try:
            replicas = [*chain(*setup.workers.allgather(several.step(X, y)))]
        except Exception as error:
            if not done or setup.workers.size > 1:
                raise
            notes.append(f'batches of {len(y)} rows are not checked, because the step raises {type(error).__name__} '
                         f'({str(error).strip().splitlines()[0][:100]})')
            continue
        done.append((X, y))
        values = [*values[-2:], one.step(X, y)[0]]
        changes = _largest(values[-1], setup.start)
        if not changes.max():
            raise ValueError('train_batch changes no parameter on one device: it must update those that make returns')
        # A parameter that hardly changes, such as a bias before batch norm, is measured against the others
        scales = numpy.maximum(changes, max(0.01 * changes.max(), 1e-300))
        differences = numpy.maximum(differences, [numpy.max([_largest(replica, right) for replica in replicas], axis=0)
                                                  / scales for right in (values[-1], replicas[0])])
        wrong = numpy.flatnonzero(~(differences.max(axis=0) <= limit)).tolist()
        if wrong:
            break
        several.assign(values[-1])  # otherwise relu could turn a rounding error into a larger one
    names = [name for name, _ in next(iter(one.copies().values()))]
    return Comparison(done, values, replicas, [*zip(names, *differences.tolist())], wrong, notes)


def _largest(arrays: Iterable, others: Iterable) -> numpy.ndarray:
    return numpy.array([abs(a - b).max() for a, b in zip(arrays, others)])


def _vector(arrays: Sequence, others: Sequence, chosen: Iterable) -> numpy.ndarray:
    """Return a sample of the differences between arrays, of those with the chosen numbers."""
    differences = [(arrays[i] - others[i]).astype('float64').ravel() for i in chosen]
    return numpy.concatenate([difference[::-(-difference.size // SAMPLE)] for difference in differences])


def _contribution(setup: Setup, start: Sequence, row: Iterable, n: int, chosen: Iterable) -> numpy.ndarray:
    """Return what a row contributes to an update of plain SGD: 1 / n of the update by n copies of it."""
    state = State(replace(setup, start=tuple(start), plain=True), one=True)
    return _vector(state.step(*(a.repeat(n, 0) for a in row))[0], start, chosen) / n


def divides_by_own_rows(setup: Setup, batch: tuple) -> bool:
    """Return whether the update is divided by the rows of its batch: a row counts twice as much in half a batch."""
    n = len(batch[1]) // 2
    alone, in_two = (_contribution(setup, setup.start, [a[:1] for a in batch], size, range(len(setup.start)))
                     for size in (n, 2 * n))
    return bool(numpy.linalg.norm(2 * in_two - alone) <= RESIDUAL[setup.dtype] * numpy.linalg.norm(alone))


def diagnose(setup: Setup, batches: list) -> list[str]:
    """Return fault, remedy and evidence, one line each, for a step whose parameters differ from one device's."""
    setup = replace(setup, plain=True)
    found = compare(setup, batches)
    if not found.wrong:
        return ['WRONG: the state of the optimizer differs. With plain SGD instead, k devices equal one.',
                'Do: update every device after every batch, also a device without rows.']
    n, names = len(found.batches[-1][1]), [found.rows[i][0] for i in found.wrong]
    where = f'after batch {len(found.batches)}, of {n} row{"s" * (n > 1)}'
    if len(names) < len(found.rows):
        where += f', only in {", ".join(names[:MAX_NAMES])}' + ' and others' * (len(names) > MAX_NAMES)
    several = setup.workers.size > 1
    devices = [f'{device}{f" of worker {rank}" * several}' for rank in range(setup.workers.size)
               for device in setup.devices]
    weights, before, parts = _weights(setup, found, len(devices))
    if weights is None:
        return [f'WRONG {where}. The reason cannot be told, because no weights of the rows explain the update.',
                'Gradients may be clipped, rows may influence each other, the optimizer is not SGD, or there are too '
                'few parameters.']
    fault, remedy = _explain(weights, before, parts, devices)
    rows = ', '.join('-'.join(map(str, sorted({s.start + 1, s.stop}))) for s in parts)
    return [f'WRONG {where}: {fault}.', f'Do: {remedy}.', '', f'Weights of rows {rows} in each update, 1 if right'
            + '; then those of the batch before, by device, 0 if right' * bool(before.size) + ':',
            *(f'{device}: {", ".join(f"{weight:.3g}" for weight in row)}'
              for device, row in zip(devices, numpy.hstack([weights, before]).round(3) + 0.0))]


def _weights(setup: Setup, found: Comparison, k: int) -> tuple:
    """Return weights (k, parts of the rows) in each update, (k, devices) of the batch before, and the parts."""
    *_, start, end = found.values
    excess = numpy.stack([_vector(replica, end, found.wrong) for replica in found.replicas], axis=1)
    decay = _vector(start, [0] * len(start), found.wrong)  # weight decay does not depend on the rows
    by_row: list = []
    by_shard, shards = [], []  # of the last batch, then of the one before
    for (X, y), values in zip(found.batches[:-3:-1], found.values[-2::-1]):
        n = len(y)
        by_row.append([_contribution(setup, values, (X[i:i + 1], y[i:i + 1]), n, found.wrong) for i in range(n)])
        shards.append([shard_rows(n, i, k) for i in range(min(n, k))])
        by_shard.append([sum(by_row[-1][shard]) for shard in shards[-1]])
    for columns, parts in [([_vector(end, start, found.wrong)], shards[0]),
                           (by_shard[0], shards[0]),
                           (by_row[0], [slice(i, i + 1) for i in range(len(by_row[0]))]),
                           ([*chain(*by_shard)], shards[0])]:
        matrix = numpy.stack([*columns, decay], axis=1)
        matrix /= (scales := numpy.maximum(numpy.linalg.norm(matrix, axis=0), 1e-300))
        weights = numpy.linalg.lstsq(matrix, excess, rcond=None)[0]
        rest = numpy.linalg.norm(excess - matrix @ weights)
        if len(matrix) > len(scales) and rest <= RESIDUAL[setup.dtype] * numpy.linalg.norm(excess):
            weights = (weights.T / scales)[:, :-1]
            return 1 + weights[:, :len(parts)] * numpy.ones(len(parts)), weights[:, len(parts):], parts
    return None, None, None


def _explain(weights: numpy.ndarray, before: numpy.ndarray, parts: list, devices: list) -> tuple[str, str]:
    """Return fault and remedy for the weights, of shape (devices, parts), and those of the batch before."""
    k, m, n, a, r = len(devices), len(parts), parts[-1].stop, weights[0], weights[0, 0]
    alike, by_row = _same(weights, a), m > min(n, k)
    sizes = numpy.array([s.stop - s.start for s in parts])
    units = [f'row {s.stop}' for s in parts] if by_row else [f'the gradient of {device}' for device in devices]
    counts = [f'{unit} counts {weight:.3g} times' for unit, weight in zip(units, a.round(2) + 0.0) if weight != 1]
    idle, no_rows = devices[m:], ' without rows'
    stale = [device for device, column in zip(devices, before.T) if not _same(column, 0)]
    zero = [device for device, row in zip(devices, weights) if _same(row, 0)]
    own = [device for i, device in enumerate(devices[:m]) if _same(numpy.delete(weights[i], i), 0)]
    divide_once = ('sum the losses on each device and the gradients over the devices, without means; divide once, by '
                   'the rows of the whole batch or by the batch size')
    rules = [
        (stale, f'the gradient of the batch before is added, from {", ".join(idle or stale)}{no_rows * bool(idle)}',
         'set the gradients of devices without rows to zero before the sum: param.grad[:] = 0, or '
         "net.collect_params().zero_grad() before backward(); with grad_req 'add', those of all devices"),
        (zero, f'the update leaves out {", ".join(zero)}{no_rows * ({*zero} <= {*idle})}',
         'update all devices, also one without rows, which ignore_stale_grad=True skips'),
        (alike and not counts, 'each row counts once, to 1 %, and a small factor or the weight decay differs',
         'use the same divisor, learning rate and weight decay on any number of devices'),
        (alike and _same(a, r), f'the update is {r:.3g} times that of one device: {n} rows are divided by '
         f'{n / (r or 1):.3g}', divide_once),
        (alike and _same(a * sizes, r * sizes[0]), 'each device has the same weight whatever its rows, a mean of means',
         divide_once),
        (alike, ', '.join(counts), 'let each row count once, also those left when a batch does not divide evenly'
         if by_row else 'add the gradient of each device to the sum exactly once'),
        (own, 'each device is updated with its own gradient only' if len(own) == m else
         f'the sum of the gradients does not reach {", ".join(own)}',
         'sum the gradients over the devices, and write the sum into their arrays: total.copyto(data[i]), not '
         "data[i] = total; a Trainer needs kvstore='device', not None")]
    return next(((fault, remedy) for holds, fault, remedy in rules if holds), (
        'the devices take different updates', 'give every device the sum of all gradients, and update it with that'))


def _same(values, others) -> bool:
    return numpy.allclose(values, others, rtol=0, atol=0.01)
