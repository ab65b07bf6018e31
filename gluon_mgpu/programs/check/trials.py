"""Trials of a user's training step: which arrays and dtype it takes, and whether MXNet crashes."""
from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...mxnet_setup.compat import array_semantics, gluon, mx, npx
from .contents import LAYERS, count_copies, find, has_layer
from .user_step import Training

OF_ND = 'legacy|numpy_extension|ndarray.NDArray'  # in MXNet's errors if code for mx.nd gets arrays of mx.np
SECONDS = 10  # for a step in a process of its own


class Crash(Exception):  # noqa: N818, not an error of the step
    """End of the process in MXNet."""


@contextlib.contextmanager
def nd_semantics() -> Iterator[None]:
    """Run the block without NumPy semantics, in all threads: the arrays of Gluon are those of ``mx.nd``."""
    scope, shapes = mx.util._NumpyArrayScope, npx.is_np_shape()
    before, scope._current = scope._current, array_semantics(False)
    try:
        mx.util.set_np_shape(False)
        yield
    finally:
        scope._current = before
        mx.util.set_np_shape(2 if shapes else False)  # 2: in all threads


def semantics_of_step(several: Training, batch: Sequence) -> contextlib.AbstractContextManager:
    """Return the context in which to run a step: with the arrays of ``mx.nd`` if it is written for them."""
    if npx.is_np_array() and (error := _error(several, batch)):  # otherwise the user has called npx.reset_np
        with nd_semantics():
            works = _error(several, batch) is None
        if works or re.search(OF_ND, str(error)):
            return nd_semantics()
    return contextlib.nullcontext()


def _error(several: Training, batch: Sequence) -> Exception | None:
    try:
        replace(several).step(batch)
    except Exception as error:
        return error
    return None


def prepare(several: Training, batch: Sequence) -> tuple[Training, list[str]]:
    """Find the shapes, choose float64 if a step can compute in it; also name layers of dropout and batch norm."""
    one = several.on_one_device()
    # Not in float64: a Trainer after a step in `make`; several recurrent layers, whose gradients MXNet 1.9 gets wrong
    used = any(trainer._kv_initialized for _, trainer in find(one.state, gluon.Trainer))
    found = [*find(one.state, gluon.Parameter)]
    params = [param for _, param in found]
    if any(param._deferred_init for param in params):
        one.step(batch)
    several = replace(several, shapes=tuple((name, param.shape) for name, param in found))
    layers = [', '.join(name or 'the network' for name, block in find(one.state, gluon.Block) if has_layer(block, kind))
              for kind in LAYERS]
    recurrent = any(layer._num_layers > 1 for _, layer in find(one.state, gluon.rnn.rnn_layer._RNNLayer))
    trial = replace(several, dtype=None if recurrent or used else 'float64')
    again, same = trial.on_one_device(), False
    try:
        same = any(param is other for param, (_, other) in zip(params, find(again.state, gluon.Parameter)))
        if not same:
            numbers = count_copies(again.state) + count_copies(trial.state)
            again.step(batch)  # first, because errors of several devices are not all raised at once
            trial.step(batch)
    except Exception:  # the step cannot compute in float64, or not at all
        trial = several
        numbers = count_copies(trial.on_one_device().state) + count_copies(trial.state)
    if same:
        raise ValueError('make returns the same network at each call: create a new one in it')
    on_all = {key: n for key, n in dict(*numbers[:1]).items() if all(other[key] == n for other in numbers)}
    return replace(trial, copies=on_all), layers  # without the state, to free its memory


def check_crash(several: Training, batch: Sequence) -> None:
    """Raise Crash if a step ends the process, as some of MXNet's operators do for arrays without rows.

    The step is taken in a forked process, which lacks the threads of this one. Does nothing where it could hang without
    them, on GPUs, in a job, and on other systems than Linux, or where it has hung.
    """
    forks = sys.platform == 'linux' and several.workers.size == 1 and all(
        device.device_type == 'cpu' for device in several.devices)
    if not forks or several.hung or len(batch[0]) >= len(several.devices):
        return
    several.params()  # before, so that the process only takes the step
    process = multiprocessing.get_context('fork').Process(target=_step_silently, args=(several, batch))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of Python 3.12: MXNet has threads, which it starts again
        process.start()
    try:
        process.join(SECONDS)
        if (status := process.exitcode) is None:  # it still runs
            several.hung.append(process)
        elif status < 0:
            raise Crash(f'MXNet ends the process with {signal.Signals(-status).name}, as some operators do for arrays '
                        'without rows, such as those of split_and_load(even_split=False): leave them out')
    finally:
        process.kill()


def _step_silently(several: Training, batch: Sequence) -> None:
    faulthandler.disable()
    sys.stdout = sys.stderr = open(os.devnull, 'w')  # noqa: SIM115, in a notebook they are not 1 and 2
    for descriptor in (1, 2):
        os.dup2(sys.stdout.fileno(), descriptor)
    with contextlib.suppress(BaseException):
        several.step(batch)
    os._exit(0)
