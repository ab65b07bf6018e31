"""Memory of training: growth over the epochs and with the number of devices.

    python benchmarks/memory.py                                      # about 10 minutes on 2 cores
    python benchmarks/memory.py --dataset fashion-mnist --data-dir DIR --epochs 20

Runs both chapters' `train` on two CPU contexts for 20 epochs, with a smaller last batch and an evaluation in each; then
LeNet for 2 epochs on 1 to 16 CPU contexts. Each run has its own process. Linux only, because it reads /proc.
"""
import argparse
import contextlib
import io
import itertools
import multiprocessing
import resource
from concurrent.futures import ProcessPoolExecutor

from gluon_mgpu import concise, scratch
from gluon_mgpu.data import load_data
from gluon_mgpu.mxnet_setup.compat import mx
from gluon_mgpu.training.run import Callback, Run

WORK = {  # chapter: train, rows in an epoch, batch size, learning rate
    'scratch': (scratch.train, 60_000, 256, 0.2),
    'concise': (concise.train, 700, 256, 0.1),
}
SHOWN = (1, 2, 5, 10, 20, 50, 100)


class Sizes(Callback):
    """Callback that records the process's memory and address space in MB after every epoch."""

    def __init__(self):
        self.sizes = []

    def epoch_end(self, run):
        with open('/proc/self/statm') as file:
            addresses, memory = (int(pages) * resource.getpagesize() / 2**20 for pages in file.read().split()[:2])
        self.sizes.append((memory, addresses))


def sizes(chapter, num_devices, num_epochs, dataset, data_dir):
    """Return (MB of memory, MB of address space) after each epoch."""
    train, rows, batch_size, lr = WORK[chapter]
    train_iter, test_iter = load_data(dataset, batch_size, data_dir, train_size=rows, log=lambda line: None)
    test_batches = list(itertools.islice(test_iter, -(-rows // 6 // batch_size)))  # a sixth, as in Fashion-MNIST
    callback = Sizes()
    with contextlib.redirect_stdout(io.StringIO()):
        train(num_devices, batch_size, lr, devices=[mx.cpu(i) for i in range(num_devices)],
              data=(train_iter, test_batches), run=Run(num_epochs, quiet=True, callbacks=[callback]))
    return callback.sizes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--epochs', type=int, default=20, help='epochs on two devices (default: %(default)s)')
    parser.add_argument('--dataset', default='glyphs', help='glyphs or fashion-mnist (default: %(default)s)')
    parser.add_argument('--data-dir', help='folder that contains fashion-mnist/')
    args = parser.parse_args()
    cases = [(chapter, 2, args.epochs) for chapter in WORK] + [('scratch', k, 2) for k in (1, 2, 4, 8, 16)]
    for chapter, num_devices, num_epochs in cases:
        with ProcessPoolExecutor(1, multiprocessing.get_context('spawn')) as process:
            after = process.submit(sizes, chapter, num_devices, num_epochs, args.dataset, args.data_dir).result()
        shown = sorted({n for n in SHOWN if n < num_epochs} | {num_epochs})
        memory = ', '.join(f'{n}: {after[n - 1][0]:,.0f}' for n in shown)
        print(f'{chapter} on {num_devices}: MB after epoch {memory}; {after[-1][1]:,.0f} of addresses', flush=True)


if __name__ == '__main__':
    main()
