"""Compare a user's training step on several devices with the same step on one."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy

from ...base.program import reason
from ...mxnet_setup.compat import gluon
from .contents import find
from .trials import Crash, check_crash
from .user_step import Training

# Allowed differences, relative to what a parameter has changed. In float64, a Trainer still keeps the learning rate and
# the divisor in float32. A step that cannot compute in float64 (None) may use bfloat16, where the sum of k rounded
# gradients differs by k / 512; a missing row changes more.
LIMIT, LIMIT_WITH_TRAINER = {'float64': 1e-9, None: 0.02}, 1e-6
STALE = ('the devices without rows have the gradients of the batch before: call zero_grad(net, devices[len(y):]) '
         'before trainer.step()')
TINY = 1e-9    # change of a batch, below rounding in float32
LINEAR = 1e-3  # relative to an update, above rounding in float32


class Comparison(NamedTuple):
    """Training on one device and on several, until the first batch after which parameters differ."""

    batches: list    # those trained on
    before: list     # values on one device before the last batch
    unchanged: list  # names of parameters with gradients that have not changed on one device
    trained: int     # number of parameters with gradients, which are the first
    rows: list       # (name, difference from one device, difference between devices) for each parameter
    wrong: list      # numbers of the parameters that differ
    wrong_on: list   # numbers of the devices on which they differ from one device
    skipped: list    # (rows, reason) of batches that the step cannot take


def compare(several: Training, batches: Sequence, start: list | None = None,
            reference: Training | None = None) -> Comparison:
    """Train on the batches on one device and on all, from the values `start`, by default those that `make` gave.

    `reference` is another training on one device than the same one.
    """
    # If the step cannot take one of them, it may have updated some devices, so the others are compared from the start
    one, several = replace(reference or several.on_one_device()), replace(several)
    trained = _check_copies(one, several)
    limit = LIMIT[several.dtype] + LIMIT_WITH_TRAINER * any(True for _ in find(one.state, gluon.Trainer))
    if start is not None:
        several.assign(start)
    right = first = start or several.values()[0]
    one.assign(first)
    for i, batch in enumerate(batches):
        try:
            check_crash(several, batch)
            replicas = several.step(batch)  # 1. first, because this may raise an error
        except Exception as error:
            # Only an uneven batch, or one with fewer rows than devices, may be the reason
            if i == 0 or several.workers.size > 1 or len(batch[0]) % len(several.devices) == 0:
                raise
            others = compare(several, [*batches[:i], *batches[i + 1:]], start, reference)
            return others._replace(skipped=[(len(batch[0]), _why_skipped(several, batch, error)), *others.skipped])
        before, right = right, one.step(batch)[0]  # 2. only with batches that several devices can take
        if [array.shape for array in right] != [array.shape for array in first]:
            raise ValueError('train_batch freezes or unfreezes parameters: do so in make, and check each case')
        changes = largest(right, first)
        # A parameter that hardly changes, such as a bias before batch norm, is measured against the others. If none has
        # changed, the step may update only after several batches
        scales = numpy.maximum(changes, 0.01 * changes[:trained].max() or 1)
        from_one, between = (numpy.stack([largest(replica, values) for replica in replicas]) / scales
                             for values in (right, replicas[0]))
        wrong = ~(numpy.maximum(from_one, between).max(axis=0) <= limit)
        if wrong.any():
            break
        several.assign(right)  # 3. otherwise relu could turn a rounding error into a larger one
    names = _numbered([name for name, _ in one.params()[0]])
    unchanged = [name for name, change in zip(names[:trained], changes) if not change]
    rows = [*zip(names, from_one.max(axis=0), between.max(axis=0))]
    return Comparison([*batches[:i + 1]], before, unchanged, trained, rows, numpy.flatnonzero(wrong).tolist(),
                      numpy.flatnonzero(~(from_one <= limit).all(axis=1)).tolist(), [])


def _check_copies(one: Training, several: Training) -> int:
    """Return the number of parameters with gradients; raise ValueError unless each device has a copy of all."""
    alone, *_ = one.params()
    for on_device in several.params():
        if [array.shape for _, array in on_device] != [array.shape for _, array in alone]:
            raise ValueError(f'make puts other parameters on {on_device[0][1].ctx} ({len(on_device)}) than on a single '
                             f'device ({len(alone)}): every device needs its own copy of all parameters, so layers on '
                             'different devices are not checked')
    return sum(array.grad is not None for _, array in alone)


def _why_skipped(several: Training, batch: Sequence, error: Exception) -> str:
    if isinstance(error, UserWarning) and 'has not been updated' in str(error) and len(batch[0]) < len(several.devices):
        return STALE
    return str(error) if isinstance(error, Crash) else f'the step raises {type(error).__name__} ({reason(error)})'


def rounds(several: Training, batch: Sequence) -> bool:
    """Return whether the step casts to another dtype.

    Then, on one device, the order of the rows changes the update a bit. If it casts after the sum over the rows, a tiny
    change of the batch, unlike a larger one, leaves most of the update exactly as it was, and changes the rest by more.
    """
    update, reordered = first_update(several, batch), first_update(several, [a[::-1] for a in batch])
    change, difference = abs(update).max(), abs(update - reordered).max()
    if LIMIT['float64'] * change < difference < LIMIT[None] * change:
        return True
    near, far = (first_update(several, [a + size * a.clip(-1, 1, dtype='float64') if a.dtype.kind == 'f' else a
                                        for a in batch]) for size in (TINY, 1e-3))  # indices stay the same
    tiny, large = (abs(new - update)[update != 0] / abs(update[update != 0]) for new in (near, far))
    if not tiny.size or numpy.median(large) == 0:
        return False
    return bool(numpy.median(tiny) == 0 and tiny[tiny > 0].min(initial=1) > 10 * TINY)


def share_of_halves(several: Training, batch: Sequence) -> float:
    """Return the share of each half's update in that of a batch: 0.5 by rows, 1 by a fixed batch size, else 0."""
    several, half = replace(several, plain_sgd=True), len(batch[0]) // 2
    try:
        whole, *halves = (first_update(several, [a[rows] for a in batch])
                          for rows in (slice(None), slice(half), slice(half, None)))
    except Exception:  # the step needs whole batches
        return 0
    return next((share for share in (0.5, 1) if abs(whole - share * sum(halves)).max() < LINEAR * abs(whole).max()), 0)


