"""Text of Matplotlib's figures, and atomic writing of them."""
from __future__ import annotations

import io
import os
from pathlib import Path
from textwrap import fill
from typing import Any

from .files import write_atomically


def in_lines(text: str, width: int = 60) -> str:
    """Break text into lines of at most `width` characters for a figure, where ``$`` would begin a formula."""
    return fill(text, width, break_on_hyphens=False).replace('$', r'\$')


def write_picture(figure: Any, path: str | os.PathLike) -> None:
    """Write a figure of Matplotlib like `write_atomically`; the suffix of `path` is the format, by default PNG."""
    content = io.BytesIO()
    figure.savefig(content, format=Path(path).suffix[1:] or None)
    write_atomically(path, content.getbuffer())
