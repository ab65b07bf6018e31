"""Early stopping."""
from __future__ import annotations

from ..base.checks import integer
from .callback import Callback
from .run import Run


class Patience(Callback):
    """Callback that stops a run when the test accuracy has not exceeded its maximum for `num_epochs` epochs.

    It decides by `Run.history` alone, so all workers and a resumed run decide the same.
    """

    def __init__(self, num_epochs: int):
        self.num_epochs = integer('patience', num_epochs, minimum=1)

    def should_stop(self, run: Run) -> bool:
        """Return True if the first epoch with the highest accuracy is `num_epochs` back."""
        accuracies = [epoch.test_acc for epoch in run.history]
        return len(accuracies) - 1 - accuracies.index(max(accuracies)) >= self.num_epochs
