"""What all contenders do in the same way: read the job and the rows, time the epochs, print a line.

A contender is a program of its own, run by an interpreter of its own: this file needs NumPy only.
Its one argument is a JSON object, the job:

    {"work": "scratch", "dtype": "float32", "data": "rows.npz", "batch_size": 256, "lr": 0.2,
     "epochs": 3, "cores": 2, ...}

and the last line of its output is another one, made by `Stopwatch.line`.
"""
from __future__ import annotations

import glob
import json
import os
import sys
import time

import numpy


def read_job() -> dict:
    """The job that this process was given."""
    return json.loads(sys.argv[1])


def read_rows(job: dict) -> tuple:
    """(images, labels, test_images, test_labels): uint8 (n, 28, 28) and (n,), the same for every contender."""
    with numpy.load(job['data']) as rows:
        return tuple(rows[name] for name in ('images', 'labels', 'test_images', 'test_labels'))


def cpu_seconds() -> float:
    """Seconds of CPU time used until now by this process and those that it started.

    The system's own counters are asked, since a process knows of its children's time only when they have
    ended. Where there is no /proc, children that are still running are left out.
    """
    group, ticks = os.getpgrp(), 0
    for path in glob.glob('/proc/[0-9]*/stat'):
        try:
            with open(path) as file:
                fields = file.read().rpartition(')')[2].split()  # the name before it may hold spaces
        except OSError:  # it has ended
            continue
        if int(fields[2]) == group:
            ticks += sum(map(int, fields[11:15]))  # user and system, its own and of its ended children
    return ticks / os.sysconf('SC_CLK_TCK') if ticks else sum(os.times()[:4])


class Stopwatch:
    """Times the epochs, training only, and says how many cores were busy after the first one.

    Parameters
    ----------
    cpu_seconds : callable
        Returns the seconds of CPU time used until now.
    """

    def __init__(self, cpu_seconds=cpu_seconds):
        self.seconds, self._cpu, self._cpu_seconds = [], [], cpu_seconds

    def start(self) -> None:
        """Begin an epoch."""
        self._cpu_before = self._cpu_seconds()
        self._started = time.perf_counter()

    def stop(self) -> None:
        """End an epoch. The caller has waited for its work to be done."""
        self.seconds.append(time.perf_counter() - self._started)
        self._cpu.append(self._cpu_seconds() - self._cpu_before)

    def cores_busy(self) -> float:
        """CPU seconds divided by seconds, over the epochs after the first."""
        first = 1 if len(self.seconds) > 1 else 0
        return sum(self._cpu[first:]) / sum(self.seconds[first:])

    def line(self, job: dict, rows: int, loss: float, test_acc: float) -> str:
        """What the contender prints: the seconds of each epoch, and what shows that it did the work.

        Parameters
        ----------
        rows : int
            Rows in an epoch.
        loss : float
            Mean over the rows of the last epoch, each taken before the update it led to.
        test_acc : float
            After the last epoch, 0 to 1.
        """
        return json.dumps({'name': job['name'], 'epoch_seconds': self.seconds, 'cores_busy': self.cores_busy(),
                           'rows': rows, 'loss': float(loss), 'test_acc': float(test_acc)})
