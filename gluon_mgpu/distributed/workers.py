"""The processes that train one network together, on several machines or one: here this process alone.

`horovod_workers.HorovodWorkers` is the same for several. What trains asks these methods, and need not know which it is.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..base.program import Stopped


class Workers:
    """One worker, that is, no others: nothing is waited for or sent.

    Parameters
    ----------
    signals : object with an attribute ``received``, optional
        Such as `StopSignals`: the signal that this process has received, or 0.

    Attributes
    ----------
    rank, size : int
        Which worker this is, from 0, and how many there are.
    hosts : sequence of str
        The machine of each worker.
    lag : int
        How many calls of `allgather_async` later one should ask what others told, so as not to wait for them.
    launcher : str
        What has started them, such as ``'srun'``; '' for none.
    advice : str
        What a line ends with that tells of a worker that is lost.
    """

    rank, size, lag = 0, 1, 0
    hosts: Sequence[str] = ('',)
    launcher = advice = ''

    def __init__(self, signals: Any = None):
        self._signals = signals

    @property
    def shard(self) -> tuple[int, int]:
        """Which part of each batch is this worker's: (rank, size)."""
        return self.rank, self.size

    def allreduce(self, algorithm: Callable) -> Callable:
        """Extend an allreduce over this worker's devices to those of all workers; itself it does not wait.

        Parameters
        ----------
        algorithm : callable
            Sums a list of arrays, one per device of this worker, in place.
        """
        return algorithm

    def trainer(self, params: list, optimizer: str, optimizer_params: dict) -> Any:
        """Return a ``gluon.Trainer`` of these parameters, which sums gradients over all workers.

        Parameters
        ----------
        params : list of gluon.Parameter
            What it updates.
        optimizer : str
            MXNet's name of it, such as ``'sgd'``.
        optimizer_params : dict
            Its settings.
        """
        from ..parallel.trainer import Trainer
        return Trainer(params, optimizer, optimizer_params)

    def broadcast_parameters(self, net: Any, X: Any) -> None:
        """Give all workers the parameters of the first; `X` is a batch, or part of one, to learn shapes from. Waits.

        Parameters
        ----------
        net : gluon.Block or list of lists of np.ndarray
            The network, or the parameters on each device; changed in place.
        X : np.ndarray, (n, ...)
            A batch, or this part of one, maybe without rows.

        Raises
        ------
        ValueError
            If another worker has another network.
        """

    def allreduce_counts(self, counts: Iterable[tuple[float, int]]) -> tuple[float, int]:
        """Sum counts of rows over all workers; waits.

        Parameters
        ----------
        counts : iterable of (float, int)
            How many rows are right, and how many there are, of a few batches at a time.

        Raises
        ------
        Stopped
            If a signal has reached a worker meanwhile.
        """
        correct, rows = 0.0, 0
        for right, size in counts:
            if self.size == 1 and self._received():  # several workers stop together
                raise Stopped(self._received())
            correct, rows = correct + right, rows + size
        return correct, rows

    def allgather_async(self, numbers: list) -> Callable[[], list]:
        """Tell all workers a few numbers, as many on each; does not wait.

        Returns
        -------
        callable
            Waits, and returns the numbers of each worker, in the order of their ranks.
        """
        return lambda: [numbers]

    def allgather(self, value: Any) -> list:
        """Return the value of each worker, in the order of their ranks; waits for all."""
        return [value]

    def on_rank_0(self, function: Callable[[], Any]) -> Any:
        """Call a function on the first worker only, and return on all what it returns; waits.

        Raises
        ------
        ValueError, OSError
            On all workers, if it does on the first.
        """
        result, error = self.allgather(_attempt(function) if self.rank == 0 else None)[0]
        if error is not None:
            raise agreed(error)
        return result

    def on_all_ranks(self, function: Callable[[], Any]) -> Any:
        """Call a function on every worker, and return this one's result; waits for all.

        Raises
        ------
        ValueError, OSError
            On all workers, if it does on one: which one is in the line.
        """
        result, error = _attempt(function)
        errors = self.allgather(error)
        lines = {str(error) for error in errors}
        for rank, error in enumerate(errors):
            if error is not None:
                raise agreed(error if len(lines) == 1 else ValueError(f'{self._name(rank)}: {error}'))
        return result

    def check_equal(self, facts: dict[str, Any]) -> None:
        """Refuse to go on if a worker's facts differ from those of the first; waits for all.

        Raises
        ------
        ValueError
            On all workers: which fact differs on which worker.
        """
        first, *others = self.allgather(facts)
        for rank, other in enumerate(others, 1):
            for name in {**first, **other}:
                if first.get(name) != other.get(name):
                    raise agreed(ValueError(
                        f'{name} is {first.get(name)} on {self._name(0)} and {other.get(name)} on {self._name(rank)}: '
                        'start all workers with the same program, flags, versions and data'))

    def pending_signal(self) -> int:
        """Return the signal that all workers know of, 0 for none. Does not wait.

        They tell each other whenever values are told or gathered; so it is the same on all after the same batch.
        """
        return self._received()

    def exchange_signal(self) -> int:
        """As `stop`, but first tell each other; waits for all workers."""
        return self._received()

    def _received(self) -> int:
        return self._signals.received if self._signals else 0

    def _name(self, rank: int) -> str:
        return f'worker {rank} ({self.hosts[rank]})'


def _attempt(function: Callable[[], Any]) -> tuple:
    try:
        return function(), None
    except (ValueError, OSError) as error:
        return None, error


def agreed(error: Exception) -> Exception:
    """Mark an error that all workers have, so that one tells it; returns it.

    Parameters
    ----------
    error : Exception
        Changed in place.
    """
    error.agreed = True  # type: ignore[attr-defined]
    return error
