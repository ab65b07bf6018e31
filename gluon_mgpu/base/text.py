"""Text of messages, possibly with names from files and machines of others."""
import sys

# Control characters, which a terminal obeys, separators of lines, and signs that reorder text
CONTROL = {number: repr(chr(number))[1:-1] for number in (
    *range(32), *range(127, 160), 0x61c, *range(0x200e, 0x2010), *range(0x2028, 0x202f), *range(0x2066, 0x206a))}


def printable(text: str) -> str:
    """Return text in one line, with escapes for control characters and what is no UTF-8, such as ``\\x1b``."""
    return text.translate(CONTROL).encode(errors='backslashreplace').decode()


def print_text(*lines: object, stream=None) -> None:
    """Print lines, with escapes for control characters in text of others. OSError if they cannot be written."""
    encoding = getattr(stream or sys.stdout, 'encoding', None) or 'utf-8'  # of a terminal, possibly ASCII
    text = '\n'.join(printable(str(line)) for line in lines)
    print(text.encode(encoding, 'backslashreplace').decode(encoding), file=stream, flush=True)


def counted(number: int, singular: str) -> str:
    """Return a number and a noun: '1 batch', '2 batches', '2 steps'."""
    plural = 'batches' if singular == 'batch' else f'{singular}s'
    return f'{number} {singular if number == 1 else plural}'


def or_none(value: object) -> object:
    """Return the value of a setting, for None 'none' as on the command line."""
    return 'none' if value is None else value


def described(value: object) -> str:
    """Return what was passed instead of batches: 'array (16, 6)', 'tuple (array (16, 6), int)'."""
    if isinstance(value, (list, tuple)):
        return f'{type(value).__name__} ({", ".join(map(described, value[:3]))}{", ..." * (len(value) > 3)})'
    shape = getattr(value, 'shape', None)
    return type(value).__name__ if shape is None else f'array {tuple(shape)}'
