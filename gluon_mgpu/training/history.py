"""The history of a run, one `Epoch` per epoch, written as ``history.csv``."""
from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import NamedTuple

from ..base.files import SameFolder, write_atomically


class Epoch(NamedTuple):
    """The results of one epoch."""

    epoch: int  # from 1
    seconds: float  # of training, without evaluation
    loss: float  # mean over the rows, in nats; that of each batch is computed before its update
    test_acc: float  # 0 to 1
    images_per_second: float  # in training
    lr: float | None = None  # learning rate of the last batch, if the run knows it


def summary(history: list[Epoch], devices: list, num_workers: int = 1) -> str:
    """Return the summary line, as in D2L's ``train``: ``test acc: 0.84, 2.5 sec/epoch on [gpu(0), gpu(1)]``."""
    seconds = sum(e.seconds for e in history) / len(history)
    workers = f', {num_workers} workers' if num_workers > 1 else ''
    return f'test acc: {history[-1].test_acc:.2f}, {seconds:.1f} sec/epoch on {devices}{workers}'


class HistoryFile:
    """The file ``history.csv`` in an existing folder; without a folder, nothing is written."""

    def __init__(self, folder=None):
        self._folder = None if folder is None else SameFolder(folder)

    def write(self, history: list[Epoch], warn: Callable[[str], None]) -> None:
        """Write a history; call `warn` with one line if that fails."""
        if self._folder is None:
            return
        path = self._folder.path / 'history.csv'
        try:
            self._folder.check()
            write_history(history, path)
        except OSError as error:  # such as a full disk, which must not end the training
            warn(f'{path} cannot be written ({error.strerror}); the run continues')


def write_history(history: list[Epoch], path) -> None:
    """Write a history as CSV, with the field names of `Epoch` as header; an existing file is replaced atomically."""
    text = io.StringIO(newline='')
    writer = csv.writer(text)
    writer.writerow(Epoch._fields)
    writer.writerows((e.epoch, f'{e.seconds:.3f}', f'{e.loss:.6f}', f'{e.test_acc:.4f}',
                      f'{e.images_per_second:.1f}', '' if e.lr is None else f'{e.lr:.6g}') for e in history)
    write_atomically(path, text.getvalue().encode())
