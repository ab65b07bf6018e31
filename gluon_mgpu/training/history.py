"""The history of a run: an `Epoch` for each of its epochs, kept as ``history.csv``."""
from __future__ import annotations

import csv
import io
from typing import NamedTuple

from ..base.files import write_atomically


class Epoch(NamedTuple):
    """One line of a run's history."""

    epoch: int  # from 1
    seconds: float  # of training, without evaluation
    loss: float  # mean over the rows, each taken before the update it led to
    test_acc: float  # share of right predictions, 0 to 1
    images_per_second: float  # in training


def write_history(history: list[Epoch], path) -> None:
    """Write a history as CSV, with the field names of `Epoch` as its first line.

    The file is whole at any time: an interrupted call leaves the one before.

    Parameters
    ----------
    history : list of Epoch
        The epochs done.
    path : path-like
        The file.

    Raises
    ------
    OSError
        If it cannot be written: the one before is left.
    """
    text = io.StringIO(newline='')
    writer = csv.writer(text)
    writer.writerow(Epoch._fields)
    writer.writerows((e.epoch, f'{e.seconds:.3f}', f'{e.loss:.6f}', f'{e.test_acc:.4f}',
                      f'{e.images_per_second:.1f}') for e in history)
    write_atomically(path, [text.getvalue().encode()])
