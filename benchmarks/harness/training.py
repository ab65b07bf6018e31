"""Training of a chapter for a measurement: `train` on some rows of a dataset, without its output."""
from __future__ import annotations

import argparse
import itertools

from gluon_mgpu import concise, scratch
from gluon_mgpu.data import load_data
from gluon_mgpu.networks.resnet import resnet18
from gluon_mgpu.training.run import Run

WORK = {  # chapter: train, rows in an epoch, batch size, learning rate
    'scratch': (scratch.train, 60 * 256, 256, 0.2),
    'concise': (concise.train, 4 * 256, 256, 0.1),
}


def hybridized_resnet18(dtype: str):
    """Return the network of ``concise.train``, in this precision."""
    net = resnet18(10, dtype)
    net.hybridize(static_alloc=True, static_shape=True)
    return net


def flags_parser(doc: str) -> argparse.ArgumentParser:
    """Return a parser with the flags of the dataset; `doc` is the docstring of the program."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    parser.add_argument('--dataset', default='glyphs', help='glyphs or fashion-mnist (default: %(default)s)')
    parser.add_argument('--data-dir', help='folder that contains fashion-mnist/')
    return parser


def train_quietly(chapter: str, devices: list, num_epochs: int, dataset: str, data_dir: str | None, callbacks=(),
                  rows: int | None = None, num_test_batches: int = 1) -> Run:
    """Train on as many rows as in `WORK`, or on `rows`; by default, evaluate on one batch. Return the run."""
    train, rows_in_work, batch_size, lr = WORK[chapter]
    train_iter, test_iter = load_data(dataset, batch_size, data_dir, train_size=rows or rows_in_work,
                                      log=lambda line: None)
    run = Run(num_epochs, quiet=True, callbacks=callbacks)
    train(len(devices), batch_size, lr, devices=devices,
          data=(train_iter, list(itertools.islice(test_iter, num_test_batches))), run=run)
    return run
