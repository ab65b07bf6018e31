"""The check of a training step, and its report."""
import contextlib
import random
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy

from ...base.program import clear_engine_errors, reason
from ...base.text import counted
from ...devices import check_devices
from ...mxnet_setup.compat import mx
from ...parallel.workers import Workers
from .comparison import compare_with_one
from .diagnosis import described, diagnose
from .preparation import fit, prepare
from .user_batches import cut
from .user_training import Training

MAX_LINES = 8
DROPOUT = 'dropout ({}): each device draws its own random numbers; checked without dropout.'
BATCH_NORM = 'batch norm ({}): each device normalizes by its own rows; checked with fixed statistics.'
RIGHT = 'The step is right: k devices compute what one does.'
UNCHANGED = 'no device changes {}. Is it in the Trainer, and does the loss depend on it?'
USE_ALL = ('use all devices that the network is on, and each parameter in each batch; set the gradients of devices '
           'without rows to 0: prepare_idle_devices(net, X, devices)')
NOT_CHECKED = ('Not checked: mistakes that one device makes as well, running statistics, arrays unlike any parameter, '
               'and missing copies between devices.')


@dataclass
class Report:
    """Result of `check_data_parallel`; ``print(report)`` shows it."""

    ok: bool          # k devices compute what one does, possibly except for the layers in `notes`
    title: str
    parameters: list  # (name, difference from one device, between devices, verdict); relative to the change
    diagnosis: list   # fault, remedy and evidence, unless `ok`
    notes: list       # what differs but is no fault, or could not be checked

    @property
    def is_checked(self) -> bool:
        """Return whether the step is known to be right or wrong."""
        return not ''.join(self.diagnosis).startswith('NOT CHECKED')

    def __str__(self):
        shown = sorted(self.parameters, key=lambda row: row[3] == 'equal')[:MAX_LINES]
        width = max([9, *(len(row[0]) for row in shown)])
        table = [f'{name:{width}}  {one:15.1e}  {between:15.1e}  {verdict}' for name, one, between, verdict in shown]
        if shown:
            table = ['', f'{"parameter":{width}}  from one device  between devices  verdict', *table]
        if len(shown) < len(self.parameters):
            table.append(f'and {len(self.parameters) - len(shown)} others')
        lines = [self.title, *(self.diagnosis or [RIGHT]), '', *(f'Note: {note}' for note in self.notes), NOT_CHECKED]
        title, *lines = (textwrap.fill(line, 100, subsequent_indent='  ') for line in lines)
        return '\n'.join([title, *table, '', *lines])


def check_data_parallel(make: Callable, train_batch: Callable, batches: Iterable, devices: list | None = None,
                        workers: Workers | None = None) -> Report:
    """Compare a training step on several devices with the same step on one, and diagnose differences; blocks.

    Both start from the same parameters and random numbers, in float64 if the step can compute in it. The batches divide
    evenly, unevenly, have fewer rows than there are devices, and end with a single row. Afterwards, NumPy and Python
    draw the random numbers that they would have drawn before. Raises ValueError for a single device, too few rows, or
    if `make` returns no parameters. In a test suite: ``assert report.ok, report``.

    Parameters
    ----------
    make : callable
        ``make(devices)`` returns what the step needs on these devices, new at each call: networks, Trainers, arrays
        with gradients, or lists, tuples, dicts, deques or objects of these. With `workers`, ``make(devices, workers)``.
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
    job = workers or Workers()
    if (k := len(devices) * job.size) < 2:
        raise ValueError(f'devices {devices}: name at least two, such as cpu:0,cpu:1')
    batches, lists = cut(batches, k)
    training = Training(make if workers else lambda devices, _: make(devices), train_batch, lists, devices, job, job)
    names = [f'{device} of worker {rank}' if job.size > 1 else str(device)
             for rank in range(job.size) for device in devices]
    try:
        with _random_numbers_restored():
            training, semantics = fit(training, batches[0])
            with semantics:
                return _report(training, batches, names)
    except UserWarning as error:  # of Gluon's Trainer, if a gradient was not written
        return Report(False, f'{k} devices', [], described('WRONG: ', (reason(error), USE_ALL)), [])
    finally:
        if job.size == 1:
            clear_engine_errors()


@contextlib.contextmanager
def _random_numbers_restored() -> Iterator[None]:
    of_numpy, of_python = numpy.random.get_state(), random.getstate()
    of_mxnet = int(mx.nd.random.randint(0, 2**31 - 1).asscalar()) ^ numpy.random.randint(2**31 - 1)
    try:
        yield
    finally:
        numpy.random.set_state(of_numpy)
        random.setstate(of_python)
        mx.random.seed(of_mxnet)


def _report(training: Training, batches: Sequence, names: list) -> Report:
    several, (dropout, batch_norm) = prepare(training, batches[0])
    found = compare_with_one(several, batches)
    if len(found.unchanged) == found.trained and not found.wrong:
        raise ValueError('train_batch changes no parameter on one device: it must update those that make returns')
    if found.wrong and batch_norm:
        several = replace(several, switched_off=('dropout', 'batchnorm'))
        found = compare_with_one(several, batches)
    ok = not found.wrong
    notes = [f'batches of {counted(n, "row")} are not checked, because {why}' for n, why in found.skipped]
    if ok and found.unchanged:
        notes.append(UNCHANGED.format(', '.join(found.unchanged)))
    if dropout:
        notes.append(DROPOUT.format(dropout))
    if ok and 'batchnorm' in several.switched_off:
        notes.append(BATCH_NORM.format(batch_norm))
    return Report(ok, f'{len(names)} devices compared with one, in {several.dtype or "its own dtype"}, over '
                  f'batches of {", ".join(str(len(batch[0])) for batch in found.batches)} rows',
                  [(*row, 'DIFFERS' if i in found.wrong else 'equal') for i, row in enumerate(found.rows)],
                  [] if ok else diagnose(several, batches, names), notes)
