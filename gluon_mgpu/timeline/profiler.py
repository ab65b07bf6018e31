"""MXNet's profiler, switched on and off any number of times in one process, each time with a trace of its own."""
from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from ..mxnet_setup.compat import mx, npx

# Not os.devnull: MXNet deletes the file that it is given before it writes, and root may delete the device
NOWHERE = ''


def start() -> None:
    """Wait until the devices are idle and start the profiler."""
    npx.waitall()
    _head()
    mx.profiler.set_state('run')


def stop() -> str:
    """Stop the profiler and return what it recorded, as a Chrome trace; does not wait."""
    mx.profiler.set_state('stop')
    return f'{_head()}{_dumped()}\n    ],\n    "displayTimeUnit": "ms"\n}}\n'


@functools.cache
def _head() -> str:
    """The beginning of a trace: the devices by name, which MXNet writes at the first dump of a process only."""
    _profile_to(NOWHERE)
    mx.profiler.set_state('run')
    mx.profiler.set_state('stop')
    return _dumped()


def _dumped() -> str:
    """What MXNet recorded since the dump before.

    A finished dump would be the last one of the process. Of unfinished ones each goes on where the one
    before ended, and the end of it all is written when the process ends: to nowhere.
    """
    with tempfile.TemporaryDirectory() as folder:
        _profile_to(f'{folder}/events')
        mx.profiler.dump(finished=False)
        _profile_to(NOWHERE)
        return Path(f'{folder}/events').read_text()


def _profile_to(path) -> None:
    mx.profiler.set_config(profile_imperative=True, profile_symbolic=True, filename=str(path))
