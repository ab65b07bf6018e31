"""Cost of a checkpoint after every epoch: the time that training waits for it, and the time to write it.

    python benchmarks/checkpoint_cost.py                             # about 2 minutes on 2 cores
    python benchmarks/checkpoint_cost.py --dataset fashion-mnist --data-dir DIR --out-dir DISK

Runs both chapters' `train` on two CPU contexts with a `CheckpointCallback`. Training waits while the arrays are copied
to the host and checked; a thread then writes the file and uses part of a core. Both times are measured directly,
because the duration of an epoch varies by more than that. The share is of an epoch of 60,000 rows, extrapolated from
fewer.
"""
import statistics
import tempfile
import time

from harness.training import WORK, flags_parser, train_quietly

from gluon_mgpu.checkpoints.callback import CheckpointCallback
from gluon_mgpu.checkpoints.find import checkpoints
from gluon_mgpu.mxnet_setup.compat import mx


class TimedCheckpointCallback(CheckpointCallback):
    """Checkpoint callback that records, for each checkpoint, the seconds that training waited and that writing took."""

    def __init__(self, folder):
        super().__init__(folder)
        self.waited, self.writing = [], []

    def _save(self, run):
        self._wait_for_writer()  # finish the previous file first: in an epoch of 60,000 rows it is long done
        began = time.perf_counter()
        super()._save(run)
        self.waited.append(time.perf_counter() - began)

    def _write(self, *args):
        began = time.perf_counter()
        super()._write(*args)
        self.writing.append(time.perf_counter() - began)


def cost(chapter, num_epochs, dataset, data_dir, folder):
    """Return medians: seconds per epoch of 60,000 rows, seconds waited, seconds of writing; and the file's MB."""
    checkpointing = TimedCheckpointCallback(folder)
    run = train_quietly(chapter, [mx.cpu(0), mx.cpu(1)], num_epochs, dataset, data_dir, [checkpointing])
    epoch = statistics.median(e.seconds for e in run.history[1:]) * 60_000 / WORK[chapter][1]
    size = checkpoints(folder)[0].stat().st_size / 1e6
    return epoch, statistics.median(checkpointing.waited), statistics.median(checkpointing.writing), size


def main():
    parser = flags_parser(__doc__)
    parser.add_argument('--epochs', type=int, default=8, help='epochs of each chapter (default: %(default)s)')
    parser.add_argument('--out-dir', help='folder on the disk to test (default: the one for temporary files)')
    args = parser.parse_args()
    if args.epochs < 2:
        parser.error(f'--epochs {args.epochs}: must be at least 2, because the first is not counted')
    for chapter in WORK:
        with tempfile.TemporaryDirectory(dir=args.out_dir) as folder:
            epoch, waited, writing, size = cost(chapter, args.epochs, args.dataset, args.data_dir, folder)
        print(f'{chapter}, epoch of {epoch:.1f} s: waited {1000 * waited:.1f} ms ({waited / epoch:.2%}), wrote '
              f'{size:.1f} MB in {1000 * writing:.1f} ms ({writing / epoch:.2%})', flush=True)


if __name__ == '__main__':
    main()
