"""Helpers of the exercises: flags, times of several programs in turn, and a part of a dataset."""
from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from functools import cache
from itertools import accumulate, islice, pairwise
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from flags import read_flags, run_example
from gluon_mgpu import Timer, load_data
from mxnet import npx

__all__ = ['available', 'median_seconds', 'part_of', 'read_flags', 'run_example', 'split_by']


def median_seconds(*functions: Callable, rounds: int = 5, until_done: bool = True) -> list[float]:
    """Return the median time of each function; they run in turn, after a warm-up.

    The time includes the work that a function queues, unless `until_done` is False.
    """
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(1 + rounds):
        for function, of_function in zip(functions, times):
            npx.waitall()
            timer = Timer()
            function()
            if until_done:
                npx.waitall()
            of_function.append(timer.stop())
    return [statistics.median(of_function[1:]) for of_function in times]


def part_of(dataset: str, batch_size: int, train_size: int, test_size: int) -> tuple:
    """Return the batches of the first training and test images of a dataset; raise ValueError if it has fewer."""
    train_iter, test_iter = load_data(available(dataset), batch_size, train_size=train_size)
    if test_size > test_iter.num_rows:
        raise ValueError(f'test_size {test_size}: must be at most {test_iter.num_rows}, the test images of {dataset}')
    batches = list(islice(test_iter, -(-test_size // batch_size)))  # rounded up
    X, y = batches[-1]
    rows_of_last = test_size - batch_size * (len(batches) - 1)
    return train_iter, [*batches[:-1], (X[:rows_of_last], y[:rows_of_last])]


def split_by(shares: list[float]) -> Callable:
    """Return a function like `split_batch` that splits the rows in proportion to the shares of the devices."""
    def split_f(X, y, devices: list) -> tuple[list, list]:
        ends = [round(len(y) * share / sum(shares)) for share in accumulate(shares, initial=0)]
        parts = [slice(start, end) for start, end in pairwise(ends)]
        X_shards, y_shards = ([array[part].as_in_ctx(device) for part, device in zip(parts, devices)]
                              for array in (X, y))
        return X_shards, y_shards
    return split_f


@cache
def available(dataset: str) -> str:
    """Return the name of a dataset; for 'auto', the one that `load_data` chooses at the first call."""
    return load_data(dataset, 1)[0].dataset if dataset == 'auto' else dataset
