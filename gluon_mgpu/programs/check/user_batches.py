"""The batches of a check: cut from the user's, and looked at first."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import repeat
from typing import Any

import numpy

from ...base.nested import leaves, refill
from ...base.text import counted, described
from .step_comparison import first_update
from .user_step import Training

NOT_FINITE = ('NOT CHECKED: {} has NaN or infinite numbers, which make parameters NaN on one device as well.',
              'Do: leave these rows out.')
LABELS = ('WRONG on one device as well: {} has the label {}, and the step treats it as {}, as MXNet does without a '
          'score for it.',
          'Do: number the labels from 0, with a score for each; leave rows without a label out of the loss.')


def cut(batches: Iterable, k: int) -> tuple[list, Any]:
    """Return batches, each a list of arrays, and the nested lists that they are in, (X, y)."""
    # Even, uneven, even, fewer rows than devices, and a short last one
    sizes = (4 * k, 3 * k + 1, 4 * k, k - 1, 2 * k + 1)
    read: list = []
    rows = 0
    if isinstance(batches, (str, dict)) or not (hasattr(batches, '__iter__') or hasattr(batches, '__getitem__')):
        raise ValueError(f'batches is {batches!r:.50}: pass a list of batches, such as [(X, y)]')
    if isinstance(batches, (list, tuple)):
        [*map(_arrays, batches)]  # all, because X of (X, y) may be a pair, and enough for the check
    for batch in batches:
        arrays = _arrays(batch)
        read.append([a.asnumpy() if hasattr(a, 'asnumpy') else a for a in arrays])
        if [a.shape[1:] for a in arrays] != [a.shape[1:] for a in read[0]]:
            raise ValueError('the check joins batches, and their rows differ in shape: pad them to one length')
        rows += len(arrays[0])
        if rows >= sum(sizes):
            break
    if not read:
        raise ValueError(f'batches is empty, {batches!r:.50}: pass a list of batches, such as [(X, y)], not an '
                         'iterator that has been read')
    if rows < sizes[0]:
        raise ValueError(f'batches with {counted(rows, "row")} in all: {k} devices need at least {sizes[0]}')
    repeated = [numpy.resize(numpy.concatenate(parts), (sum(sizes), *parts[0].shape[1:])) for parts in zip(*read)]
    return [*zip(*(numpy.split(array, numpy.cumsum(sizes)[:-1]) for array in repeated))], refill(batch, repeat(True))


def _arrays(batch: Any) -> list:
    arrays = leaves(batch)
    lengths: list = [*dict.fromkeys(getattr(array, 'shape', ())[:1] for array in arrays)]
    if not isinstance(batch, (list, tuple)) or len(batch) != 2 or not arrays or () in lengths:
        raise ValueError(f'batches has {described(batch)} instead of a pair (X, y): pass a list such as [(X, y)], of '
                         'arrays or tuples of arrays')
    if len(lengths) > 1:
        raise ValueError(f'batches has a pair whose arrays have {" and ".join(str(n) for [n] in lengths)} rows: all '
                         'must have the same number')
    return arrays


def check_batches(one: Training, batches: Sequence) -> list[str]:
    """Return fault and remedy, one line each, if the batches have numbers that one device cannot train on either."""
    numbers = [len(leaves(lists)) for lists in one.lists]
    names = [f'{name}[{i}]' if number > 1 else name for name, number in zip('Xy', numbers) for i in range(number)]
    for i, parts in enumerate(zip(*batches)):
        array, name = numpy.concatenate(parts), names[i]
        if array.dtype.kind not in 'iuf' or not array.size:
            continue
        if not numpy.isfinite(array).all():
            batch = next(batch for batch in batches if not numpy.isfinite(batch[i]).all())
            if not numpy.isfinite(first_update(one, batch)).all():  # unlike with the infinite numbers of a mask
                return [NOT_FINITE[0].format(name), NOT_FINITE[1]]
        elif i >= numbers[0] and (array == array.round()).all() and (labels := _same_labels(one, batches[0], i, array)):
            return [LABELS[0].format(name, *labels), LABELS[1]]
    return []


def _same_labels(one: Training, batch: Sequence, i: int, y: numpy.ndarray) -> tuple[int, int] | None:
    """Return a label in `y`, array i of a batch, and that which a step on one device takes it for; None if right."""
    one, low, high = replace(one, plain_sgd=True, fixed_statistics=True), int(y.min()), int(y.max())

    @cache
    def update(label: int, row: int = 0) -> numpy.ndarray:
        """Return the update if the first row has this label, and the inputs of a row."""
        changed = [array.copy() for array in batch]
        for array in changed[:len(leaves(one.lists[0]))]:
            array[0] = array[row]
        changed[i][0] = label
        return first_update(one, changed)

    def same(label: int, other: int) -> bool:
        return numpy.array_equal(update(label), update(other))
    try:
        if low < 0 < high and same(low, 0) and not same(low, high):
            label, other, grouped = low, 0, same(0, 1)
        elif high > 1 and same(high, high - 1) and not same(high, 0):
            label, other, differs = high, high - 1, 0
            while other - differs > 1:  # find the first label that counts as the last one
                middle = (differs + other) // 2
                differs, other = (differs, middle) if same(high, middle) else (middle, other)
            # Below it, all differ, unless the step itself groups labels
            grouped = same(other - 1, other - 2) if other > 1 else low < 1
        else:
            return None
        is_left_out = numpy.array_equal(update(label), update(label, row=1))
        return None if grouped or is_left_out or other not in y else (label, other)
    except Exception:  # the step rejects such labels, or needs its own optimizer
        return None
