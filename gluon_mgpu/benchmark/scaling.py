"""Measurement of both chapters' training on 1, 2, ... k devices."""
from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import islice
from statistics import median
from typing import NamedTuple

from .. import concise, scratch
from ..data.batches import BatchIterator
from ..training.run import Run

MODES = ('fixed total', 'fixed per device')


class Network(NamedTuple):
    """A chapter's network, and how it is measured by default."""

    title: str
    train: Callable
    lr: float
    batch_size: int
    batch_size_on_cpus: int
    warm_up: int  # steps before those that are measured
    steps: int


NETWORKS = {
    'lenet': Network('LeNet', scratch.train, 0.2, 256, 256, warm_up=5, steps=40),
    # A row takes about 20 MB: 256 on each of many cores is more than most machines have
    'resnet18': Network('ResNet-18', concise.train, 0.1, 256, 64, warm_up=1, steps=5),
}


class Case(NamedTuple):
    """A network, a number of devices and a batch size to measure."""

    network: str      # key of NETWORKS
    num_devices: int
    rows: int         # in a batch, over all devices


def device_counts(k: int) -> list[int]:
    """Return 1, 2, ... k or, for k above 4, the powers of two below k, and k: 6 -> [1, 2, 4, 6]."""
    if k <= 4:
        return list(range(1, k + 1))
    return [2**i for i in range((k - 1).bit_length())] + [k]


def plan(batch_sizes: dict[str, int], num_devices: int, num_rows: int) -> dict[tuple[str, str, int], Case]:
    """Return the cases to measure: (network, mode, number of devices) -> Case.

    On one device, both modes are the same case. `batch_sizes` has the rows per network: on all devices together in the
    first mode, on each device in the second. Raises ValueError if a batch has fewer rows than devices, or more than
    `num_rows`, the size of the dataset.
    """
    cases = {(network, mode, k): Case(network, k, rows * k if mode == 'fixed per device' else rows)
             for network, rows in batch_sizes.items() for mode in MODES for k in device_counts(num_devices)}
    for case in cases.values():
        if not case.num_devices <= case.rows <= num_rows:
            raise ValueError(f'a batch of {case.rows:,} rows on {case.num_devices} device(s): must have a row for each '
                             f'device, and at most the {num_rows:,} rows of the dataset; change --batch-size')
    return cases


def scaling(cases: dict, devices: list, train_iter: BatchIterator, rounds: int, steps: dict[str, int]) -> list[dict]:
    """Measure each case from `plan` once per round, on `steps` of its network; return a `summary` of each; blocks."""
    rates: dict[Case, list[float]] = {case: [] for case in cases.values()}  # images/s in each round
    for number in range(rounds):
        for case in list(rates)[::-1 if number % 2 else 1]:
            rates[case].append(images_per_second(case, devices, train_iter, steps[case.network]))
        print(f'round {number + 1} of {rounds} done', flush=True)
    return [summary(case, mode, rates[case], rates[cases[network, mode, 1]])
            for (network, mode, _), case in cases.items()]


def images_per_second(case: Case, devices: list, train_iter: BatchIterator, steps: int) -> float:
    """Train a new network as its chapter does, for a warm-up and then `steps`; return the speed of these."""
    network, run, seconds = NETWORKS[case.network], Run(1, quiet=True), []
    source = _full_batches(train_iter, case.rows)

    def batches() -> Iterator:
        yield from islice(source, network.warm_up)
        run.synchronize()
        seconds.append(run.state()['seconds'])
        yield from islice(source, steps)

    X, y = next(source)
    network.train(case.num_devices, case.rows, network.lr, devices=devices[:case.num_devices],
                  data=(batches(), [(X[:1], y[:1])]), run=run)  # evaluates one row
    return steps * case.rows / (run.history[0].seconds - seconds[0])


def _full_batches(train_iter: BatchIterator, rows: int) -> Iterator:
    """Yield batches of `rows` rows without end."""
    train_iter = copy.copy(train_iter)
    train_iter.batch_size = rows
    while True:
        yield from (batch for batch in train_iter if len(batch[0]) == rows)


def summary(case: Case, mode: str, rates: list[float], rates_on_one: list[float]) -> dict:
    """Return the results of a case, medians and ranges, from the images/s of each round on its devices and on one.

    The speed-up is the median of the ratios in each round.
    """
    speed_ups = [rate / on_one for rate, on_one in zip(rates, rates_on_one)]
    return {**case._asdict(), 'mode': mode, 'images_per_second': median(rates),
            'images_per_second_range': [min(rates), max(rates)], 'images_per_second_by_round': rates,
            'speed_up': median(speed_ups), 'speed_up_range': [min(speed_ups), max(speed_ups)],
            'efficiency': median(speed_ups) / case.num_devices, 'ms_per_step': 1000 * case.rows / median(rates)}
