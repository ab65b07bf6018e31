"""Cost of a checkpoint after every epoch: the time to copy and check the arrays, and the time to write the file.

    python benchmarks/checkpoint_cost.py                             # about 2 minutes on 2 cores
    python benchmarks/checkpoint_cost.py --dataset fashion-mnist --data-dir DIR --out-dir DISK

Runs both chapters' `train` on two CPU contexts with a `CheckpointCallback`. Both times are measured directly, because
the duration of an epoch varies by more than that. The share is of an epoch of 60,000 rows, extrapolated from fewer.
"""
import statistics
import tempfile
import time

from harness.training import WORK, flags_parser, train_quietly

from gluon_mgpu.checkpoints.checkpoint_callback import CheckpointCallback
from gluon_mgpu.checkpoints.run_folder import checkpoints
from gluon_mgpu.mxnet_setup.compat import mx


class TimedCheckpointCallback(CheckpointCallback):
    """Checkpoint callback that records the seconds for each checkpoint, in all and of writing the file."""

    def __init__(self, folder):
        super().__init__(folder)
        self.all, self.writing = [], []

    def _save(self, run):
        began = time.perf_counter()
        super()._save(run)
        self.all.append(time.perf_counter() - began)

    def _write(self, *args):
        began = time.perf_counter()
        super()._write(*args)
        self.writing.append(time.perf_counter() - began)


def cost(chapter, num_epochs, dataset, data_dir, folder):
    """Return medians: seconds per epoch of 60,000 rows, seconds in all, seconds of writing; and the file's MB."""
    checkpointing = TimedCheckpointCallback(folder)
    run = train_quietly(chapter, [mx.cpu(0), mx.cpu(1)], num_epochs, dataset, data_dir, [checkpointing])
    epoch = statistics.median(e.seconds for e in run.history[1:]) * 60_000 / WORK[chapter][1]
    size = checkpoints(folder)[0].stat().st_size / 1e6
    return epoch, statistics.median(checkpointing.all), statistics.median(checkpointing.writing), size


def main():
    parser = flags_parser(__doc__)
    parser.add_argument('--epochs', type=int, default=8, help='epochs of each chapter (default: %(default)s)')
    parser.add_argument('--out-dir', help='folder on the disk to test (default: the one for temporary files)')
    args = parser.parse_args()
    if args.epochs < 2:
        parser.error(f'--epochs {args.epochs}: must be at least 2, because the first is not counted')
    for chapter in WORK:
        with tempfile.TemporaryDirectory(dir=args.out_dir) as folder:
            epoch, seconds, writing, size = cost(chapter, args.epochs, args.dataset, args.data_dir, folder)
        print(f'{chapter}, epoch of {epoch:.1f} s: a checkpoint of {size:.1f} MB in {1000 * seconds:.1f} ms '
              f'({seconds / epoch:.2%}), of which {1000 * writing:.1f} ms to write the file', flush=True)


if __name__ == '__main__':
    main()
