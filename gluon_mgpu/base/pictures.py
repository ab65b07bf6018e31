"""Matplotlib: its warnings, text of figures, and atomic writing of them."""
import contextlib
import io
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

from .files import write_atomically
from .text import printable


@contextlib.contextmanager
def matplotlib_defaults() -> Iterator[None]:
    """Draw with Matplotlib's defaults, not the user's or a ``matplotlibrc`` of the current folder."""
    logging.getLogger('matplotlib').setLevel(logging.ERROR)  # it warns if it cannot write to the home folder
    import matplotlib
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        yield


def in_lines(text: str, width: int = 60) -> str:
    """Break text into lines of at most `width` characters for a figure, where ``$`` would begin a formula."""
    return fill(printable(text), width, break_on_hyphens=False).replace('$', r'\$')


def write_picture(figure: Any, path: str | os.PathLike) -> None:
    """Write a figure of Matplotlib, in one piece; the suffix of `path` is the format, by default PNG."""
    content = io.BytesIO()
    figure.savefig(content, format=Path(path).suffix[1:] or None)
    write_atomically(path, content.getbuffer())
