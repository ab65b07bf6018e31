"""Steps of training recorded by MXNet's profiler, for the pictures of `draw`."""
from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from ..base.checks import integer
from ..base.files import write_atomically
from ..base.machine import num_cores
from ..mxnet_setup.compat import npx
from ..training.parameters import check_initialized
from ..training.run import Callback, Run
from . import profiler
from .draw import draw
from .read import Event, parse, read, step_time


def check_profiler(devices: list) -> None:
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
    """Profile one call of `step`, on devices that pass `check_profiler`; waits before and after it.

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
    recording = profiler.start()
    try:
        step()
        npx.waitall()
    finally:
        trace = profiler.stop(recording)
    Path(path).write_text(trace)
    return read(path)


class Timeline(Callback):
    """Profiles some steps of a run, each alone, and keeps the median one, as a trace and as a picture.

    A single step may show what happened by accident. A step is recorded from idle devices until they are idle
    again, so that nothing of the one before or after is in it.

    Parameters
    ----------
    folder : path-like
        Where ``trace.json`` and ``timeline.png`` are written; it must be there.
    heading : str
        What is trained, on which data and devices.
    warm_up : int
        The batches before the first one recorded, over all epochs: they lay out memory.
    steps : int
        The batches recorded after them, fewer if the run ends before.

    Attributes
    ----------
    trace : Path
        The Chrome trace of the median step, by `step_time`, of those recorded; of an even number of them the
        quicker of the two in the middle. Written anew after each step, and not at all if there is none.
    num_steps : int
        The steps recorded.

    Raises
    ------
    ValueError
        If `warm_up` is not an integer of at least 0, or `steps` not one of at least 1; and when the run begins, if
        `check_profiler` refuses a device of the network.
    """

    def __init__(self, folder, heading: str, warm_up: int = 5, steps: int = 5):
        self.trace, self.picture = Path(folder) / 'trace.json', Path(folder) / 'timeline.png'
        self.heading = heading
        self.warm_up, self.steps = integer('warm_up', warm_up, 0), integer('steps', steps, 1)
        self.num_steps = 0
        self._num_batches = 0
        self._recording: tempfile.TemporaryDirectory | None = None  # while a step is profiled
        self._recorded: list[tuple[float, str]] = []  # of each step its milliseconds and its trace

    def train_begin(self, run: Run) -> None:
        """Refuse devices that the profiler cannot record, before anything is trained."""
        if hasattr(run.net, 'collect_params'):
            check_initialized(run.net)
            check_profiler([device for param in run.net.collect_params().values() for device in param.list_ctx()])
        else:
            check_profiler([array.ctx for params in run.net for array in params])

    def epoch_begin(self, run: Run) -> None:
        """Begin to profile, if the next batch is to be recorded."""
        if self._num_batches >= self.warm_up and self.num_steps < self.steps:
            self._recording = profiler.start()

    def batch_end(self, run: Run) -> None:
        """Record the batch, if it has been profiled, and begin with the next one; waits for it in that case."""
        self._num_batches += 1
        if self._recording:
            npx.waitall()
            recording, self._recording = self._recording, None
            trace = profiler.stop(recording)
            try:
                self._keep(trace)
            except OSError as error:  # a full disk must not end the run
                run.warn(f'{self.trace} cannot be written ({error.strerror}): no more steps are recorded')
                self.steps = self.num_steps
        self.epoch_begin(run)

    def epoch_trained(self, run: Run) -> None:
        """Throw away what has been profiled since the last batch of the epoch, as no batch has followed."""
        self.close()

    def train_end(self, run: Run) -> None:
        """Draw the median step and say so."""
        self.close()
        if self.num_steps:
            which = f'the median of {self.num_steps} steps' if self.num_steps > 1 else 'one step'
            try:
                draw(read(self.trace), self.picture, f'{self.heading}: {which}')
                run.print(f'timeline: {self.picture}')
            except (OSError, ValueError) as error:
                run.warn(f'timeline: none ({error})')
        else:
            run.print(f'timeline: none, the run ended before {self.warm_up + 1} batches were done')

    def close(self) -> None:
        """Stop profiling and throw away the step that has been begun, if there is one; does not wait.

        After an error or Ctrl-C within a step it leaves the profiler off. Can be called at any time.
        """
        if self._recording:
            recording, self._recording = self._recording, None
            profiler.stop(recording)

    def _keep(self, trace: str) -> None:
        self._recorded.append((step_time(parse(trace, self.trace)), trace))
        _, median = sorted(self._recorded)[self.num_steps // 2]
        write_atomically(self.trace, [median.encode()])
        self.num_steps += 1
