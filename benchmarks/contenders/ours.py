"""Contender: `train` of this package's chapters, as a user calls it. The job's "devices" is their number."""
from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the package beside benchmarks/, installed or not

from common import Stopwatch, read_job, read_rows

from gluon_mgpu import concise, scratch
from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.devices import parse_devices
from gluon_mgpu.networks.resnet import resnet18
from gluon_mgpu.training.run import Callback, Run


class Timing(Callback):
    """Callback that times the epochs, training only, as for every contender."""

    def __init__(self, watch: Stopwatch):
        self.watch = watch

    def epoch_begin(self, run: Run) -> None:
        self.watch.start()

    def epoch_trained(self, run: Run) -> None:
        self.watch.stop()


def main() -> None:
    job = read_job()
    images, labels, test_images, test_labels = read_rows(job)
    train_iter = BatchIterator(images, labels, job['batch_size'], 'rows', shuffle=True)
    test_iter = BatchIterator(test_images, test_labels, job['batch_size'], 'rows')
    devices = parse_devices(f'cpu:0-{job["devices"] - 1}')
    watch = Stopwatch()
    run = Run(job['epochs'], quiet=True, callbacks=[Timing(watch)])
    train = {'scratch': scratch.train, 'concise': concise.train}[job['work']]
    network = {}
    if job['work'] == 'concise':
        network['net'] = resnet18(10, job['dtype'])
        network['net'].hybridize(static_alloc=True, static_shape=True)  # as `train` does with its own
    train(len(devices), job['batch_size'], job['lr'], devices=devices, data=(train_iter, test_iter), run=run,
          **network)
    print(watch.line(job, len(images), run.history[-1].loss, run.history[-1].accuracy))


if __name__ == '__main__':
    main()
