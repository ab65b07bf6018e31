"""Ctrl-C and a scheduler's SIGTERM, taken as a wish to finish the step and end; the second one ends at once.

    with StopSignals() as signals:
        for ...:
            ...
            if signals.received:
                ...
"""
from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME = 0.5  # seconds in which further signals are copies of the first, as launchers and wrappers send them


class StopSignals:
    """While its block runs, the first SIGINT or SIGTERM is only noted, and the second ends the process at once.

    At once means: also while MXNet waits for devices, which Python cannot interrupt. The exit status is 128 plus the
    signal's number. Only the main thread receives signals in Python; in another thread this does nothing. A signal
    that the process was started to ignore is still ignored.

    The handler never raises an exception, which Python would lose while it deletes an object. Ask for `received` where
    training can stop.

    Attributes
    ----------
    received : int
        The first signal's number, 0 until it comes.
    """

    def __init__(self):
        self.received = 0
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._wakeup_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._note)
        threading.Thread(target=_end_at_the_second, args=(self._read,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        if not hasattr(self, '_write'):
            return
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_fd)
        os.close(self._write)  # ends the thread

    def _note(self, number: int, frame: object) -> None:
        """Called in the main thread, once that is back in Python."""
        self.received = self.received or number


def _end_at_the_second(pipe: int) -> None:
    """Read the numbers of the signals that come, which are written while the main thread is anywhere."""
    first = None
    while number := os.read(pipe, 1):
        if number[0] in SIGNALS:
            now = time.monotonic()
            first = first or now
            if now - first > SAME:
                os._exit(128 + number[0])
    os.close(pipe)
