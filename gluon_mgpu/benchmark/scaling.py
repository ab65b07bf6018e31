"""Measurement of both networks on 1, 2, ... k devices."""
from __future__ import annotations

import copy
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from ..data.batches import BatchIterator
from ..mxnet_setup.compat import mx
from .measure import Sample, measure
from .workloads import NETWORKS

MODES = ('fixed total', 'fixed per device')


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
    cases = {(network, mode, k): Case(network, k, rows * (k if mode == MODES[1] else 1))
             for network, rows in batch_sizes.items() for mode in MODES for k in device_counts(num_devices)}
    for case in cases.values():
        if not case.num_devices <= case.rows <= num_rows:
            raise ValueError(f'a batch of {case.rows:,} rows on {case.num_devices} device(s): must have a row for each '
                             f'device, and at most the {num_rows:,} rows of the dataset; change --batch-size')
    return cases


def scaling(cases: dict, devices: list, train_iter: BatchIterator, rounds: int, steps: dict[str, int]) -> list[dict]:
    """Measure all cases from `plan` on the first of these devices and return a `summary` of each; blocks.

    Each case is measured once per round, on `steps` of its network. Prints a line after each round.
    """
    samples: dict[Case, list[Sample]] = {case: [] for case in cases.values()}
    batches = {rows: _endless(train_iter, rows) for rows in {case.rows for case in samples}}
    for number in range(rounds):
        for case in list(samples)[::-1 if number % 2 else 1]:
            mx.random.seed(0)
            job = NETWORKS[case.network](devices[:case.num_devices])
            samples[case].append(measure(job, batches[case.rows], job.warm_up, steps[case.network],
                                         min(steps[case.network], job.part_steps)))
        print(f'round {number + 1} of {rounds} done', flush=True)
    lines = []
    for (network, mode, _), case in cases.items():
        one = cases[network, mode, 1]
        lines.append(summary(case, mode, samples[case], one.rows, samples[one]))
    return lines


def summary(case: Case, mode: str, samples: list[Sample], rows_on_one: int, samples_on_one: list[Sample]) -> dict:
    """Return one line of the tables: medians over the rounds, in images/s and milliseconds.

    `samples` has one per round, and `samples_on_one` those of one device with `rows_on_one` rows per batch in the same
    rounds. The speed-up is the median of the ratios in each round.
    """
    rates = [case.rows / sample.step for sample in samples]
    speed_ups = [rate / (rows_on_one / one.step) for rate, one in zip(rates, samples_on_one)]
    ms = 1000 * median(sample.step for sample in samples)
    parts = {part: 1000 * median(sample.parts[part] for sample in samples) for part in samples[0].parts}
    return {
        **case._asdict(), 'mode': mode,
        'images_per_second': median(rates), 'images_per_second_range': [min(rates), max(rates)],
        'speed_up': median(speed_ups), 'speed_up_range': [min(speed_ups), max(speed_ups)],
        'efficiency': median(speed_ups) / case.num_devices, 'ms_per_step': ms,
        'as_trained_ms': {part: 1000 * median(sample.as_trained[part] for sample in samples)
                          for part in samples[0].as_trained},
        'parts_ms': parts, 'overlap_ms': sum(parts.values()) - ms,
        'rounds': [sample._asdict() for sample in samples],
    }


def _endless(train_iter: BatchIterator, rows: int) -> Iterator:
    """Yield batches of `rows` rows without end."""
    train_iter = copy.copy(train_iter)
    train_iter.batch_size = rows
    while True:
        yield from ((X, y) for X, y in train_iter if len(X) == rows)
