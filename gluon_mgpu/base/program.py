"""How each program of this package reads its flags and ends: in one line where it was asked for the impossible.

    python -m gluon_mgpu.scratch --devices gpu:9
    scratch: gpu(9) does not exist (MXNet sees 2): use gpu:0 to gpu:1        and exit status 2
"""
from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TextIO

from .checks import integer, positive
from .machine import folder_for_matplotlib

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130  # exit statuses; 130 is the shell's for Ctrl-C
OUT_OF_MEMORY = ('out of memory', 'failed to allocate', 'cannot allocate', 'alloc_failed', 'bad_alloc')


class Failure(Exception):  # noqa: N818  # how a program ends, as Stopped is
    """A program was asked well and cannot do it: it ends with this line and status 1."""


class Stopped(BaseException):
    """A signal has ended the program in good order. Like KeyboardInterrupt, no Exception.

    Parameters
    ----------
    signum : int
        The signal's number.
    line : str
        What has been done, and how to go on.
    """

    agreed = True  # by all workers of a job: they have it after the same batch

    def __init__(self, signum: int, line: str = ''):
        super().__init__(line)
        self.signum = signum


class Parser(argparse.ArgumentParser):
    """An argparse parser that refuses in one line, with exit status 2."""

    def error(self, message: str) -> NoReturn:
        """Print `message`, what is wrong with the flags, in a line, and end the program."""
        self.exit(BAD_INPUT, f'{self.prog.rpartition(".")[2]}: {message}; --help shows all flags\n')


def number(kind: type, least: int = 1, most: int | None = None) -> Callable:
    """Return a type for argparse: text to an int from `least` to `most`, or to a finite float above 0.

    Parameters
    ----------
    kind : type
        ``int`` or ``float``.
    least, most : int, optional
        The smallest and the largest int that are allowed.
    """
    def convert(text: str):
        try:
            value = kind(text)
        except ValueError:
            value = text
        try:
            return integer('', value, least, most) if kind is int else positive('', value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error).strip()) from None
    return convert


def text(value: str) -> str:
    """A type for argparse: any text but the empty one, which an unset variable of the shell gives.

    Parameters
    ----------
    value : str
        What stands on the command line.
    """
    if not value:
        raise argparse.ArgumentTypeError("'' is empty: give a value, or leave the flag out")
    return value


def picture(value: str) -> Path:
    """A type for argparse: the path of a picture, which is a PNG file if its name says nothing else.

    Parameters
    ----------
    value : str
        What stands on the command line.
    """
    path = Path(text(value))
    return path if path.suffix else path.with_name(f'{path.name}.png')


def show(line: str, stream: TextIO | None = None) -> None:
    """Print a line, by default on stdout. If it cannot be printed, say so on stderr and return.

    Training must not end because the terminal, a pipe or the disk of a log file is gone. A later line is printed again
    if it can be, unless nobody reads the pipe any more.

    Parameters
    ----------
    line : str
        The line.
    stream : text file, optional
        Such as ``sys.stderr``.
    """
    stream = stream or sys.stdout
    if stream is None:  # Python was started without it
        return
    try:
        print(line, file=stream, flush=True)
    except (OSError, ValueError) as error:
        _drop_unwritten(stream, for_good=isinstance(error, BrokenPipeError))
        if stream is not sys.stderr and sys.stderr is not None:
            show(f'stdout cannot be written ({getattr(error, "strerror", None) or error})', sys.stderr)


def _drop_unwritten(stream: TextIO, for_good: bool = True) -> None:
    """Send what a stream could not write nowhere: else Python tries again when it ends, and fails."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = stream.fileno()
        kept = os.dup(descriptor)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, descriptor)
            stream.flush()
            if not for_good:
                os.dup2(kept, descriptor)
        finally:
            os.close(kept)
            os.close(nowhere)


def _prepare_streams() -> None:
    """Make stdout and stderr ones that can be written to, whatever the text and even if they were closed."""
    with contextlib.suppress(OSError):
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # else a data file could become stderr
            pass
        os.close(descriptor)
    for name in ('stdout', 'stderr'):
        stream = getattr(sys, name)
        if stream is None:  # closed when Python was started, as by 2>&-
            setattr(sys, name, open(os.devnull, 'w'))  # noqa: SIM115  # as long as the process
        elif hasattr(stream, 'reconfigure'):  # a folder's name may hold what the terminal cannot show
            stream.reconfigure(errors='backslashreplace')


def exit_status(program: str, work: Callable[[], object]) -> int:
    """Call `work` and tell how it ended, as the command line does.

    Parameters
    ----------
    program : str
        How the line begins.
    work : callable
        Takes nothing.

    Returns
    -------
    int
        0; 2 after a ValueError or OSError; 1 after a `Failure`, an error of MXNet's engine or without memory; 130
        after Ctrl-C, and 128 and its number after another signal; with one line on stderr, unless the error has an
        attribute ``told`` that is true: then another worker tells it.
    """
    try:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as the package has set it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _prepare_streams()
        folder_for_matplotlib()
        work()
        sys.stdout.flush()  # what cannot be printed is an error
    except KeyboardInterrupt as error:
        return _ended(program, error, INTERRUPTED, 'interrupted')
    except Stopped as stopped:
        return _ended(program, stopped, 128 + stopped.signum)
    except Failure as failure:
        return _ended(program, failure, FAILED)
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        line = _engine_line(error)
        if line:
            _forget_errors()
            return _ended(program, error, FAILED, line)
        if isinstance(error, RuntimeError):
            raise
        return _ended(program, error, BAD_INPUT)
    return 0


def _ended(program: str, error: BaseException, status: int, line: str = '') -> int:
    if not getattr(error, 'told', False):
        show(f'{program}: {" ".join((line or str(error)).split())}', sys.stderr)
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        _drop_unwritten(sys.stdout)
    return status


def _forget_errors() -> None:
    """Let MXNet raise the errors that it still has in store: else it would when Python ends, with a traceback."""
    mxnet = sys.modules.get('mxnet')
    if mxnet is None:
        return
    for _ in range(100):  # each is raised once, and more may follow from one
        with contextlib.suppress(mxnet.base.MXNetError):
            mxnet.nd.waitall()
            break


def _engine_line(error: Exception) -> str:
    """What an error of MXNet, or a lack of memory, comes to in one line; '' if it is another error."""
    mxnet = sys.modules.get('mxnet')
    # Some of the engine's errors come as Python's own, such as ValueError, but all with the engine's traceback
    of_mxnet = str(error).startswith('Traceback') or (mxnet and isinstance(error, mxnet.base.MXNetError))
    if not of_mxnet and not isinstance(error, MemoryError):
        return ''
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    reason = re.sub(r'^\w*Error: ', '', lines[-1])  # the lines before say where in MXNet
    reason = reason if len(reason) <= 200 else reason[:200] + '...'
    if isinstance(error, MemoryError) or any(words in str(error).lower() for words in OUT_OF_MEMORY):
        return f'out of memory ({reason}): use a smaller --batch-size'
    return f'MXNet failed ({reason}): MXNET_ENGINE_TYPE=NaiveEngine in the environment shows where'
