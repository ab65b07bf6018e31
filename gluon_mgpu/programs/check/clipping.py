"""Name what each device does with its own gradient, where no weights of the rows explain the update."""
from __future__ import annotations

import numpy

from .comparison import Comparison, updates
from .user_step import Training

NEGLIGIBLE = 1e-4  # relative to the largest number of an update
COUNT_ALL = 'divide the sum of the losses by the count of the whole batch, on all devices'
CLIP_AFTER = ("sum the gradients first, with update_on_kvstore=False and trainer.allreduce_grads(); clip each device's "
              'copy by the norm of that copy alone; then trainer.update()')


def explain_scaling(several: Training, found: Comparison, shards: list[slice]) -> tuple[str, str] | None:
    """Return fault and remedy if the gradients are scaled or clipped by something that differs from one device's.

    Compares the update by the last batch with the updates that one device makes with this batch and with its shards
    alone, all from the values before it.
    """
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
    if shares is not None or _is_clipped_by_value(parts):
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
    """Return whether two updates are equal but for rounding."""
    return bool(abs(update - other).max() <= NEGLIGIBLE * abs(other).max())


def _is_clipped_by_value(parts: numpy.ndarray) -> bool:
    """Return whether the largest size of a number in an update occurs three times; twice, it may be of two classes."""
    sizes = abs(parts)
    return bool(((sizes > (1 - NEGLIGIBLE) * sizes.max(axis=1, keepdims=True)).sum(axis=1) > 2).any())
