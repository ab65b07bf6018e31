"""Command-line programs: printing, and ending with one line and an exit status."""
import contextlib
import os
import re
import sys
from collections.abc import Callable
from typing import TextIO

from .text import print_text

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130  # exit statuses; 130 is what shells use for Ctrl-C
OUT_OF_MEMORY = ('out of memory', 'failed to allocate', 'cannot allocate', 'alloc_failed', 'bad_alloc',
                 'failed to map segment')


class ProblemError(ValueError):
    """Error of a problem and its remedy, the two arguments. The doctor shows them apart; the message has both."""

    def __str__(self) -> str:
        return ': '.join(self.args)


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


def show(*lines: str, stream: TextIO | None = None) -> None:
    """Print lines, by default on stdout. If that fails, say so once on stderr: it must not end training."""
    try:
        print_text(*lines, stream=stream)
    except (OSError, ValueError) as error:
        _discard(stream or sys.stdout)
        if stream is not sys.stderr:
            warn(f'stdout cannot be written ({reason(error)})')


def warn(*lines: str) -> None:
    """Print lines on stderr, if possible."""
    if sys.stderr is not None:  # closed before Python started
        show(*lines, stream=sys.stderr)


def _discard(stream: TextIO) -> None:
    """Send what is and will be written to /dev/null; otherwise Python would fail to write it at exit."""
    with contextlib.suppress(OSError, ValueError), open(os.devnull, 'w') as null:  # no file, as in a notebook
        os.dup2(null.fileno(), stream.fileno())


def run_program(program: str, work: Callable[[], object]) -> int:
    """Run a program by calling `work`, and return its exit status; print an error as one line on stderr.

    It is 0, 2 after a ValueError or OSError, 1 after an error of MXNet's engine, a lack of memory or a closed output,
    130 after Ctrl-C, and that of a `JobError`. Other errors are bugs and keep their traceback.
    """
    try:
        work()
        return 0
    except KeyboardInterrupt:
        line, status = 'interrupted', INTERRUPTED
    except JobError as error:
        line, status = '' if error.reported else str(error), error.status
    except BrokenPipeError:  # the reader of the output has closed it
        line, status = '', FAILED
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        line, status = engine_line(error), FAILED
        if not line:
            if isinstance(error, RuntimeError):
                raise
            line, status = str(error), BAD_INPUT
            if isinstance(error, OSError) and error.filename:
                line = f'{error.filename}: {error.strerror}'
        elif os.environ.get('MXNET_ENGINE_TYPE') == 'NaiveEngine':
            raise  # its traceback shows the operator
        else:
            clear_engine_errors()
    if line:
        warn(f'{program}: {line}')
    try:
        if sys.stdout:  # None if it was closed before Python started
            sys.stdout.flush()
    except (OSError, ValueError):
        _discard(sys.stdout)
    return status


def reason(error: Exception) -> str:
    """Return the reason for an error in one line of at most 200 characters."""
    line = ' '.join(str(getattr(error, 'strerror', None) or error).split()) or type(error).__name__
    line = re.sub(r'^(Traceback.* )?\w*Error: ', '', line)  # MXNet's may begin with a traceback of C++
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
    if is_out_of_memory(error):
        return f'out of memory ({reason(error)}): use a smaller batch or, in training, --accumulate 2'
    return f'MXNet failed ({reason(error)}): set MXNET_ENGINE_TYPE=NaiveEngine to see where'
