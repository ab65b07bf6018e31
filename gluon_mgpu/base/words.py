"""Words of messages."""
from typing import Any


def counted(number: int, singular: str) -> str:
    """Return a number and a noun: '1 batch', '2 batches', '2 steps'."""
    plural = 'batches' if singular == 'batch' else f'{singular}s'
    return f'{number} {singular if number == 1 else plural}'


def described(value: Any) -> str:
    """Return what was passed instead of batches: 'array (16, 6)', 'tuple (array (16, 6), int)'."""
    if isinstance(value, (list, tuple)):
        return f'{type(value).__name__} ({", ".join(map(described, value[:3]))}{", ..." * (len(value) > 3)})'
    shape = getattr(value, 'shape', None)
    return type(value).__name__ if shape is None else f'array {tuple(shape)}'
