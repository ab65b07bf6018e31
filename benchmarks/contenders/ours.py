"""Contender: `train` of this package's chapters, as a user calls it. The job's "devices": how many."""
from __future__ import annotations

import contextlib
import inspect
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the package beside benchmarks/, installed or not

from common import Stopwatch, read_job, read_rows

from gluon_mgpu import concise, scratch
from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.devices.lists import parse_devices
from gluon_mgpu.training.run import TrainingLog


class TimedLog(TrainingLog):
    """Starts the stopwatch where an epoch begins, as `train` does its timer."""

    def __init__(self, num_epochs: int, watch: Stopwatch):
        super().__init__(num_epochs, quiet=True)
        self.watch = watch

    def progress(self, train_iter):
        self.watch.start()
        yield from super().progress(train_iter)


class TestRows(BatchIterator):
    """Stops the stopwatch where the evaluation begins, which is where `train` stops its timer."""

    watch = None

    def __iter__(self):
        self.watch.stop()
        return super().__iter__()


def main() -> None:
    job = read_job()
    images, labels, test_images, test_labels = read_rows(job)
    train = {'scratch': scratch, 'concise': concise}[job['work']].train
    options = {}
    if job['dtype'] != 'float32':
        if 'dtype' not in inspect.signature(train).parameters:
            sys.exit(f"{job['work']}.train has no dtype yet")
        options['dtype'] = job['dtype']
    devices = parse_devices(','.join(f'cpu:{i}' for i in range(job['devices'])))
    train_iter = BatchIterator(images, labels, job['batch_size'], 'rows', shuffle=True)
    test_iter = TestRows(test_images, test_labels, job['batch_size'], 'rows')
    test_iter.watch = watch = Stopwatch()
    log = TimedLog(job['epochs'], watch)
    with open(os.devnull, 'w') as nowhere, contextlib.redirect_stdout(nowhere):
        train(len(devices), job['batch_size'], job['lr'], num_epochs=job['epochs'], devices=devices,
              data=(train_iter, test_iter), log=log, **options)
    print(watch.line(job, len(images), log.history[-1].loss, log.history[-1].test_acc))


if __name__ == '__main__':
    main()
