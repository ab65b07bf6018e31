"""An interrupt is never lost, although Python discards it in a destructor."""
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from gluon_mgpu.base.interrupts import lost_interrupts_sent_again


class Array:
    """Its destructor is interrupted once or several times."""

    def __init__(self, times=1):
        self.times = times

    def __del__(self):
        for _ in range(self.times):
            signal.raise_signal(signal.SIGINT)
        os.getpid()  # a call, in which Python runs the handler


class Faulty:
    def __del__(self):
        raise ValueError


@contextmanager
def busy(number):
    """Threads that always want to run."""
    done = []

    def work():
        while not done:
            pass

    threads = [threading.Thread(target=work) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.append(1)
        for thread in threads:
            thread.join()


def wait():
    """Work until an interrupt."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        os.getpid()


@pytest.mark.parametrize('number', [0, 2])
def test_no_interrupt_is_lost(number, ctrl_c):
    with busy(number):
        for _ in range(20):
            with pytest.raises(KeyboardInterrupt), lost_interrupts_sent_again():
                Array()
                wait()


def test_an_interrupt_that_is_lost_again(ctrl_c):
    """The second destructor runs when the interrupt is sent again."""
    class Slow:
        def __del__(self):
            Array()
            wait()  # in this destructor, Python discards it again

    with pytest.raises(KeyboardInterrupt), lost_interrupts_sent_again():
        Slow()
        wait()


def test_an_interrupt_within_the_hook(ctrl_c, monkeypatch):
    """Python discards what a hook raises, and calls none."""
    monkeypatch.setattr(sys, 'unraisablehook', lambda unraisable: (signal.raise_signal(signal.SIGINT), os.getpid()))
    with pytest.raises(KeyboardInterrupt), lost_interrupts_sent_again():
        Faulty()
        wait()


def test_an_interrupt_at_each_step_of_the_hook(ctrl_c):
    """A launcher may send several at once; the second comes while Python handles the first."""
    def trace(frame, event, arg):
        if frame.f_code.co_name == 'hook' and event == 'call':
            signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    with pytest.raises(KeyboardInterrupt), lost_interrupts_sent_again():
        sys.settrace(trace)
        try:
            Array()
        finally:
            sys.settrace(before)
        wait()
    time.sleep(0.1)  # no second one in the midst of cleaning up


def test_none_is_sent_after_one_that_was_not_lost(ctrl_c):
    with pytest.raises(KeyboardInterrupt), lost_interrupts_sent_again():
        Array()
        signal.raise_signal(signal.SIGINT)
    time.sleep(0.1)


def test_one_that_is_lost_at_the_end_is_sent_after_it(ctrl_c):
    with lost_interrupts_sent_again():
        Array()
    with pytest.raises(KeyboardInterrupt):
        wait()


def test_all_is_as_before_after_the_block(ctrl_c):
    shown, threads = sys.unraisablehook, threading.active_count()
    with lost_interrupts_sent_again():
        handler = signal.getsignal(signal.SIGINT)
        with lost_interrupts_sent_again():  # as a run within a program
            assert signal.getsignal(signal.SIGINT) != handler
        assert signal.getsignal(signal.SIGINT) == handler is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler and sys.unraisablehook is shown
    end = time.monotonic() + 30
    while threading.active_count() > threads and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() == threads


def test_a_block_that_ends_after_the_next_has_begun(ctrl_c):
    """As that of a run in a notebook, which the traceback of an interrupt keeps."""
    def run():
        with lost_interrupts_sent_again():
            yield

    shown = sys.unraisablehook
    first, second = run(), run()
    next(first), next(second)
    first.close()
    with pytest.raises(KeyboardInterrupt):
        Array()
        wait()
    second.close()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    sys.unraisablehook = shown


def test_after_the_block_python_discards_it_and_says_so(ctrl_c, monkeypatch):
    lines = []
    monkeypatch.setattr(sys, 'unraisablehook', lambda unraisable: lines.append(unraisable.exc_type))
    with lost_interrupts_sent_again():
        hook, handler = sys.unraisablehook, signal.getsignal(signal.SIGINT)
    hook.__self__._thread.join(30)
    sys.unraisablehook = hook
    signal.signal(signal.SIGINT, handler)
    Array()
    assert lines == [KeyboardInterrupt]


def test_other_handlers_stay(ctrl_c):
    signal.signal(signal.SIGINT, own := lambda number, frame: None)
    with lost_interrupts_sent_again():
        assert signal.getsignal(signal.SIGINT) is own


@pytest.mark.parametrize('ends', ['in', 'after'])
def test_a_generator_of_another_thread(ends, ctrl_c):
    """Handlers cannot be set there."""
    def numbers():
        with lost_interrupts_sent_again():
            yield 1

    def work():
        if ends == 'in':
            generators.append(numbers())
        found.append(next(generators[0], None) or generators[0].close())

    generators, found = [], []
    if ends == 'after':
        generators.append(numbers())
        next(generators[0])
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [1 if ends == 'in' else None]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
