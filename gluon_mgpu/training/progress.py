"""The progress bar of a run, and lines above it."""
from __future__ import annotations

import sys
from typing import Any

from ..base.program import show, warn
from ..base.progress_bar import ProgressBar


class Progress:
    """A progress bar that counts batches over all epochs of a run; shown only on a terminal, and not if `quiet`.

    Workers above rank 0 print nothing.
    """

    def __init__(self, quiet: bool, rank: int = 0):
        self._rank, self._quiet = rank, quiet or rank > 0
        self._bar: Any = None

    def begin_epoch(self, text: str, done: int, total: int) -> None:
        """Show `text` before the bar; on the first call, create the bar with `done` of `total` batches."""
        if self._bar is None:
            self._bar = ProgressBar(total=total, unit='batch', leave=False, initial=done, smoothing=0.05,
                                    disable=True if self._quiet or sys.stderr is None else None, dynamic_ncols=True)
        self._bar.set_description(text, refresh=False)

    def advance(self, num_batches: int, loss: float, images_per_second: float) -> None:
        """Count batches that the devices have finished, and show their loss and speed."""
        if not self._bar.disable:
            self._bar.set_postfix_str(f'loss {loss:.3f}, {images_per_second:,.0f} images/s', refresh=False)
        self._bar.update(num_batches)

    def print(self, line: str) -> None:
        """Print a line above the bar, unless `quiet`."""
        if not self._quiet:
            with ProgressBar.external_write_mode():
                show(line)

    def warn(self, line: str) -> None:
        """Print a line above the bar on stderr, even if `quiet`."""
        if self._rank == 0:
            with ProgressBar.external_write_mode(file=sys.stderr):
                warn(line)

    def close(self) -> None:
        """Remove the bar from the screen."""
        if self._bar is not None:
            self._bar.close()
