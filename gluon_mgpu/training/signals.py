"""Ctrl-C and SIGTERM as a request to finish the current step and stop; a second signal ends the process immediately."""
import contextlib
import os
import signal
import sys
import threading
import time

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME = 0.5  # seconds in which further signals count as copies of the first: launchers and wrappers send several
# Replaces the line with ^C and the progress bar
ACKNOWLEDGEMENT = b'\r\x1b[Kstopping after the queued batches; Ctrl-C again stops without a checkpoint\n'


class StopSignals:
    """Context manager that records the first SIGINT or SIGTERM, and ends the process at a second one.

    A signal within `SAME` seconds of the first is ignored. The second works even while MXNet waits for devices. The
    handler raises no exception, because Python would lose one raised in a ``__del__``: check `received` where training
    can stop. Ignored signals stay ignored. Only for the main thread, as all handlers of Python.
    """

    def __init__(self):
        self.received = 0  # number of the first signal, 0 until it comes
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> 'StopSignals':
        read, write = os.pipe()
        self._undo.callback(os.close, write)  # ends the thread
        os.set_blocking(write, False)
        self._undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(write, warn_on_full_buffer=False))
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._undo.callback(signal.signal, number, signal.signal(number, self._record))
        # Otherwise a forked process would survive SIGTERM, and its signals would count as those of its parent
        os.register_at_fork(after_in_child=self._undo.close)
        threading.Thread(target=_exit_at_second_signal, args=(read,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()

    def _record(self, number: int, frame: object) -> None:
        self.received = self.received or number


def _exit_at_second_signal(pipe: int) -> None:
    """Read signal numbers from the wakeup pipe, which Python fills whatever the main thread is doing."""
    first = None
    while number := os.read(pipe, 1):
        if number[0] in SIGNALS:
            now = time.monotonic()
            if first is None:
                first = now
                with contextlib.suppress(OSError, ValueError):  # a closed terminal
                    if sys.stderr and sys.stderr.isatty():  # not by print, because another thread may hold stderr
                        os.write(sys.stderr.fileno(), ACKNOWLEDGEMENT)
            if now - first > SAME:
                os._exit(128 + number[0])
    os.close(pipe)
