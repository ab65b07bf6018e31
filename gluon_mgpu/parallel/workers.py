"""The processes that train one network, seen from one of them; `HorovodWorkers` has the same methods for several."""
from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any

from ..base.program import InputError, Stopped, clear_engine_errors
from ..mxnet_setup.compat import gluon
from .clipping import ClippingTrainer

SAME_PROGRAM = 'start all workers with the same program, flags, versions and data'


class Workers:
    """The processes that train together, seen from this one, `rank` of `size`; `signals` are as `StopSignals`.

    The methods are those of a process alone; `HorovodWorkers` overrides what exchanges something.
    """

    rank, size = 0, 1
    hosts: Sequence[str] = ('',)  # machine of each worker
    device: Any = None            # None for a process alone, which may have several
    launcher = ''                 # program that started the workers, such as 'srun'
    resume_hint = ''              # end of the message about a lost worker
    place = ''                    # where this worker is, such as 'batch 6 of epoch 1', for messages

    def __init__(self, signals: Any = None):
        self._signals = signals

    @property
    def shard(self) -> tuple[int, int]:
        """This worker's shard of each batch: (rank, size)."""
        return self.rank, self.size

    def discard_errors(self) -> None:
        """Discard the errors that MXNet's engine would raise later; blocks. Does nothing with several workers."""
        # There, waiting for the engine could mean waiting for another worker
        if self.size == 1:
            clear_engine_errors()

    @contextlib.contextmanager
    def engine_errors_cleared(self) -> Iterator[None]:
        """After an error of MXNet's engine in the block, discard those of other devices."""
        try:
            yield
        except (RuntimeError, ValueError):  # MXNetError, or one of Python's types, which the engine raises as well
            self.discard_errors()
            raise

    def extend_allreduce(self, algorithm: Callable) -> Callable:
        """Extend an allreduce, which sums a list of this worker's arrays in place, to all workers; neither blocks."""
        return algorithm

    def allreduce(self, array: Any) -> Any:
        """Sum an array over all workers, in place, and return it; rarely blocks. All call this in the same order."""
        return array

    def trainer(self, params: Any, optimizer: str, optimizer_params: dict, clip_norm: float | None = None) -> Any:
        """Return a ``gluon.Trainer`` that updates on each device and sums over all workers; see `ClippingTrainer`."""
        if clip_norm is not None:
            return ClippingTrainer(params, optimizer, optimizer_params, clip_norm)
        return gluon.Trainer(params, optimizer, optimizer_params, update_on_kvstore=False)

    def broadcast_parameters(self, net: Any, *args: Any, statistics: bool = True) -> None:
        """Copy the parameters of rank 0, of a gluon.Block or lists of np.ndarray, to all workers, in place; blocks.

        If shapes of a Block are unknown, it is called with one row of `args`, arrays or lists of arrays (n, ...), where
        n may be 0. With ``statistics=False``, batch norm's running statistics stay: after a checkpoint, each worker has
        its own. Raises `JobError` if shapes or dtypes differ, ValueError if the call fails.
        """

    def allreduce_counts(self, counts: Iterable[tuple[float, int]]) -> tuple[float, int]:
        """Sum pairs (correct rows, rows) over all workers; blocks. Raises `Stopped` after a signal to any worker."""
        correct, rows = 0.0, 0
        for more, size in takewhile(lambda _: not self._received_signal(), counts):
            correct, rows = correct + more, rows + size
        counted = self.allgather((correct, rows), 'an evaluation')
        if self.pending_signal():
            raise Stopped(self.pending_signal())
        return sum(correct for correct, _ in counted), sum(rows for _, rows in counted)

    def allgather_async(self, numbers: list) -> Callable[[], list]:
        """Send at most 63 numbers to all workers; return a function that waits, and returns each worker's, by rank."""
        return lambda: [numbers]

    def allgather(self, value: Any, what: str = '') -> list:
        """Return the value of each worker, by rank; blocks. `what`, equal on all, names the exchange in messages."""
        return [value]

    def on_rank_0(self, function: Callable[[], Any]) -> Any:
        """Call a function on rank 0 and return its result on all workers; blocks.

        With several workers, its ValueError or OSError becomes a `JobError` on all.
        """
        return self._call(function, 1)[0]

    def on_all_ranks(self, function: Callable[[], Any]) -> list:
        """Call a function on every worker and return all results; blocks. Errors as for `on_rank_0`."""
        return self._call(function, self.size)

    def _call(self, function: Callable[[], Any], num_workers: int) -> list:
        if self.size == 1:
            return [function()]
        result = line = None
        if self.rank < num_workers:
            try:
                result = function()
            except (ValueError, OSError) as error:
                line = str(error)
        results, lines = zip(*self.allgather((result, line))[:num_workers])
        for rank, line in enumerate(lines):
            if line is not None:
                raise InputError(line if len(set(lines)) == 1 else f'{self._name(rank)}: {line}')
        return list(results)

    def check_equal(self, facts: dict[str, Any], remedy: str = SAME_PROGRAM) -> None:
        """Raise `JobError`, with a remedy, on all workers if a value differs between them; blocks."""
        first, *others = self.allgather(facts)
        for rank, other in enumerate(others, 1):
            for name in {**first, **other}:
                if first.get(name) != other.get(name):
                    raise InputError(f'{name} is {first.get(name)} on {self._name(0)} and {other.get(name)} on '
                                     f'{self._name(rank)}: {remedy}')

    def pending_signal(self) -> int:
        """Return the signal that the workers have exchanged, at the same batch on all, or 0; does not block."""
        return self._received_signal()

    def _received_signal(self) -> int:
        return self._signals.received if self._signals else 0

    def _name(self, rank: int) -> str:
        return f'worker {rank} ({self.hosts[rank]})'


class ThisProcess(Workers):
    """This process alone, the only worker."""


def checksum(arrays: Iterable) -> int:
    """Return a checksum of the values of MXNet arrays; blocks."""
    value = 0
    for array in arrays:
        value = zlib.crc32(array.asnumpy().tobytes(), value)
    return value
