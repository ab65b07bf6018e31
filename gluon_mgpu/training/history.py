"""The history of a run, one `EpochResult` per epoch, written as ``history.csv``."""
from __future__ import annotations

from typing import NamedTuple

from ..base.files import write_atomically
from ..devices import devices_words


class EpochResult(NamedTuple):
    """The results of one epoch."""

    epoch: int  # from 1
    seconds: float  # of training, without evaluation
    loss: float  # mean over the rows, in nats; that of each batch is computed before its update
    test_acc: float  # 0 to 1
    images_per_second: float  # in training
    lr: float | None = None  # learning rate of the last batch, if the run knows it


def summary(history: list[EpochResult], devices: list, num_workers: int = 1) -> str:
    """Return the summary line, as in D2L's ``train``: ``test acc: 0.84, 2.5 sec/epoch on [gpu(0), gpu(1)]``."""
    seconds = sum(e.seconds for e in history) / len(history)
    workers = f', {num_workers} workers' if num_workers > 1 else ''
    return f'test acc: {history[-1].test_acc:.2f}, {seconds:.1f} sec/epoch on [{devices_words(devices)}]{workers}'


def write_history(history: list[EpochResult], path) -> None:
    """Write a history as CSV, with the field names of `EpochResult` as header; a file is replaced atomically."""
    rows = [(str(e.epoch), f'{e.seconds:.3f}', f'{e.loss:.6f}', f'{e.test_acc:.4f}', f'{e.images_per_second:.1f}',
             '' if e.lr is None else f'{e.lr:.6g}') for e in history]
    write_atomically(path, ''.join(','.join(row) + '\n' for row in (EpochResult._fields, *rows)).encode())
