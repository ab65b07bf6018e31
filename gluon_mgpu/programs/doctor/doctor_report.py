"""The report of the doctor. The self-test runs in a subprocess, so that a hang or crash there does not affect it."""
import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from typing import Any

from ...base.flags import Parser
from ...base.program import JobError
from ...base.text import print_text
from ...mxnet_setup import runtime
from . import facts
from .findings import diagnose
from .screen import screen
from .self_test import STAGES

TIMEOUT = 60  # seconds for the self-test; a disk that reads MXNet for the first time takes most of it

# Takes this process's path, so that both find the same modules, and imports nothing before: not from the current folder
PROGRAM = ('import sys; sys.path[:] = sys.argv[1:]; '
           'from gluon_mgpu.programs.doctor import self_test; self_test.main()')
LAST_LINES = 20  # of stderr


def examine(timeout: int = TIMEOUT) -> dict[str, Any]:
    """Check this process and its machine, and train in a subprocess, for at most `timeout` seconds; leaves no files.

    The report can be written as JSON: ``'can_train'``, a bool; ``'findings'``, a list of dicts with ``'level'``
    ('fault' or 'warning'), ``'what'`` and ``'remedy'``, the worst first; and all facts by topic.
    """
    found = {**facts.look(), 'self_test': run_self_test(timeout)}
    problems = diagnose(found)
    can_train = not any(finding.level == 'fault' for finding in problems)
    return {'can_train': can_train, 'findings': [finding._asdict() for finding in problems], **found}


def run_self_test(timeout: float) -> dict[str, Any]:
    """Run the self-test, at most `timeout` seconds; return the result of each of `STAGES`, and how it ``'ended'``.

    If it did not come to an end, ``'during'`` is the stage without a result, and ``'stderr'`` has the last lines.
    """
    # Pass on the user's environment, without what `prepare` has set here
    ours = runtime.prepare().variables
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    command = [sys.executable, '-c', PROGRAM, *map(str, sys.path)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=environment, text=True, errors='replace')
    out = err = ''
    try:
        out, err = process.communicate(timeout=timeout)
        code = process.returncode
        ended = f'died of {signal.Signals(-code).name}' if code < 0 else f'ended with status {code}'
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
    if all(stage in results for stage in STAGES) or any('error' in result for result in results.values()):
        return {**results, 'ended': 'well', 'during': '', 'stderr': []}
    during = next(stage for stage in STAGES if stage not in results)
    return {**results, 'ended': ended, 'during': during, 'stderr': err.splitlines()[-LAST_LINES:]}


def main(argv: list | None = None) -> int:
    """Run ``python -m gluon_mgpu doctor``; return the exit status."""
    parser = Parser('gluon_mgpu doctor',
                    'Check what this machine has for training, what is wrong with it, and what to do.',
                    epilog='Exit status: 0 if training can run, 1 if it cannot.')
    parser.add_argument('--json', action='store_true', help='print all facts as JSON, for a bug report')
    parser.add_argument('--timeout', type=int, default=TIMEOUT, metavar='SECONDS',
                        help='limit of the self-test (default: %(default)s)')
    return parser.run(argv, _run)


def _run(args: argparse.Namespace) -> None:
    if sys.stderr.isatty():
        print_text('checking, and training for a few seconds ...', stream=sys.stderr)
    report = examine(args.timeout)
    width = shutil.get_terminal_size().columns
    print_text(*(json.dumps(report, indent=2).split('\n') if args.json else screen(report, width)))
    if not report['can_train']:
        raise JobError('')
