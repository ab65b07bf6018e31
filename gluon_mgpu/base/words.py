"""Words of messages."""


def counted(number: int, singular: str) -> str:
    """Return a number and a noun: '1 batch', '2 batches', '2 steps'."""
    plural = 'batches' if singular == 'batch' else f'{singular}s'
    return f'{number} {singular if number == 1 else plural}'
