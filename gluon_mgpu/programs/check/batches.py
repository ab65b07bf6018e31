"""The batches of a check: cut from the user's, and looked at first."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy

from ...base.nested import leaves, refill
from .comparison import first_update
from .user_step import Training

NOT_FINITE = ('NOT CHECKED: {} has NaN or infinite numbers in {} of {} rows, which make parameters NaN or infinite on '
              'one device as well.', 'Do: leave these rows out.')
LABELS = ('WRONG on one device as well: {} has labels of {}, and the step treats {} as {}, as MXNet does where there '
          'is no score.', 'Do: number the labels from 0, with a score for each; leave rows without a label out of the loss.')


def cut(batches: Iterable, k: int) -> tuple[list, Any]:
    """Return batches, each a list of arrays, and the nested lists that they are in, (X, y)."""
    # Even, uneven, even, fewer rows than devices, and a short last one
    sizes = (4 * k, 3 * k + 1, 4 * k, k - 1, 2 * k + 1)
    read: list = []
    lengths: list
    rows = 0
    for batch in batches:
        arrays = leaves(batch)
        lengths = [*dict.fromkeys(getattr(array, 'shape', ())[:1] for array in arrays)]
        if not isinstance(batch, (list, tuple)) or len(batch) != 2 or not arrays or () in lengths:
            raise ValueError(f'batches has a {type(batch).__name__}: it must be a list of (X, y), arrays with rows or '
                             'tuples of such arrays')
        if len(lengths) > 1:
            raise ValueError(f'a batch has arrays of {" and ".join(str(n) for [n] in lengths)} rows: X and y must have '
                             'the same number')
        read.append([a.asnumpy() if hasattr(a, 'asnumpy') else a for a in arrays])
        if [a.shape[1:] for a in arrays] != [a.shape[1:] for a in read[0]]:
            raise ValueError('the check joins batches, and their rows differ in shape: pad them to one length')
        rows += len(arrays[0])
        if rows >= sum(sizes):
            break
    if rows < sizes[0]:
        raise ValueError(f'batches have {rows} rows: {k} devices need at least {sizes[0]}')
    repeated = [numpy.resize(numpy.concatenate(parts), (sum(sizes), *parts[0].shape[1:])) for parts in zip(*read)]
    return [*zip(*(numpy.split(array, numpy.cumsum(sizes)[:-1]) for array in repeated))], refill(batch, repeat(True))


def check_batches(several: Training, batches: Sequence) -> list[str]:
    """Return fault and remedy, one line each, if the batches have numbers that one device cannot train on either."""
    in_X = len(leaves(several.lists[0]))
    for i, parts in enumerate(zip(*batches)):
        array, name = numpy.concatenate(parts), 'y' if i >= in_X else 'X'
        if array.dtype.kind not in 'iuf':
            continue
        wrong = ~numpy.isfinite(array.reshape(len(array), -1)).all(axis=1)
        if wrong.any():
            batch = next(batch for batch in batches if not numpy.isfinite(batch[i]).all())
            if not numpy.isfinite(first_update(several, batch)).all():  # unlike with the infinite numbers of a mask
                return [NOT_FINITE[0].format(name, wrong.sum(), len(wrong)), NOT_FINITE[1]]
        elif name == 'y' and array.size and (array == array.round()).all():
            low, high = int(array.min()), int(array.max())
            for label, other, third in ((low, 0, high), (high, high - 1, 0)):
                may_be_wrong = (label < 0 or label > 1) and third != other
                if may_be_wrong and _treats_as(several, batches[0], i, label, other, third):
                    return [LABELS[0].format(name, label, label, other), LABELS[1]]
    return []


def _treats_as(several: Training, batch: Sequence, i: int, label: int, other: int, third: int) -> bool:
    """Return whether a step on one device is the same with another label in the first row, but not with a third one."""
    several = replace(several, plain_sgd=True)

    def update(number: int) -> numpy.ndarray:
        changed = [array.copy() for array in batch]
        changed[i][0] = number
        return first_update(several, changed)
    try:
        before = update(label)
        return numpy.array_equal(before, update(other)) and not numpy.array_equal(before, update(third))
    except Exception:  # the step rejects such labels, or needs its own optimizer
        return False
