"""One workload on given devices, timed: a step as trained, its parts one after the other, and its dispatch."""
from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from statistics import median
from typing import NamedTuple

from ..devices import check_devices
from ..mxnet_setup.compat import mx, np, npx
from ..training.run import Callback, Run
from .workloads import NETWORKS

DISPATCH_COUNTS = (1, 2, 4, 8, 16)


class Sample(NamedTuple):
    """One measurement: seconds per step."""

    step: float
    as_trained: dict[str, float]  # loading, dispatch and waiting, which add up to the step
    parts: dict[str, float]       # each part of the step, when it is waited for


def measure(job, batches: Iterator, warm_up: int, steps: int, part_steps: int) -> Sample:
    """Train on `warm_up` batches, then measure on `steps` as trained and on `part_steps` part by part; waits.

    Parameters
    ----------
    job : LeNet or ResNet18
        One of the `workloads`; its parameters are changed in place.
    batches : iterator over (X, y)
        With enough batches.
    warm_up, steps, part_steps : int
        How many batches each takes; one more is for the first step part by part.
    """
    for X, y in islice(batches, warm_up):
        job.train_batch(X, y)
    for _ in job.parts(*next(batches)):
        npx.waitall()
    as_trained = _as_trained(job, batches, steps)
    return Sample(sum(as_trained.values()), as_trained, _part_by_part(job, batches, part_steps))


def _as_trained(job, batches: Iterator, steps: int) -> dict[str, float]:
    """Seconds per step, from idle devices to idle devices, in a `Run`, which waits now and then."""
    clock = _Clock()
    run = Run(1, quiet=True, callbacks=[clock])
    for _ in run.epochs(job.net):
        for X, y in run.batches(islice(batches, steps)):
            clock.lap('loading')
            ls = job.train_batch(X, y)
            clock.lap('dispatch')
            run.record_losses(ls)
            clock.lap('waiting')
        run.end_epoch(test_acc=0)  # not evaluated
    return {name: seconds / steps for name, seconds in clock.laps.items()}


def _part_by_part(job, batches: Iterator, steps: int) -> dict[str, float]:
    clock = _Clock()
    for _ in range(steps):
        X, y = next(batches)
        clock.lap('loading')
        for part in job.parts(X, y):
            npx.waitall()
            clock.lap(part)
    return {name: seconds / steps for name, seconds in clock.laps.items()}


class _Clock(Callback):
    """Adds the time since the last lap to the name of this one."""

    def __init__(self):
        self.laps: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = self.laps.get(name, 0.0) + now - self.last
        self.last = now

    def epoch_begin(self, run: Run) -> None:
        """Begin the first lap with the epoch."""
        self.last = time.perf_counter()

    def epoch_trained(self, run: Run) -> None:
        """Count the wait for the last batches."""
        self.lap('waiting')


def measure_dispatch(network: str, counts: tuple = DISPATCH_COUNTS, steps: int = 20) -> list[dict]:
    """Measure what Python needs to start a step on idle CPU contexts, one row each; waits.

    Parameters
    ----------
    network : str
        Which one is trained: a key of `NETWORKS`.
    counts : tuple of int
        The numbers of devices.
    steps : int
        How many times each is measured.

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
