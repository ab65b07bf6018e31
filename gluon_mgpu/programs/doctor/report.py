"""The report of the doctor. The self-test runs in a subprocess, so that a hang or crash there does not affect it."""
from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

from ...base.arguments import integer
from ...mxnet_setup import runtime
from . import facts
from .findings import diagnose
from .self_test import STAGES

TIMEOUT = 60          # seconds for the self-test; a disk that reads MXNet for the first time takes most of it
MAX_TIMEOUT = 10**6   # the operating system cannot wait much longer

# Takes this process's path, so that both find the same modules
PROGRAM = ('import json, sys; sys.path[:] = json.loads(sys.argv[1]); '
           'from gluon_mgpu.programs.doctor import self_test; self_test.main()')
LAST_LINES = 20  # of stderr


def examine(timeout: int = TIMEOUT) -> dict[str, Any]:
    """Check this process and its machine, and train for a few seconds in a subprocess; blocks. Leaves no files.

    The self-test is killed after `timeout` seconds. The report can be written as JSON: ``'can_train'``, a bool;
    ``'findings'``, a list of dicts with ``'level'`` ('fault' or 'warning'), ``'what'`` and ``'remedy'``, the worst
    first; and all facts by topic. The home folder appears as ``~``.
    """
    timeout = integer('timeout', timeout, 1, MAX_TIMEOUT)
    found = {**facts.look(), 'self_test': run_self_test(timeout)}
    problems = diagnose(found)
    can_train = not any(finding.level == 'fault' for finding in problems)
    return facts.without_home({'can_train': can_train, 'findings': [finding._asdict() for finding in problems],
                               **found})


def run_self_test(timeout: float) -> dict[str, Any]:
    """Run the self-test until it ends, or for `timeout` seconds.

    Returns the result of each stage by its name in `STAGES`, and ``'ended'``: 'well', 'was killed after ... s', 'died
    of ...' or 'ended with status ...'. If it did not end well, ``'during'`` is the stage without a result and
    ``'stderr'`` has the last lines; otherwise both are empty.
    """
    # Pass on the user's environment, without what `prepare` has set here
    ours = runtime.prepare().variables
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    command = [sys.executable, *(['-S'] if sys.flags.no_site else []), '-c', PROGRAM, json.dumps([*map(str, sys.path)])]
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
