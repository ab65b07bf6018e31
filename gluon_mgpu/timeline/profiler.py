"""MXNet's profiler, switched on and off any number of times in one process, each time with a trace of its own."""
from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from ..mxnet_setup.compat import mx, npx

# Not os.devnull: MXNet deletes the file that it is given before it writes, and root may delete the device
NOWHERE = ''


def start() -> tempfile.TemporaryDirectory:
    """Wait until the devices are idle and start the profiler; `stop` takes the folder that is returned."""
    npx.waitall()
    _head()
    return _run()


def stop(folder: tempfile.TemporaryDirectory) -> str:
    """Stop the profiler and return what it recorded, as a Chrome trace; does not wait.

    Parameters
    ----------
    folder : tempfile.TemporaryDirectory
        As from `start`; it is deleted.
    """
    return f'{_head()}{_stop(folder)}\n    ],\n    "displayTimeUnit": "ms"\n}}\n'


@functools.cache
def _head() -> str:
    """The beginning of a trace: the devices by name, which MXNet writes at the first dump of a process only."""
    return _stop(_run())


def _run() -> tempfile.TemporaryDirectory:
    folder = tempfile.TemporaryDirectory()
    _profile_to(f'{folder.name}/events')  # from the start: once per second MXNet appends to it what it has by then
    mx.profiler.set_state('run')
    return folder


def _stop(folder: tempfile.TemporaryDirectory) -> str:
    """What MXNet recorded since `_run`.

    A finished dump would be the last one of the process. Of unfinished ones each goes on where the one
    before ended, and the end of it all is written when the process ends: to nowhere.
    """
    with folder:
        mx.profiler.set_state('stop')
        mx.profiler.dump(finished=False)
        _profile_to(NOWHERE)
        return Path(f'{folder.name}/events').read_text()


def _profile_to(path) -> None:
    mx.profiler.set_config(profile_imperative=True, profile_symbolic=True, filename=path)
