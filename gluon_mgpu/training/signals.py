"""Ctrl-C and SIGTERM as a request to finish the current step and stop; a second signal ends the process immediately.

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
SAME = 0.5  # seconds in which further signals count as copies of the first: launchers and wrappers send several


_active: list[StopSignals] = []


class StopSignals:
    """Context manager that records the first SIGINT or SIGTERM, and ends the process at a second one.

    A signal within `SAME` seconds of the first is ignored. The second signal works even while MXNet waits for devices,
    which Python cannot interrupt; the exit status is then 128 plus the signal's number. The handler raises no
    exception, because Python would lose one raised in a ``__del__``: check `received` where training can stop. Does
    nothing in other threads than the main one, because Python handles signals only there. Signals that the process was
    started to ignore stay ignored. Processes that are forked meanwhile handle signals as before.

    The attribute ``received`` is the number of the first signal, 0 until it comes.
    """

    def __init__(self):
        self.received = 0
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is not threading.main_thread():
            return self
        read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._wakeup_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._record)
        _active.append(self)
        threading.Thread(target=_exit_at_second_signal, args=(read,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        if self not in _active:  # in another thread than the main one, or in a forked process
            return
        _active.remove(self)
        self._restore()
        os.close(self._write)  # ends the thread

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_fd)

    def _record(self, number: int, frame: object) -> None:
        self.received = self.received or number


def _restore_in_child() -> None:
    """Undo `StopSignals` in a forked process; its signals would also count as those of its parent."""
    while _active:
        _active.pop()._restore()


os.register_at_fork(after_in_child=_restore_in_child)


def _exit_at_second_signal(pipe: int) -> None:
    """Read signal numbers from the wakeup pipe, which Python fills whatever the main thread is doing."""
    first = None
    while number := os.read(pipe, 1):
        if number[0] in SIGNALS:
            now = time.monotonic()
            first = first or now
            if now - first > SAME:
                os._exit(128 + number[0])
    os.close(pipe)
