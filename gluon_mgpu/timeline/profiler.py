"""MXNet's profiler, started and stopped any number of times in one process, each time with a trace of its own."""
from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from ..mxnet_setup.compat import mx, npx

# Not os.devnull: MXNet deletes the given file before it writes, and root can delete the device
NOWHERE = ''


def start() -> tempfile.TemporaryDirectory:
    """Wait until the devices are idle and start the profiler; pass the returned folder to `stop`."""
    npx.waitall()
    _head()
    return _run()


def stop(folder: tempfile.TemporaryDirectory) -> str:
    """Stop the profiler, delete `folder` and return the recorded Chrome trace; does not block."""
    return f'{_head()}{_stop(folder)}\n    ],\n    "displayTimeUnit": "ms"\n}}\n'


@functools.cache
def _head() -> str:
    """Return the beginning of a trace, with the device names. MXNet writes it only at a process's first dump."""
    return _stop(_run())


def _run() -> tempfile.TemporaryDirectory:
    folder = tempfile.TemporaryDirectory()
    _profile_to(f'{folder.name}/events')  # before the start, because MXNet appends records to it once per second
    mx.profiler.set_state('run')
    return folder


def _stop(folder: tempfile.TemporaryDirectory) -> str:
    """Return the records since `_run`."""
    with folder:
        mx.profiler.set_state('stop')
        # A finished dump would be the last one of the process. An unfinished one continues after the one before; MXNet
        # writes the end of the trace when the process ends, to nowhere
        mx.profiler.dump(finished=False)
        _profile_to(NOWHERE)
        return Path(f'{folder.name}/events').read_text()


def _profile_to(path) -> None:
    mx.profiler.set_config(profile_imperative=True, profile_symbolic=True, filename=path)
