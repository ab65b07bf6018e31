"""What a run shows on the screen: a progress bar, and lines beside it."""
from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

from ..base.program import show


class Progress:
    """A progress bar of batches, over all epochs of a run; on a terminal only.

    Parameters
    ----------
    quiet : bool
        Show no bar, and only the lines of `warn`.
    silent : bool
        Show nothing at all.
    """

    def __init__(self, quiet: bool = False, silent: bool = False):
        self.quiet, self.silent = quiet or silent, silent
        self._bar: Any = None

    def begin(self, total: int, done: int) -> None:
        """Show the bar, if it is not there yet, of so many batches of which some are done.

        Parameters
        ----------
        total : int
            The batches of the whole run.
        done : int
            Those that are done already.
        """
        if self._bar is None:
            self._bar = tqdm(total=total, unit='batch', leave=False, initial=done, smoothing=0.05,
                             disable=True if self.quiet or sys.stderr is None else None, dynamic_ncols=True)

    def epoch(self, text: str) -> None:
        """Tell which epoch it is.

        Parameters
        ----------
        text : str
            What stands before the bar.
        """
        self._bar.set_description(text, refresh=False)

    def advance(self, num_batches: int, loss: float, images_per_second: float) -> None:
        """Count batches that the devices have finished.

        Parameters
        ----------
        num_batches : int
            Those finished since the last call.
        loss : float
            What is shown beside the bar, in nats.
        images_per_second : float
            Since the epoch began.
        """
        if num_batches and not self._bar.disable:
            self._bar.set_postfix_str(f'loss {loss:.3f}, {images_per_second:,.0f} images/s', refresh=False)
        self._bar.update(num_batches)

    def print(self, line: str) -> None:
        """Print a line beside the bar, unless the run is quiet; see `program.show`."""
        if not self.quiet:
            with tqdm.external_write_mode():
                show(line)

    def warn(self, line: str) -> None:
        """Print a line on stderr, beside the bar, also if the run is quiet."""
        if not self.silent and sys.stderr is not None:
            with tqdm.external_write_mode(file=sys.stderr):
                show(line, sys.stderr)

    def close(self) -> None:
        """Take the bar off the screen; `advance` may still be called."""
        if self._bar is not None:
            self._bar.close()
