"""Ctrl-C at a moment when Python discards the exception that it raises."""
from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from _queue import SimpleQueue  # not of queue, which a file of the user's may hide
from collections.abc import Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def lost_interrupts_sent_again() -> Iterator[None]:
    """Send a Ctrl-C in the block again if Python discards it, as it does inside a ``__del__``.

    Does nothing outside the main thread, and if Ctrl-C has another handler than Python's.
    """
    show, given = sys.unraisablehook, signal.getsignal(signal.SIGINT)
    is_pythons = given is signal.default_int_handler or isinstance(getattr(given, '__self__', None), _Sender)
    if not is_pythons or threading.current_thread() is not threading.main_thread():
        yield
        return
    sender, interrupted = _Sender(show), False
    try:
        sys.unraisablehook = sender.hook
        signal.signal(signal.SIGINT, sender.handler)
        yield
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        # Used in a generator, such as `Run.epochs`, this may end in another thread
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) == sender.handler:
            signal.signal(signal.SIGINT, given)
        if sys.unraisablehook == sender.hook:
            sys.unraisablehook = show
        sender.lost.put(None if interrupted else False)


class _Sender:
    """Handler of SIGINT and hook of `sys`, with a thread that sends an interrupt again if Python has discarded it.

    The thread starts early: where the interrupt is lost, starting one could block or fail. If it has ended, as after a
    fork, handler and hook act as Python's.
    """

    def __init__(self, show: Any):
        self.lost: SimpleQueue = SimpleQueue()  # unlike other queues and events, it may be used within its own methods
        self._show = show
        self._thread = threading.Thread(target=_send_again, args=(self.lost, threading.get_ident()), daemon=True)
        self._thread.start()

    def hook(self, unraisable: Any) -> None:
        """Record a lost interrupt; show other exceptions."""
        if self._thread.is_alive() and issubclass(unraisable.exc_type, KeyboardInterrupt):
            self.lost.put(True)
        else:
            self._show(unraisable)

    def handler(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, but not within the hook, where Python discards it without calling the hook again."""
        caller = frame
        while caller and caller.f_code is not _Sender.hook.__code__:
            caller = caller.f_back
        if caller and self._thread.is_alive():
            self.lost.put(True)
        else:
            signal.default_int_handler(number, frame)


def _send_again(lost: SimpleQueue, main_thread: int) -> None:
    """Send one interrupt for each group of True in the queue. False ends this; None also cancels a waiting one."""
    last = lost.get()
    while last:
        time.sleep(0.01)  # for the main thread to leave the destructor; an interrupt that is too early is lost again
        while not lost.empty():
            last = lost.get()  # one interrupt for all, because a second one could come in the midst of cleaning up
        if last is not None:
            signal.pthread_kill(main_thread, signal.SIGINT)
        last = last and lost.get()
