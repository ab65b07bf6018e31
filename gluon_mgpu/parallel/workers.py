"""The processes that train one network, seen from one of them; `HorovodWorkers` has the same methods for several."""
from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from ..mxnet_setup.compat import gluon
from .clipping import ClippingTrainer

SAME_PROGRAM = 'start all workers with the same program, flags, versions and data'


class Workers:
    """The processes that train together, seen from this one, `rank` of `size`.

    Here they are this process alone, and nothing is exchanged; `HorovodWorkers` overrides the methods.
    ``own_signals.received`` is the signal that this process has received, 0 if none; ``signals.received`` is one that
    all of them know of.
    """

    rank, size = 0, 1
    device: Any = None  # None for a process alone, which may have several
    place = ''          # where this worker is, such as 'epoch 1', for messages
    time_limit: Any = contextlib.nullcontext  # for waits for other workers, with a name for messages
    resume_hint = ''    # end of the message about a lost worker

    def __init__(self, signals: Any = None):
        self.signals = self.own_signals = signals or SimpleNamespace(received=0)

    @property
    def shard(self) -> tuple[int, int]:
        """This worker's shard of each batch: (rank, size)."""
        return self.rank, self.size

    def extend_allreduce(self, algorithm: Callable) -> Callable:
        """Extend an allreduce, which sums a list of this worker's arrays in place, to all workers; neither blocks."""
        return algorithm

    def allreduce(self, array: Any) -> Any:
        """Sum an array over all workers, in place, and return it; rarely blocks. All call this in the same order."""
        return array

    def trainer(self, params: Any, optimizer: str, optimizer_params: dict | None = None,
                clip_norm: float | None = None, update_on_kvstore: bool = False) -> Any:
        """Return a ``gluon.Trainer`` that sums gradients over all workers, and limits the norm if `clip_norm`."""
        if clip_norm is not None:
            return ClippingTrainer(params, optimizer, optimizer_params, clip_norm, update_on_kvstore)
        return gluon.Trainer(params, optimizer, optimizer_params, update_on_kvstore=update_on_kvstore)

    def broadcast_parameters(self, net: Any, *args: Any, statistics: bool = True) -> None:
        """Copy the parameters of rank 0, of a gluon.Block or lists of np.ndarray, to all workers, in place; blocks.

        If shapes of a Block are unknown, it is called with one row of `args`, arrays or lists of arrays (n, ...), where
        n may be 0. With ``statistics=False``, batch norm's running statistics stay: after a checkpoint, each worker has
        its own.
        """

    def allgather(self, value: Any, what: str = '') -> list:
        """Return the value of each worker, by rank; blocks. `what`, equal on all, names the exchange in messages."""
        return [value]

    def on_rank_0(self, function: Callable[[], Any]) -> Any:
        """Call a function on rank 0 and return its result on all workers; blocks.

        With several workers, its ValueError or OSError becomes an `InputError` on all.
        """
        return function()

    def on_all_ranks(self, function: Callable[[], Any]) -> list:
        """Call a function on every worker and return all results; blocks. Errors as for `on_rank_0`."""
        return [function()]

    def check_equal(self, facts: dict[str, Any], remedy: str = SAME_PROGRAM) -> None:
        """Raise `InputError`, with a remedy, on all workers if a value differs between them; blocks."""


def checksum(arrays: Iterable) -> int:
    """Return a checksum of the values of MXNet arrays; blocks."""
    value = 0
    for array in arrays:
        value = zlib.crc32(array.asnumpy().tobytes(), value)
    return value
