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
from .self_test import STAGES

# Takes this process's path, so that both find the same modules
PROGRAM = ('import json, sys; sys.path[:] = json.loads(sys.argv[1]); '
           'from gluon_mgpu.doctor import self_test; self_test.main()')
LAST_LINES = 20  # of stderr


def run(timeout: float) -> dict[str, Any]:
    """Run the self-test until it ends, or for `timeout` seconds.

    Returns the result of each stage by its name in `STAGES`, and ``'ended'``: 'well', 'was killed after ... s', 'died
    of ...' or 'ended with status ...'. If it did not end well, ``'during'`` is the stage without a result and
    ``'stderr'`` has the last lines; otherwise both are empty.
    """
    # Pass on the user's environment, without what `prepare` has set here
    ours = runtime.prepare().variables
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    command = [sys.executable, *(['-S'] if sys.flags.no_site else []), '-c', PROGRAM, json.dumps(sys.path)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=environment, text=True, errors='replace')
    out = err = ''
    try:
        out, err = process.communicate(timeout=timeout)
        code = process.returncode
        ended = f'died of {signal.Signals(-code).name}' if code < 0 else f'ended with status {code}' if code else 'well'
    except subprocess.TimeoutExpired:
        process.kill()
        ended = f'was killed after {timeout:g} s'
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the operating system's kernel
            out, err = process.communicate(timeout=5)
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
