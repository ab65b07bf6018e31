"""The check of a training step, and its report."""
from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ...base.text import counted
from ...devices import check_devices
from ...devices.lists import devices_text
from ...mxnet_setup.compat import mx
from ...parallel.workers import ThisProcess, Workers
from .contents import DRIFTS, drifting
from .diagnosis import diagnose
from .hybridized_networks import check_frozen, check_hybridized
from .step_comparison import compare, rounds, share_of_halves
from .trials import prepare, semantics_of_step
from .user_batches import check_batches, cut
from .user_step import Training

MAX_LINES = 8
DROPOUT = 'dropout ({}): each device draws its own random numbers; checked without dropout.'
BATCH_NORM = 'batch norm ({}): each device normalizes by its own rows; checked with fixed statistics.'
RIGHT = 'The step is right{}: k devices compute what one does.'
ON_ONE_DEVICE = 'one device alone, in {}; several are compared when it is right'
UNCHANGED = 'no device changes {}. Is it in the Trainer, and does the loss depend on it?'
OWN_ROWS = ('the update seems to be divided by the rows of its own batch. With 60,000 rows in batches of 256, the last '
            '96 then weigh 2.7 times as much as others. Dividing by the batch size avoids that.')
NOT_CHECKED = ('Not checked: mistakes that one device makes as well, running statistics, arrays without gradients that '
               'are on some devices only or unlike any parameter, and missing copies between devices, which only GPUs '
               'report.')


@dataclass
class Report:
    """Result of `check_data_parallel`; ``print(report)`` shows it."""

    ok: bool          # k devices compute what one does, possibly except for the layers in `notes`
    title: str
    parameters: list  # (name, difference from one device, between devices, verdict); relative to the change
    diagnosis: list   # fault, remedy and evidence, unless `ok`
    notes: list       # what differs but is no fault, or could not be checked
    exception: str = ''  # after 'The step is right', such as ', except for ...'

    @property
    def is_checked(self) -> bool:
        """Return whether the step is known to be right or wrong."""
        return not (self.diagnosis and self.diagnosis[0].startswith('NOT CHECKED'))

    def __str__(self):
        shown = sorted(self.parameters, key=lambda row: row[3] == 'equal')[:MAX_LINES]
        left_out, width = len(self.parameters) - len(shown), max([9, *(len(row[0]) for row in shown)])
        table = [
            '', f'{"parameter":{width}}  from one device  between devices  verdict',
            *(f'{name:{width}}  {one:15.1e}  {between:15.1e}  {verdict}' for name, one, between, verdict in shown),
            *([f'and {left_out} others'] if left_out else [])] if shown else []
        lines = [*(self.diagnosis or [RIGHT.format(self.exception)]), '',
                 *(f'Note: {note}' for note in self.notes), NOT_CHECKED]
        title, *lines = (textwrap.fill(line, 100, subsequent_indent='  ') for line in (self.title, *lines))
        return '\n'.join([title, *table, '', *lines])


def check_data_parallel(make: Callable, train_batch: Callable, batches: Iterable, devices: list | None = None,
                        workers: Workers | None = None) -> Report:
    """Compare a training step on several devices with the same step on one, and diagnose differences; blocks.

    Both start from the same parameters and random numbers, in float64 if the step can compute in it. The batches divide
    evenly, unevenly, have fewer rows than there are devices, and end with a short one. Raises ValueError for a single
    device, too few rows, or if `make` returns no parameters. In a test suite: ``assert report.ok, report``.

    Parameters
    ----------
    make : callable
        ``make(devices)`` returns what the step needs on these devices, new at each call: networks, Trainers, arrays
        with gradients, or lists, tuples, dicts or objects of these. With `workers`, ``make(devices, workers)``.
    train_batch : callable
        ``train_batch(state, X, y, devices)`` takes a step with what `make` returned, on the whole batch. If both work
        only without ``npx.set_np``, X and y are arrays of ``mx.nd``.
    batches : iterable of (X, y)
        They are cut into batches of at most four rows per device. X and y are arrays of any dtypes, or nested tuples.
    devices : list of mx.Context, optional
        By default ``[cpu(0), cpu(1), cpu(2)]``, with `workers` the device of each. CPUs are enough to check for GPUs.
    workers : Workers, optional
        All workers of a job, each with `devices`; all get the same report. For one device, `make` gets `Workers`.
    """
    if devices is None:
        devices = [workers.device] if workers and workers.device else [mx.cpu(i) for i in range(3)]
    devices = check_devices(devices)
    job = workers or ThisProcess()
    if (k := len(devices) * job.size) < 2:
        raise ValueError(f'devices {devices_text(devices)}: name at least two, such as cpu:0,cpu:1')
    batches, lists = cut(batches, k)
    training = Training(make if workers else lambda devices, _: make(devices), train_batch, lists, devices, job)
    names = [f'{device} of worker {rank}' if job.size > 1 else str(device)
             for rank in range(job.size) for device in devices]
    try:
        with semantics_of_step(training, batches[0]):
            return _report(training, batches, names)
    finally:
        job.discard_errors()


def _report(training: Training, batches: list, names: list) -> Report:
    several, (dropout, batch_norm) = prepare(training, batches[0])
    faults, notes, optimizer = _check_one_device(several, batches)
    if faults:
        return Report(False, ON_ONE_DEVICE.format(several.dtype or 'its own dtype'), [], faults, [])
    found = shown = compare(several, batches)
    if len(found.unchanged) == found.trained and not found.wrong:
        raise ValueError(f'train_batch changes no parameter on one device in '
                         f'{counted(len(found.batches), "batch")}: it must update those that make returns')
    if found.wrong and batch_norm:
        several = replace(several, fixed_statistics=True)
        found = compare(several, batches)
    if found.wrong and several.dtype and rounds(several, batches[0]):
        several = replace(several, dtype=None)
        found = compare(several, batches)
    ok = not found.wrong
    shown, verdict = (shown, 'batch norm') if ok else (found, 'DIFFERS')
    notes += [f'batches of {counted(n, "row")} are not checked, because {why}' for n, why in found.skipped]
    if ok and found.unchanged:
        notes.append(UNCHANGED.format(', '.join(found.unchanged)))
    if dropout:
        notes.append(DROPOUT.format(dropout))
    if several.fixed_statistics:
        notes.append(BATCH_NORM.format(batch_norm))
    if ok and share_of_halves(several, batches[0]) == 0.5:  # otherwise the diagnosis says by what it is divided
        notes.append(OWN_ROWS)
    diagnosis = [] if ok else diagnose(several, batches, names)
    if ok and optimizer and len(several.devices) > 1:
        diagnosis = [f'WRONG: {optimizer} {DRIFTS[0]}.', f'Do: {DRIFTS[1]}.']
    skipped = ' and '.join(counted(n, 'row') for n, _ in found.skipped)
    return Report(not diagnosis, f'{len(names)} devices compared with one, in {several.dtype or "its own dtype"}, over '
                  f'batches of {", ".join(str(len(batch[0])) for batch in found.batches)} rows',
                  [(*row, verdict if i in shown.wrong else 'equal') for i, row in enumerate(shown.rows)],
                  diagnosis, notes, skipped and f', except for batches of {skipped}')


def _check_one_device(several: Training, batches: list) -> tuple[list, list, str]:
    """Return fault and remedy of one device, notes, and the name of an optimizer that should not be on several."""
    one = several.on_one_device()
    faults = check_batches(one, batches) or check_frozen(one, batches[0])
    faults, notes = (faults, []) if faults else check_hybridized(one, batches)
    return faults, notes, drifting(one.state)
