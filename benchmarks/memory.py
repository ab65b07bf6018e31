"""Memory of training: growth over the epochs and with the number of devices.

    python benchmarks/memory.py                                      # about 10 minutes on 2 cores
    python benchmarks/memory.py --dataset fashion-mnist --data-dir DIR --epochs 20

Runs both chapters' `train` on two CPU contexts for 20 epochs, with a smaller last batch and an evaluation in each; then
LeNet for 2 epochs on 1 to 16 CPU contexts. Each run has its own process. Linux only, because it reads /proc.
"""
import multiprocessing
import resource
from concurrent.futures import ProcessPoolExecutor

from harness.training import flags_parser, train_quietly

from gluon_mgpu.mxnet_setup.compat import mx
from gluon_mgpu.training.run import Callback

ROWS = {'scratch': 60_000, 'concise': 700}  # in an epoch
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
    callback, rows = Sizes(), ROWS[chapter]
    train_quietly(chapter, [mx.cpu(i) for i in range(num_devices)], num_epochs, dataset, data_dir, [callback], rows,
                  num_test_batches=-(-rows // 6 // 256))  # a sixth, as in Fashion-MNIST
    return callback.sizes


def main():
    parser = flags_parser(__doc__)
    parser.add_argument('--epochs', type=int, default=20, help='epochs on two devices (default: %(default)s)')
    args = parser.parse_args()
    cases = [(chapter, 2, args.epochs) for chapter in ROWS] + [('scratch', k, 2) for k in (1, 2, 4, 8, 16)]
    for chapter, num_devices, num_epochs in cases:
        with ProcessPoolExecutor(1, multiprocessing.get_context('spawn')) as process:
            after = process.submit(sizes, chapter, num_devices, num_epochs, args.dataset, args.data_dir).result()
        shown = sorted({n for n in SHOWN if n < num_epochs} | {num_epochs})
        memory = ', '.join(f'{n}: {after[n - 1][0]:,.0f}' for n in shown)
        print(f'{chapter} on {num_devices}: MB after epoch {memory}; {after[-1][1]:,.0f} of addresses', flush=True)


if __name__ == '__main__':
    main()
