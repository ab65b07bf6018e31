"""What else is to happen during a run: curves, timelines, checkpoints, clocks."""
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .run import Run


class Hook:
    """What else is to happen during a run: a subclass overrides what it needs. `run` is the `Run`."""

    def begun(self, run: Run) -> None:
        """Called once, before the first epoch: `run.net` and `run.trainer` are known, nothing has been trained."""

    def start(self, run: Run) -> None:
        """Called before the first batch of an epoch; the devices are idle.

        Parameters
        ----------
        run : Run
            The run that goes on.
        """

    def after_batch(self, run: Run) -> None:
        """Called when a batch has been started on the devices, which may still be computing.

        Parameters
        ----------
        run : Run
            The run that goes on.
        """

    def trained(self, run: Run) -> None:
        """Called when all batches of an epoch are done, before evaluation; the devices are idle.

        Parameters
        ----------
        run : Run
            The run that goes on.
        """

    def evaluated(self, run: Run) -> None:
        """Called when the epoch is in the history.

        Parameters
        ----------
        run : Run
            The run that goes on.
        """

    def ended(self, run: Run) -> None:
        """Called once when the run ends, also by an error or Ctrl-C."""
