"""The networks of both chapters on several devices, timed: what `benchmark` measures."""
from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from itertools import islice
from statistics import median
from typing import NamedTuple

from ..data.batches import BatchIterator, integer
from ..devices.lists import check_devices
from ..mxnet_setup.compat import mx, np, npx, seed
from ..training.run import TrainingLog
from .workloads import NETWORKS

MODES = ('fixed total', 'fixed per device')
DISPATCH_COUNTS = (1, 2, 4, 8, 16)


class Case(NamedTuple):
    """What one measurement is of."""

    network: str      # a key of NETWORKS
    num_devices: int
    rows: int         # in a batch, over all devices


class Sample(NamedTuple):
    """One measurement of a case: seconds a step."""

    step: float
    as_trained: dict  # loading, dispatch, waiting -> seconds, which add up to the step
    parts: dict       # the part -> seconds, when each is waited for


def measure(job, batches: Iterator, warm_up: int, steps: int, part_steps: int) -> Sample:
    """Train on `warm_up` batches, then measure on `steps` as trained and on `part_steps` part by part; waits."""
    for X, y in islice(batches, warm_up):
        job.train_batch(X, y)
    for _ in job.parts(*next(batches)):
        npx.waitall()
    as_trained = _as_trained(job, batches, steps)
    return Sample(sum(as_trained.values()), as_trained, _part_by_part(job, batches, part_steps))


def _as_trained(job, batches, steps) -> dict:
    """Seconds a step, from idle devices to idle devices, with the chapters' log, which waits now and then."""
    clock, log = _Clock(), TrainingLog(1, quiet=True)
    for X, y in log.progress(_Steps(batches, steps)):
        clock.lap('loading')
        ls = job.train_batch(X, y)
        clock.lap('dispatch')
        log.add(ls)
        clock.lap('waiting')
    npx.waitall()
    clock.lap('waiting')
    return {name: seconds / steps for name, seconds in clock.laps.items()}


class _Steps:
    """So many of the batches, as a `train_iter`."""

    def __init__(self, batches: Iterator, steps: int):
        self.batches, self.steps = batches, steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator:
        return islice(self.batches, self.steps)


def _part_by_part(job, batches, steps) -> dict:
    clock = _Clock()
    for _ in range(steps):
        X, y = next(batches)
        clock.lap('loading')
        for part in job.parts(X, y):
            npx.waitall()
            clock.lap(part)
    return {name: seconds / steps for name, seconds in clock.laps.items()}


class _Clock:
    """Adds the time since the last lap to the name of this one."""

    def __init__(self):
        self.laps: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = self.laps.get(name, 0.0) + now - self.last
        self.last = now


def measure_dispatch(network: str, counts: tuple = DISPATCH_COUNTS, steps: int = 20) -> list[dict]:
    """Measure what Python needs to start a step on idle CPU contexts, one row each; waits.

    Returns
    -------
    list of dict
        For each number of devices, medians in milliseconds: ``wall_ms``, the duration of the call of
        `train_batch`, and ``cpu_ms``, what of it Python's thread was running. They differ where it waited
        or, with fewer cores than devices, where devices took its core while it was still dispatching.
    """
    table = []
    for k in counts:
        devices = check_devices([mx.cpu(i) for i in range(k)])
        job, wall, cpu = NETWORKS[network](devices), [], []
        X, y = np.ones((k, 1, 28, 28)), np.zeros((k,), dtype='int32')
        for _ in range(steps + 3):
            npx.waitall()
            start, cpu_start = time.perf_counter(), time.thread_time()
            job.train_batch(X, y)
            cpu.append(time.thread_time() - cpu_start)
            wall.append(time.perf_counter() - start)
        npx.waitall()
        table.append({'network': network, 'devices': k, 'wall_ms': 1000 * median(wall[3:]),
                      'cpu_ms': 1000 * median(cpu[3:])})
    return table


def device_counts(k: int) -> list[int]:
    """1, 2, ... k, or above 4 devices the powers of two and k itself: 6 -> [1, 2, 4, 6]."""
    if k <= 4:
        return list(range(1, k + 1))
    return [2**i for i in range((k - 1).bit_length())] + [k]


def summary(case: Case, mode: str, samples: list[Sample], rows_on_one: int, samples_on_one: list[Sample]) -> dict:
    """One line of the tables: medians of the rounds, in images/s and milliseconds.

    Parameters
    ----------
    case, mode : Case, str
        What was measured.
    samples : list of Sample
        Of the case, one a round.
    rows_on_one, samples_on_one : int, list of Sample
        The rows in a batch on one device and, in the same rounds, its samples: the speed-up is the median
        of the ratios in each round.
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


def scaling(networks: list, devices: list, batch_sizes: dict, train_iter: BatchIterator, rounds: int,
            steps: dict, say=print) -> list[dict]:
    """Measure networks on the first 1, 2, ... k devices, in both modes, and return a `summary` of each.

    Parameters
    ----------
    networks : list of str
        Keys of `NETWORKS`.
    devices : list of mx.Context
        All k devices.
    batch_sizes : dict
        Of each network: rows on all devices in the first mode, rows on each in the second.
    train_iter : BatchIterator
        Supplies the rows.
    rounds, steps : int, dict
        How often each case is measured, and of each network, on how many steps.
    say : callable
        Is told, in one line, when a round is done.

    Raises
    ------
    ValueError
        If a batch has fewer rows than devices, or more than there are.
    """
    counts = device_counts(len(devices))
    table = {(network, mode, k): Case(network, k, batch_sizes[network] * (k if mode == MODES[1] else 1))
             for network in networks for mode in MODES for k in counts}
    for case in table.values():
        integer(f'rows in a batch on {case.num_devices} devices:', case.rows, case.num_devices,
                train_iter.num_rows)
    # On one device both modes are the same: measured once
    samples: dict[Case, list[Sample]] = {case: [] for case in table.values()}
    batches = {rows: _endless(train_iter, rows) for rows in {case.rows for case in samples}}
    for number in range(rounds):
        for case in list(samples)[::-1 if number % 2 else 1]:
            seed(0)
            job = NETWORKS[case.network](devices[:case.num_devices])
            samples[case].append(measure(job, batches[case.rows], job.warm_up, steps[case.network],
                                         min(steps[case.network], job.part_steps)))
        say(f'round {number + 1} of {rounds} done')
    return [summary(case, mode, samples[case], batch_sizes[network], samples[table[network, mode, 1]])
            for (network, mode, _), case in table.items()]


def _endless(train_iter: BatchIterator, rows: int) -> Iterator:
    """Batches of `rows` rows, for ever."""
    train_iter = copy.copy(train_iter)
    train_iter.batch_size = rows
    while True:
        yield from ((X, y) for X, y in train_iter if len(X) == rows)
