"""The self-test, started as a process of its own: it may hang, or crash, and takes nobody along."""
from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

from ..mxnet_setup import runtime

# What the self-test does, in this order; each says how it ended
STAGES = {
    'driver': 'asking the NVIDIA driver',
    'mxnet': 'importing MXNet',
    'devices': 'choosing devices',
    'allreduce': 'summing over the devices',
    'step': 'taking a step of training',
    'speed': 'training LeNet on one device and on two',
    'horovod': 'importing Horovod',
}
# With this process's path: what is found here is what is found there
PROGRAM = ('import json, sys; sys.path[:] = json.loads(sys.argv[1]); '
           'from gluon_mgpu.doctor import self_test; self_test.main()')
LAST_LINES = 20  # of what the process says on stderr
LONGEST = 10**6  # seconds; poll(), by which subprocess waits, takes at most 2**31 ms


def run(timeout: float) -> dict[str, Any]:
    """Run the self-test to its end, or for `timeout` seconds.

    Returns
    -------
    dict
        What each stage answered, by its name in `STAGES`; ``'ended'``: 'well', 'was killed after ... s', 'died of ...'
        or 'could not be started ...'; ``'during'``: the stage that did not answer, or ''; ``'stderr'``: its last
        lines, unless it ended well.
    """
    timeout = min(timeout, LONGEST)
    # As the user has started this process: without what was set here, so that the other does it anew
    ours = runtime.prepare().variables
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    command = [sys.executable or 'python3', *(['-S'] if sys.flags.no_site else []), '-c', PROGRAM, json.dumps(sys.path)]
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=environment, text=True, errors='replace')
    except OSError as error:
        return {'ended': f'could not be started ({error.strerror})', 'during': '', 'stderr': []}
    try:
        out, err = process.communicate(timeout=timeout)
        ended = _how(process.returncode)
    except subprocess.TimeoutExpired:
        out, err = _kill(process)
        ended = f'was killed after {timeout:g} s'
    finally:
        process.kill()  # Ctrl-C as well
    answers = _read(out)
    during = next((stage for stage in STAGES if stage not in answers), '')
    return {**answers, 'ended': ended, 'during': during if ended != 'well' else '',
            'stderr': err.splitlines()[-LAST_LINES:] if ended != 'well' else []}


def _kill(process: subprocess.Popen) -> tuple[str, str]:
    """What a process has said that is ended now. One that waits inside the system's kernel can't be: it is left."""
    process.kill()
    try:
        return process.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        return '', ''


def _read(out: str) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for line in out.splitlines():
        with contextlib.suppress(ValueError):  # the last may be cut off
            answers.update(json.loads(line))
    return answers


def _how(returncode: int) -> str:
    if returncode >= 0:
        return f'ended with status {returncode}' if returncode else 'well'
    try:
        return f'died of {signal.Signals(-returncode).name}'
    except ValueError:
        return f'died of signal {-returncode}'
