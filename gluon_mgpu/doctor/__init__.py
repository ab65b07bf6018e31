"""Check of this machine for training: facts, problems and remedies.

    python -m gluon_mgpu.doctor           one screen; exit status 0 if training can run, 1 if not
    python -m gluon_mgpu.doctor --json    the same as JSON, for bug reports

Works without MXNet and NumPy: only `self_test` imports them, in a subprocess.
"""
from __future__ import annotations

from typing import Any

from ..base.checks import integer
from . import child, facts, findings

TIMEOUT = 60          # seconds for the self-test; a disk that reads MXNet for the first time takes most of it
MAX_TIMEOUT = 10**6   # the operating system cannot wait much longer


def examine(timeout: int = TIMEOUT) -> dict[str, Any]:
    """Check this process and its machine, and train for a few seconds in a subprocess; blocks. Leaves no files.

    The self-test is killed after `timeout` seconds. The report can be written as JSON: ``'can_train'``, a bool;
    ``'findings'``, a list of dicts with ``'level'`` ('fault' or 'warning'), ``'what'`` and ``'remedy'``, the worst
    first; and all facts by topic. The home folder appears as ``~``.
    """
    timeout = integer('timeout', timeout, 1, MAX_TIMEOUT)
    found = {**facts.look(), 'self_test': child.run(timeout)}
    problems = findings.diagnose(found)
    can_train = not any(finding.level == 'fault' for finding in problems)
    return facts.without_home({'can_train': can_train, 'findings': [finding._asdict() for finding in problems],
                               **found})
