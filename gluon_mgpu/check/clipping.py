"""Name what each device does with its own gradient, where no weights of the rows explain the update."""
from __future__ import annotations

import numpy

from .comparison import Comparison, updates
from .user_step import Training

NEGLIGIBLE = 1e-4  # relative to the largest number of an update
CLIP_AFTER = ("sum the gradients first, with update_on_kvstore=False and trainer.allreduce_grads(); clip each device's "
              'copy by the norm of that copy alone; then trainer.update()')


def explain_scaling(several: Training, found: Comparison, shards: list[slice]) -> tuple[str, str] | None:
    """Return fault and remedy if the gradients are scaled or clipped by something that differs from one device's.

    Compares the update by the last batch with the updates that one device makes with this batch and with its shards
    alone, all from the values before it.
    """
    one, (X, y) = several.on_one_device(), found.batches[-1]
    try:
        [update, *others], [whole] = (updates(training, found, [(X, y)]) for training in (several, one))
        parts = numpy.concatenate([updates(one, found, [(X[rows], y[rows])]) for rows in shards])
    except Exception:  # the step needs batches before this one, or whole batches
        return None
    is_valid = parts.any(axis=1).all() and numpy.isfinite(parts).all()  # a shard alone may have no labels that count
    if len(whole) < 3 * len(parts) or not is_valid or not all(_equal(other, update) for other in others):
        return None
    factor = _combination(update, whole[None])
    if factor is not None:
        return (f'the update is {factor[0]:.3g} times that of one device, and this number changes with the rows: the '
                'norm by which the gradients are clipped is not that of their sum', CLIP_AFTER)
    if _combination(update, parts) is None:
        return None
    shares = _combination(whole, parts)
    if shares is not None and abs(shares.sum() - 1) < NEGLIGIBLE:
        return ('each device divides by its own count, such as that of its valid labels',
                'divide the sum of the losses by the count of the whole batch, on all devices')
    if shares is None and not _is_clipped_by_value(parts):  # rows may influence each other
        return None
    return 'each device clips its own gradient before the sum', CLIP_AFTER


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
