"""Compare a user's training step on several devices with the same step on one."""
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy

from ...base.program import reason
from .user_training import Training

# Allowed differences, relative to what a parameter has changed. In float64, a Trainer still keeps the learning rate and
# the divisor in float32. A step that cannot compute in float64 (None) may use bfloat16, where the sum of k rounded
# gradients differs by k / 512; a missing row changes more.
LIMIT = {'float64': 1e-6, None: 0.02}


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


def compare_with_one(several: Training, batches: Sequence, start: list | None = None) -> Comparison:
    """Train on the batches on one device and on all, from the values `start`, by default those that `make` gave."""
    one, several = several.on_one_device(), replace(several)
    names, trained = _same_params(one, several)
    if start is not None:
        several.assign(start)
    right = first = start or several.values()[0]
    one.assign(first)
    for i, batch in enumerate(batches):
        try:
            replicas = several.step(batch)
        except Exception as error:
            # Only an uneven batch, or one with fewer rows than devices, may be the reason
            if i == 0 or several.workers.size > 1 or len(batch[0]) % len(several.devices) == 0:
                raise
            # The step may have updated some devices, so the other batches are compared from the start
            others = compare_with_one(several, [*batches[:i], *batches[i + 1:]], start)
            why = f'the step raises {type(error).__name__} ({reason(error)})'
            return others._replace(skipped=[(len(batch[0]), why), *others.skipped])
        before, right = right, one.step(batch)[0]  # only with batches that several devices can take
        if [*map(numpy.shape, right)] != [*map(numpy.shape, first)]:
            raise ValueError('train_batch freezes or unfreezes parameters: do so in make, and check each case')
        changes = largest(right, first)
        # A parameter that hardly changes, such as a bias before batch norm, is measured against the others. If none has
        # changed, the step may update only after several batches
        scales = numpy.maximum(changes, 0.01 * changes[:trained].max() or 1)
        from_one, between = (numpy.stack([largest(values, others) for values in replicas]) / scales
                             for others in (right, replicas[0]))
        equals_one = from_one <= LIMIT[several.dtype]  # False for NaN
        is_right = equals_one & (between <= LIMIT[several.dtype])
        if not is_right.all():
            break
        several.assign(right)  # otherwise relu could turn a rounding error into a larger one
    return Comparison(
        batches=[*batches[:i + 1]], before=before, trained=trained, skipped=[],
        unchanged=[name for name, change in zip(names[:trained], changes) if not change],
        rows=[*zip(names, from_one.max(axis=0), between.max(axis=0))],
        wrong=numpy.flatnonzero(~is_right.all(axis=0)).tolist(),
        wrong_on=numpy.flatnonzero(~equals_one.all(axis=1)).tolist())


def _same_params(one: Training, several: Training) -> tuple[list[str], int]:
    """Return the names of the parameters, and the number of those with gradients; each device must have all."""
    alone, *_ = one.params()
    for on_device in several.params():
        if [array.shape for _, array in on_device] != [array.shape for _, array in alone]:
            raise ValueError(f'make puts other parameters on {on_device[0][1].ctx} ({len(on_device)}) than on a single '
                             f'device ({len(alone)}): every device needs its own copy of all parameters, so layers on '
                             'different devices are not checked')
    return _numbered([path for path, _ in alone]), sum(array.grad is not None for _, array in alone)


def updates(training: Training, found: Comparison, batches: Iterable) -> numpy.ndarray:
    """Return what the last batch, after others, changes in the parameters that are wrong, joined, on each device."""
    training = replace(training)
    for batch in batches:
        training.assign(found.before)  # each batch starts from these values
        replicas = training.step(batch)
    return numpy.stack([numpy.concatenate([(values[i] - found.before[i]).ravel() for i in found.wrong])
                        for values in replicas])


def largest(arrays: Iterable, others: Iterable) -> numpy.ndarray:
    """Return the largest difference of each pair of arrays."""
    return numpy.array([abs(numpy.subtract(a, b, out=numpy.zeros_like(a), where=a != b)).max(initial=0)
                        for a, b in zip(arrays, others)])  # 0 for equal infinite numbers


def _numbered(names: list[str]) -> list[str]:
    """['', 'D.weight', 'v', 'v'] -> ['parameter 0', 'D.weight', 'v 2', 'v 3']"""
    return [name if name and names.count(name) == 1 else f'{name or "parameter"} {i}' for i, name in enumerate(names)]
