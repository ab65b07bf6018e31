"""Code shared by all contenders: read the job and the rows, time the epochs, print the result.

Each contender is a program run by its own interpreter, so this file needs only NumPy. Its only argument is a JSON
object, the job:

    {"work": "scratch", "dtype": "float32", "data": "rows.npz", "batch_size": 256, "lr": 0.2,
     "epochs": 3, "cores": 2, ...}

The last line of its output is another JSON object, made by `Stopwatch.line`.
"""
from __future__ import annotations

import glob
import json
import os
import sys
import time

import numpy


def read_job() -> dict:
    """Return the job of this process."""
    return json.loads(sys.argv[1])


def read_rows(job: dict) -> tuple:
    """Return (images, labels, test_images, test_labels): uint8 (n, 28, 28) and (n,), equal for all contenders."""
    with numpy.load(job['data']) as rows:
        return tuple(rows[name] for name in ('images', 'labels', 'test_images', 'test_labels'))


def cpu_seconds() -> float:
    """Return the CPU seconds used so far by this process and the processes that it started.

    Reads the system's counters in /proc, because a process learns the time of its children only when they end. Without
    /proc, running children are not counted.
    """
    group, ticks = os.getpgrp(), 0
    for path in glob.glob('/proc/[0-9]*/stat'):
        try:
            with open(path) as file:
                fields = file.read().rpartition(')')[2].split()  # the name before it may contain spaces
        except OSError:  # the process has ended
            continue
        if int(fields[2]) == group:
            ticks += sum(map(int, fields[11:15]))  # user and system time, of the process and its ended children
    return ticks / os.sysconf('SC_CLK_TCK') if ticks else sum(os.times()[:4])


class Stopwatch:
    """Timer of epochs (training only) that also measures how many cores were busy after the first one.

    Parameters
    ----------
    cpu_seconds : callable
        Returns the CPU seconds used so far.
    """

    def __init__(self, cpu_seconds=cpu_seconds):
        self.seconds, self._cpu, self._cpu_seconds = [], [], cpu_seconds

    def start(self) -> None:
        """Begin an epoch."""
        self._cpu_before = self._cpu_seconds()
        self._started = time.perf_counter()

    def stop(self) -> None:
        """End an epoch. The caller must have waited for its work."""
        self.seconds.append(time.perf_counter() - self._started)
        self._cpu.append(self._cpu_seconds() - self._cpu_before)

    def cores_busy(self) -> float:
        """Return CPU seconds divided by seconds, over the epochs after the first."""
        first = 1 if len(self.seconds) > 1 else 0
        return sum(self._cpu[first:]) / sum(self.seconds[first:])

    def line(self, job: dict, rows: int, loss: float, test_acc: float) -> str:
        """Return the line that the contender prints: seconds per epoch, and loss and accuracy as a check.

        Parameters
        ----------
        rows : int
            Rows per epoch.
        loss : float
            Mean over the rows of the last epoch, each before the update that it causes.
        test_acc : float
            After the last epoch, 0 to 1.
        """
        return json.dumps({'name': job['name'], 'epoch_seconds': self.seconds, 'cores_busy': self.cores_busy(),
                           'rows': rows, 'loss': float(loss), 'test_acc': float(test_acc)})
