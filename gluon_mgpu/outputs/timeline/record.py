"""Recording of training steps with MXNet's profiler."""
import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median_low

from ...base.files import write_atomically
from ...base.machine import num_cores
from ...base.program import reason
from ...base.text import counted
from ...mxnet_setup.compat import mx, npx
from ...training.run import Callback, Run
from .draw import draw_timeline
from .read import Event, parse, step_time

_temporary_folder = functools.cache(tempfile.TemporaryDirectory)  # deleted when the process ends


def check_profiler(devices: list) -> None:
    """Raise ValueError for CPU contexts beyond the profiler's slots, one per core: they get wrong names or crash."""
    for device in devices:
        if device.device_type == 'cpu' and device.device_id >= num_cores():
            raise ValueError(f"{device} is beyond what MXNet's profiler can record: with {num_cores()} cores, "
                             f'use cpu:0 to cpu:{num_cores() - 1}, or --no-timeline')


def record_timeline(step: Callable[[], None], path) -> list[Event]:
    """Profile one call of `step`, write a Chrome trace to `path` and return its events; blocks.

    The devices must pass `check_profiler`. Call `step` a few times before, because the first calls allocate memory.
    """
    start_profiler()
    try:
        step()
        npx.waitall()
    finally:
        trace = stop_profiler()
    write_atomically(path, trace.encode())
    return parse(trace, path)


class Timeline(Callback):
    """Callback that records some steps of a run, each alone, and writes the median one as a trace and a picture.

    The devices must pass `check_profiler`.
    """

    def __init__(self, folder, heading: str, warm_up: int = 5, steps: int = 5):
        self.trace, self.picture = Path(folder, 'trace.json'), Path(folder, 'timeline.png')
        self.heading, self.warm_up, self.steps = heading, warm_up, steps
        self._num_batches, self._recording = 0, False
        self.traces: list[str] = []

    def epoch_begin(self, run: Run) -> None:
        if self._num_batches >= self.warm_up and len(self.traces) < self.steps:
            start_profiler()
            self._recording = True

    def batch_end(self, run: Run) -> None:
        """Keep the trace of this batch, if it was profiled, and continue with the next; blocks while profiling."""
        self._num_batches += 1
        if self._recording:
            npx.waitall()
            self.traces.append(self._stop())
        self.epoch_begin(run)

    def epoch_trained(self, run: Run) -> None:
        self._stop()  # the profile that was started for a next batch

    def train_end(self, run: Run) -> None:
        self._stop()
        if not self.traces:
            run.print(f'no timeline: no step was recorded; it needs at least {self.warm_up + 1} batches')
            return
        try:
            _, trace = median_low((step_time(parse(trace, self.trace)), trace) for trace in self.traces)
            write_atomically(self.trace, trace.encode())
            number = counted(len(self.traces), 'step')
            draw_timeline(parse(trace, self.trace), self.picture, f'{self.heading}: the median of {number}')
            run.print(f'timeline: {self.picture}')
        except Exception as error:  # such as a full disk or a missing LaTeX; it must not hide how the run ended
            run.warn(f'no timeline: {reason(error)}')

    def _stop(self) -> str:
        was_recording, self._recording = self._recording, False
        return stop_profiler() if was_recording else ''


def start_profiler() -> None:
    """Wait until the devices are idle and start MXNet's profiler, any number of times in a process."""
    npx.waitall()
    device_names()
    _begin()


def stop_profiler() -> str:
    """Stop the profiler and return the recorded Chrome trace; does not block."""
    return f'{{"traceEvents": [{device_names()}{_end()}], "displayTimeUnit": "ms"}}'


@functools.cache
def device_names() -> str:
    """Return the records that name the devices. MXNet writes them only at a process's first dump."""
    _begin()
    return _end()


def _begin() -> None:
    if _file().exists():
        os.truncate(_file(), 0)  # the profile before
    # Without continuous_dump, only dump() writes, not MXNet by itself once per second and when the process ends
    # No memory: MXNet makes its counters without a lock, so the first two devices to allocate may fail
    mx.profiler.set_config(profile_imperative=True, profile_symbolic=True, profile_memory=False, continuous_dump=False,
                           filename=str(_file()))
    mx.profiler.set_state('run')


def _end() -> str:
    """Return the records since `_begin` as text of JSON, '' if MXNet could not write them."""
    mx.profiler.set_state('stop')
    mx.profiler.dump()
    trace = _file().read_text() if _file().exists() else ''
    return trace.removeprefix('{\n    "traceEvents": [').rpartition(']')[0]  # no prefix after a user's own profile


def _file() -> Path:
    """Return the file that MXNet writes."""
    return Path(_temporary_folder().name) / 'trace.json'
