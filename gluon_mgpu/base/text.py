"""Text from files, folders and machines of others, for the terminal. Imports nothing, see `mxnet_setup.hidden`."""
from __future__ import annotations

# Control characters, which a terminal obeys, separators of lines, and signs that reorder text
CONTROL = {number: repr(chr(number))[1:-1] for number in (
    *range(32), *range(127, 160), *range(0x200e, 0x2010), *range(0x2028, 0x202f), *range(0x2066, 0x206a))}


def printable(text: str) -> str:
    """Return text in one line, with control characters as escapes, such as ``\\x1b``."""
    return text.translate(CONTROL)


def print_text(*lines: object, stream=None) -> None:
    """Print lines, possibly with text of others; see `printable`. OSError if they cannot be written."""
    print(*(printable(str(line)) for line in lines), sep='\n', file=stream, flush=True)
