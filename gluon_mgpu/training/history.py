"""The history of a run, one `EpochResult` per epoch, written as ``history.csv``."""
import csv
from typing import Any, NamedTuple

from ..base.arguments import is_number
from ..base.files import read_file, write_atomically
from ..devices import devices_words


class EpochResult(NamedTuple):
    """The results of one epoch."""

    epoch: int  # from 1
    seconds: float  # of training, without evaluation
    loss: float  # mean over the rows, in nats; that of each batch is computed before its update
    accuracy: float  # 0 to 1; of the test rows or the validation rows, which the header of history.csv says
    images_per_second: float  # in training
    lr: float | None = None  # learning rate of the last batch, if the run knows it


def summary(history: list[EpochResult], devices: list, num_workers: int = 1, evaluated: str = 'test') -> str:
    """Return the summary line, as in D2L's ``train``: ``test acc: 0.84, 2.5 sec/epoch on [gpu(0), gpu(1)]``."""
    seconds = sum(e.seconds for e in history) / len(history)
    workers = f', {num_workers} workers' if num_workers > 1 else ''
    return (f'{evaluated} acc: {history[-1].accuracy:.2f}, {seconds:.1f} sec/epoch on [{devices_words(devices)}]'
            f'{workers}')


def checked_history(rows: Any) -> list[EpochResult]:
    """Return the rows of a history from a file as results; ValueError unless they are those of epochs 1, 2, ..."""
    try:
        history = [EpochResult(*row) for row in rows]
    except TypeError:
        raise ValueError('its history is malformed') from None
    for number, (epoch, *numbers, lr) in enumerate(history, 1):
        if epoch != number or not all(map(is_number, [*numbers, lr or 0])):
            raise ValueError(f'epoch {number} of its history is malformed')
    return history


def write_history(history: list[EpochResult], path, evaluated: str = 'test') -> None:
    """Write a history as CSV, with a header such as test_acc for the accuracy; a file is replaced atomically."""
    names = [f'{evaluated}_acc' if name == 'accuracy' else name for name in EpochResult._fields]
    rows = [(str(e.epoch), f'{e.seconds:.3f}', f'{e.loss:.6f}', f'{e.accuracy:.4f}', f'{e.images_per_second:.1f}',
             '' if e.lr is None else f'{e.lr:.6g}') for e in history]
    write_atomically(path, ''.join(','.join(row) + '\n' for row in (names, *rows)).encode())


def read_history(path) -> tuple[list[EpochResult], str]:
    """Read what `write_history` has written, also without rates: the history, and which rows it evaluated.

    Raises OSError or ValueError for other files.
    """
    try:
        records = csv.DictReader(read_file(path).decode().splitlines())
        evaluated = 'validation' if 'validation_acc' in (records.fieldnames or ()) else 'test'
        names = 'seconds', 'loss', f'{evaluated}_acc', 'images_per_second'
        history = checked_history([[int(e['epoch']), *(float(e[name]) for name in names),
                                    float(e['lr']) if e.get('lr') else None] for e in records])
        return history, evaluated
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        problem = f'lacks {error}' if isinstance(error, KeyError) else f'is damaged, {error}'
        raise ValueError(f'{path} {problem}') from None
