"""Callbacks of a run: their base class, and early stopping."""
from typing import Any

from ..base.arguments import integer
from .history import EpochResult


class Callback:
    """Base class for callbacks; override the methods you need. Each receives the `Run`.

    The order of a run's callbacks does not matter, because none may change parameters: a checkpoint could hold the
    changed ones. Keep others, such as a moving average, in a second network, and evaluate that. Other workers may have
    other callbacks, but all or none need a `CheckpointCallback`, for which they exchange values.
    """

    def train_begin(self, run: Any) -> None:
        """Called once, before the first epoch. `run.net` and `run.trainer` are set."""

    def epoch_begin(self, run: Any) -> None:
        """Called before the first batch of an epoch. The devices are idle."""

    def batch_end(self, run: Any) -> None:
        """Called when a batch has been queued on the devices, which may still be computing it."""

    def epoch_trained(self, run: Any) -> None:
        """Called after the last batch of an epoch, before evaluation. The devices are idle."""

    def should_stop(self, run: Any) -> bool:
        """Return True to make this epoch, the last in `run.history`, the last of the run.

        Also called when a run is resumed, not within an epoch. The run is complete if one on any worker returns True.
        """
        return False

    def epoch_end(self, run: Any) -> None:
        """Called after evaluation. `run.history` includes the epoch, and `run.complete` is up to date."""

    def train_end(self, run: Any) -> None:
        """Called once, when the run ends, also after an error or a signal."""


class Patience(Callback):
    """Callback that stops a run when the accuracy has not exceeded its maximum for `num_epochs` epochs."""

    def __init__(self, num_epochs: int):
        self.num_epochs = integer('patience', num_epochs, minimum=1)

    def should_stop(self, run: Any) -> bool:
        return epochs_since_best(run.history) >= self.num_epochs


def epochs_since_best(history: list[EpochResult]) -> int:
    """Return the number of epochs after the first one with the highest accuracy."""
    accuracies = [epoch.accuracy for epoch in history]
    return len(accuracies) - 1 - accuracies.index(max(accuracies))
