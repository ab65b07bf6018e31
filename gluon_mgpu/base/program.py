"""Command-line programs: printing, and ending with one line and an exit status."""
from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from typing import TextIO

from .interrupts import lost_interrupts_sent_again
from .pictures import quiet_matplotlib
from .text import print_text

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130  # exit statuses; 130 is what shells use for Ctrl-C
OUT_OF_MEMORY = ('out of memory', 'failed to allocate', 'cannot allocate', 'alloc_failed', 'bad_alloc',
                 'failed to map segment')


class JobError(Exception):
    """Error that ends a program, or all workers of a job, with one line and the exit status `status`.

    If `on_all_ranks`, every worker raises it at the same point. If `reported`, another worker prints the line.
    """

    def __init__(self, line: str, status: int = FAILED, on_all_ranks: bool = False, reported: bool = False):
        super().__init__(line)
        self.status, self.on_all_ranks, self.reported = status, on_all_ranks, reported


class InputError(JobError, ValueError):
    """Wrong input. All workers raise this at the same point."""

    def __init__(self, line: str):
        super().__init__(line, BAD_INPUT, on_all_ranks=True)


class Stopped(JobError):  # noqa: N818, not an error
    """End of a run after a signal, at a point where it can be resumed. All workers raise it at the same point."""

    def __init__(self, signum: int, line: str = ''):
        super().__init__(line, 128 + signum, on_all_ranks=True)
        self.signum = signum


def show(line: str, stream: TextIO | None = None) -> None:
    """Print text, by default on stdout. If that fails, say so on stderr: it must not end training."""
    try:
        print_text(*line.split('\n'), stream=stream)  # does nothing if Python was started without stdout
    except (OSError, ValueError) as error:
        _discard_buffer(stream or sys.stdout, for_good=isinstance(error, BrokenPipeError))
        if stream is not sys.stderr:
            warn(f'stdout cannot be written ({reason(error)})')


def warn(line: str) -> None:
    """Print a line on stderr; see `show`."""
    if sys.stderr is not None:  # None if Python was started without it
        show(line, sys.stderr)


def _discard_buffer(stream: TextIO, for_good: bool = True) -> None:
    """Flush a stream to /dev/null. Otherwise Python tries to write the rest again at exit, and fails."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = stream.fileno()
        with open(os.devnull, 'w') as null, open(os.dup(descriptor), 'w') as kept:
            os.dup2(null.fileno(), descriptor)
            stream.flush()
            if not for_good:
                os.dup2(kept.fileno(), descriptor)


def _prepare_streams() -> None:
    """Make stdout and stderr writable, whatever the text and even if they were closed."""
    with contextlib.suppress(OSError):
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # otherwise a data file could become stderr
            pass
        os.close(descriptor)
    for name in ('stdout', 'stderr'):
        if (stream := getattr(sys, name)) is None:  # closed before Python started, for example by 2>&-
            setattr(sys, name, open(os.devnull, 'w'))  # noqa: SIM115, open until the process ends
        elif hasattr(stream, 'reconfigure'):  # a folder's name may have characters that the terminal lacks
            stream.reconfigure(errors='backslashreplace')


def run_program(program: str, work: Callable[[], object]) -> int:
    """Run a program by calling `work`, and return its exit status; print an error as one line on stderr.

    It is 0, 2 after a ValueError or OSError, 1 after an error of MXNet's engine, a lack of memory or a closed output,
    130 after Ctrl-C, and that of a `JobError`. Other errors are bugs and keep their traceback.
    """
    until_now, show_unraisable = signal.getsignal(signal.SIGINT), sys.unraisablehook
    try:
        if until_now is signal.SIG_DFL:  # set by the package's __init__
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _prepare_streams()
        quiet_matplotlib()
        with lost_interrupts_sent_again():
            work()
        sys.stdout.flush()  # raises if the output cannot be written
    except KeyboardInterrupt as error:
        sys.unraisablehook = lambda unraisable: None  # an array that MXNet had half made cannot be deleted
        traceback.clear_frames(error.__traceback__)
        return _end(program, 'interrupted', INTERRUPTED)
    except JobError as error:
        return _end(program, '' if error.reported else str(error), error.status)
    except BrokenPipeError:  # the reader of the output has closed it
        return _end(program, '', FAILED)
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        if line := engine_line(error):
            if _is_naive():
                traceback.print_exc()
            clear_engine_errors()
            return _end(program, line, FAILED)
        if isinstance(error, RuntimeError):
            raise
        if isinstance(error, OSError) and error.filename and error.strerror:
            return _end(program, f'{error.filename}: {error.strerror}', BAD_INPUT)
        if isinstance(error, FileNotFoundError) and error.strerror:  # of os.getcwd
            return _end(program, 'the current folder has been deleted: change to a folder that exists', BAD_INPUT)
        return _end(program, str(error), BAD_INPUT)
    finally:
        sys.unraisablehook = show_unraisable
        if until_now is signal.SIG_DFL:  # Ctrl-C ends the process without a traceback while MXNet shuts down as well
            signal.signal(signal.SIGINT, until_now)
    return 0


def _end(program: str, line: str, status: int) -> int:
    if line:
        # One line; spaces stay, because a printed command may contain the name of a folder
        show(f'{program}: {" ".join(filter(None, map(str.strip, line.splitlines())))}', sys.stderr)
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        _discard_buffer(sys.stdout)
    return status


def reason(error: Exception) -> str:
    """Return the reason for an error in one line of at most 200 characters."""
    line = ' '.join(str(getattr(error, 'strerror', None) or error).split())
    # MXNet's begin with a traceback of C++
    return _shortened(line.rpartition('MXNetError: ')[2] or type(error).__name__)


def _shortened(line: str) -> str:
    return line if len(line) <= 200 else f'{line[:200]}...'


def clear_engine_errors() -> None:
    """Let MXNet raise the errors that it has stored; blocks. Otherwise it raises them later, or prints them at exit."""
    if (mxnet := sys.modules.get('mxnet')) is None:
        return
    for _ in range(100):  # it raises each error once, and one error may cause others
        with contextlib.suppress(Exception):  # the engine also raises Python's errors, such as ValueError
            mxnet.nd.waitall()
            break


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for errors of Python, of MXNet's engine and of the loader of libraries that memory is lacking."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in OUT_OF_MEMORY)


def engine_line(error: Exception) -> str:
    """Return one line for an error of MXNet's engine or a lack of memory, '' for other errors."""
    mxnet = sys.modules.get('mxnet')
    # The engine also raises Python's errors, such as ValueError; their text begins with the engine's traceback
    of_mxnet = str(error).startswith('Traceback') or (mxnet and isinstance(error, mxnet.base.MXNetError))
    if not of_mxnet and not isinstance(error, MemoryError):
        return ''
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    what = _shortened(re.sub(r'^\w*Error: ', '', lines[-1]))  # the lines before are the traceback
    if is_out_of_memory(error):
        return f'out of memory ({what}): use a smaller batch or, in training, --accumulate 2'
    variable = re.search(r'Invalid Parameter format for (MXNET_\w+)', what)
    return f'MXNet failed ({what}): ' + (f'unset {variable[1]}' if variable else 'the traceback above shows where' if
                                         _is_naive() else 'set MXNET_ENGINE_TYPE=NaiveEngine to see where')


def _is_naive() -> bool:
    """Return True if MXNet computes each operator at once, so that a traceback shows the faulty one."""
    return os.environ.get('MXNET_ENGINE_TYPE') == 'NaiveEngine'
