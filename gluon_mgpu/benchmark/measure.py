"""Timing of a workload: a step as trained, its parts one after another, and its dispatch."""
from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
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
    parts: dict[str, float]       # each part of the step, with a wait after it


def measure(job, batches: Iterator, warm_up: int, steps: int, part_steps: int) -> Sample:
    """Train a workload on `warm_up` batches, then measure `steps` as trained and `part_steps` part by part; blocks.

    `batches` yields (X, y) at least `warm_up` + 1 + `steps` + `part_steps` times. Parameters change in place.
    """
    for X, y in islice(batches, warm_up):
        job.train_batch(X, y)
    for _ in job.parts(*next(batches)):
        npx.waitall()
    as_trained = _as_trained(job, batches, steps)
    return Sample(sum(as_trained.values()), as_trained, _part_by_part(job, batches, part_steps))


def _as_trained(job, batches: Iterator, steps: int) -> dict[str, float]:
    """Return seconds per step, from idle devices to idle devices, in a `Run`, which waits from time to time."""
    clock = _Clock()
    run = Run(1, quiet=True, callbacks=[clock])
    for _ in run.epochs(job.net):
        for X, y in run.batches(islice(batches, steps)):
            clock.lap('loading')
            ls = job.train_batch(X, y)
            clock.lap('dispatch')
            run.record_losses(ls)
            clock.lap('waiting')
        run.end_epoch(test_acc=0)  # no evaluation
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
    """Stopwatch that sums up laps by name."""

    def __init__(self):
        self.laps: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = self.laps.get(name, 0.0) + now - self.last
        self.last = now

    def epoch_begin(self, run: Run) -> None:
        """Start the first lap with the epoch."""
        self.last = time.perf_counter()

    def epoch_trained(self, run: Run) -> None:
        """Count the wait for the last batches."""
        self.lap('waiting')


def measure_dispatch(network: str, counts: Sequence = DISPATCH_COUNTS, steps: int = 20) -> list[dict]:
    """Measure how long Python needs to start a step on idle CPU contexts, one row each; blocks.

    Returns medians per number of devices: ``wall_ms``, the duration of a `train_batch` call, and ``cpu_ms``, the part
    of it in which Python's thread was running. They differ if the thread waited, or if a device used its core.
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