def first_update(several: Training, batch: Sequence) -> numpy.ndarray:
    """Return what a first step on one device changes in all parameters, joined."""
    one = several.on_one_device()
    return _joined_change(one.values()[0], one.step(batch)[0])


def updates(training: Training, found: Comparison, batches: Iterable) -> numpy.ndarray:
    """Return what the last batch, after others, changes in the parameters that are wrong, joined, on each device."""
    training = replace(training)
    for batch in batches:
        training.assign(found.before)  # each batch starts from these values
        replicas = training.step(batch)
    before = [found.before[i] for i in found.wrong]
    return numpy.stack([_joined_change(before, [replica[i] for i in found.wrong]) for replica in replicas])


def _joined_change(before: Iterable, after: Iterable) -> numpy.ndarray:
    return numpy.concatenate([_difference(new, old).ravel() for old, new in zip(before, after)])


def largest(arrays: Iterable, others: Iterable) -> numpy.ndarray:
    """Return the largest difference of each pair of arrays."""
    return numpy.array([abs(_difference(a, b)).max() for a, b in zip(arrays, others)])


def _difference(a: numpy.ndarray, b: numpy.ndarray) -> numpy.ndarray:
    return numpy.subtract(a, b, out=numpy.zeros_like(a), where=a != b)  # 0 for equal infinite numbers, as in masks


def _numbered(names: list[str]) -> list[str]:
    """['', 'D.weight', 'v', 'v'] -> ['parameter 0', 'D.weight', 'v (1)', 'v (2)']"""
    return [f'{name} ({names[:i + 1].count(name)})' if names.count(name) > 1 and name else name or f'parameter {i}'
            for i, name in enumerate(names)]
