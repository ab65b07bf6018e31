"""What this machine has for training, what is wrong with it, and what to do.

    python -m gluon_mgpu.doctor           one screen; exit status 0 if training can run, 1 if not
    python -m gluon_mgpu.doctor --json    the same, to be sent with a report of a bug

Works, and helps most, where MXNet or NumPy are missing: nothing here imports them, but for `self_test`, which runs in
a process of its own.
"""
from __future__ import annotations

from typing import Any

from ..base.checks import positive
from . import child, facts, findings

TIMEOUT = 60  # seconds for the self-test, most of them for a disk that has never read MXNet


def examine(timeout: float = TIMEOUT) -> dict[str, Any]:
    """Look at this process and its machine, and train for some seconds in a process of its own; waits for that one.

    Nothing is written that stays.

    Parameters
    ----------
    timeout : float
        Seconds after which the self-test is ended; more than `child.LONGEST` count as that.

    Returns
    -------
    dict
        JSON can hold it. ``'can_train'``, a bool; ``'findings'``, a list of dicts of ``'level'`` ('fault' or
        'warning'), ``'what'`` and ``'remedy'``, the worst first; and all that was found, by topic. The home
        folder is ``~`` in all of it.

    Raises
    ------
    ValueError
        If `timeout` is not a finite number above 0.
    """
    timeout = positive('timeout', timeout)
    found = facts.look()
    found['self_test'] = child.run(timeout)
    told = findings.diagnose(found)
    can_train = not any(finding.level == 'fault' for finding in told)
    return facts.without_home({'can_train': can_train, 'findings': [finding._asdict() for finding in told], **found})
