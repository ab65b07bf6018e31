"""One training step recorded by MXNet's profiler, for the pictures of `timeline`."""
from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ..devices.lists import num_cores
from ..mxnet_setup.compat import mx, npx
from ..training.run import TrainingLog
from .draw import Event, read


def check_devices(devices: list) -> None:
    """Refuse devices that MXNet's profiler cannot record.

    Raises
    ------
    ValueError
        The profiler has as many places for CPU contexts as the machine has cores and looks no further: the
        next contexts are shown as something else, those after them end the process.
    """
    for device in devices:
        if device.device_type == 'cpu' and device.device_id >= num_cores():
            raise ValueError(f"{device} is beyond what MXNet's profiler can record: with {num_cores()} cores "
                             f'a timeline takes cpu:0 to cpu:{num_cores() - 1}')


def record(step: Callable[[], None], path) -> list[Event]:
    """Profile one call of `step`, on devices that pass `check_devices`; waits before and after it.

    Parameters
    ----------
    step : callable
        Takes nothing. Should have run a few times before: the first calls lay out memory.
    path : path-like
        The Chrome trace to write.

    Returns
    -------
    list of Event
        As from `read`.
    """
    with _profiled(path):
        step()
    return read(path)


@contextlib.contextmanager
def _profiled(path) -> Iterator[None]:
    npx.waitall()
    head = _head()
    with tempfile.TemporaryDirectory() as folder:
        _profile_to(f'{folder}/events')
        mx.profiler.set_state('run')
        try:
            yield
            npx.waitall()
        finally:
            mx.profiler.set_state('stop')
            events = _dumped(f'{folder}/events')
    Path(path).write_text(f'{head}{events}\n    ],\n    "displayTimeUnit": "ms"\n}}\n')


@functools.cache
def _head() -> str:
    """The beginning of a trace: the devices by name, which MXNet writes at the first dump of a process only."""
    with tempfile.TemporaryDirectory() as folder:
        _profile_to(f'{folder}/head')
        mx.profiler.set_state('run')
        mx.profiler.set_state('stop')
        return _dumped(f'{folder}/head')


def _profile_to(path) -> None:
    mx.profiler.set_config(profile_imperative=True, profile_symbolic=True, filename=str(path))


def _dumped(path) -> str:
    """What MXNet recorded since the dump before.

    A finished dump would be the last one of the process. Of unfinished ones each goes on where the one
    before ended, and the end of it all is written when the process ends: to nowhere.
    """
    mx.profiler.dump(finished=False)
    _profile_to(os.devnull)
    return Path(path).read_text()


class TimelineLog(TrainingLog):
    """A `TrainingLog` that profiles one step of the run: what happens between one batch and the next.

    Parameters
    ----------
    trace : path-like
        The Chrome trace to write. Not written if the run has too few batches.
    warm_up : int
        Batches before that one, over all epochs.
    *args, **kwargs
        Those of `TrainingLog`.
    """

    def __init__(self, *args, trace, warm_up: int = 5, **kwargs):
        super().__init__(*args, **kwargs)
        self.trace, self._batches_left = Path(trace), warm_up

    def progress(self, train_iter: Iterable) -> Iterator:
        """Yield the batches of one epoch; profile the step that follows the chosen one."""
        for batch in super().progress(train_iter):
            self._batches_left -= 1
            with _profiled(self.trace) if self._batches_left == -1 else contextlib.nullcontext():
                yield batch
