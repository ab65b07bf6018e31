"""The progress bar."""
from __future__ import annotations

import threading

from tqdm import tqdm


class ProgressBar(tqdm):
    """A progress bar of tqdm for one process.

    tqdm's own lock is for several; from Python 3.14 on, it starts a process, which would outlive a killed worker.
    """


ProgressBar.set_lock(threading.RLock())
