"""MXNet's profiler, started and stopped any number of times in one process, each time with a trace of its own."""
from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from ...mxnet_setup.compat import mx, npx

_temporary_folder = functools.cache(tempfile.TemporaryDirectory)  # deleted when the process ends


def start() -> None:
    """Wait until the devices are idle and start the profiler."""
    npx.waitall()
    head()
    _run()


def stop() -> str:
    """Stop the profiler and return the recorded Chrome trace; does not block."""
    return f'{head()}{_stop()}\n    ],\n    "displayTimeUnit": "ms"\n}}\n'


@functools.cache
def head() -> str:
    """Return the beginning of a trace, with the device names. MXNet writes it only at a process's first dump."""
    _run()
    return _stop()


def _run() -> None:
    _profile_to(_events())  # before the start, because MXNet appends records to it once per second
    mx.profiler.set_state('run')


def _stop() -> str:
    """Return the records since `_run`, '' if MXNet could not write them."""
    mx.profiler.set_state('stop')
    # A finished dump would be the last one of the process. An unfinished one continues after the one before; MXNet
    # writes the end of the trace when the process ends
    mx.profiler.dump(finished=False)
    _profile_to('')  # not os.devnull: MXNet deletes the file before it writes, and root can delete the device
    return _events().read_text() if _events().exists() else ''


def _events() -> Path:
    return Path(_temporary_folder().name) / 'events'


def _profile_to(path) -> None:
    mx.profiler.set_config(profile_imperative=True, profile_symbolic=True, filename=str(path))
