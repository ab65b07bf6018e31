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
    """Interrupt the main thread again after an interrupt within a ``__del__`` in the block, which Python discards.

    Does nothing outside the main thread, and if Ctrl-C has another handler than Python's, which in an outer block this
    has replaced.
    """
    show, is_main = sys.unraisablehook, threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    lost: SimpleQueue = SimpleQueue()  # unlike other queues and events, it may be used within its own methods

    def hook(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            lost.put(True)
        else:
            show(unraisable)

    def handler(number: int, frame: FrameType | None) -> None:
        caller = frame
        while caller and caller.f_code is not hook.__code__:
            caller = caller.f_back
        if caller:  # Python would discard an exception in the hook without calling it
            lost.put(True)
        else:
            signal.default_int_handler(number, frame)

    # Started here: where the interrupt is lost, it could fail, and would wait for the thread while others run
    threading.Thread(target=_send_again, args=(lost, threading.get_ident()), daemon=True).start()
    interrupted = False
    try:
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, handler)
        yield
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        # A generator that nobody has read to its end may be closed in another thread
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if sys.unraisablehook is hook:
            sys.unraisablehook = show
        lost.put(None if interrupted else False)


def _send_again(lost: SimpleQueue, main_thread: int) -> None:
    """Send an interrupt for each True in the queue, until False or, if that would be one too many, None."""
    last = lost.get()
    while last:
        time.sleep(0.01)  # for the main thread to leave the destructor; an interrupt that is too early is lost again
        while not lost.empty():
            last = lost.get()  # one interrupt for all, because a second one could come in the midst of cleaning up
        if last is not None:
            signal.pthread_kill(main_thread, signal.SIGINT)
        last = last and lost.get()
