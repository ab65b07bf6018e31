"""The self-test in a subprocess, so that a hang or crash there does not affect the doctor."""
from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

from ..mxnet_setup import runtime

# Stages of the self-test, in order
STAGES = {
    'driver': 'asking the NVIDIA driver',
    'mxnet': 'importing MXNet',
    'devices': 'choosing devices',
    'allreduce': 'summing over the devices',
    'step': 'training for one step',
    'speed': 'training LeNet on one device and on two',
    'horovod': 'importing Horovod',
}
# Takes this process's path, so that both find the same modules
PROGRAM = ('import json, sys; sys.path[:] = json.loads(sys.argv[1]); '
           'from gluon_mgpu.doctor import self_test; self_test.main()')
LAST_LINES = 20  # of stderr
LONGEST = 10**6  # seconds; poll(), which subprocess uses to wait, takes at most 2**31 ms


def run(timeout: float) -> dict[str, Any]:
    """Run the self-test until it ends, or for `timeout` seconds.

    Returns the result of each stage by its name in `STAGES`, and ``'ended'``: 'well', 'was killed after ... s', 'died
    of ...', 'ended with status ...' or 'could not be started ...'. If it started and did not end well, ``'during'`` is
    the stage without a result and ``'stderr'`` has the last lines; otherwise both are empty.
    """
    timeout = min(timeout, LONGEST)
    # Pass on the user's environment, without what `prepare` has set here
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
        code = process.returncode
        ended = f'died of {signal.Signals(-code).name}' if code < 0 else f'ended with status {code}' if code else 'well'
    except subprocess.TimeoutExpired:
        out, err = _kill(process)
        ended = f'was killed after {timeout:g} s'
    finally:
        process.kill()  # also after Ctrl-C
    results: dict[str, Any] = {}
    for line in out.splitlines():
        with contextlib.suppress(ValueError):  # the last line may be incomplete
            results.update(json.loads(line))
    if ended == 'well':
        return {**results, 'ended': ended, 'during': '', 'stderr': []}
    during = next((stage for stage in STAGES if stage not in results), '')
    return {**results, 'ended': ended, 'during': during, 'stderr': err.splitlines()[-LAST_LINES:]}


def _kill(process: subprocess.Popen) -> tuple[str, str]:
    """Kill a process and return its output. One that is stuck in the operating system's kernel is left alone."""
    process.kill()
    try:
        return process.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        return '', ''
