"""The progress bar of a run."""
from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm


class Progress:
    """A progress bar that counts batches over all epochs of a run; shown only on a terminal, and not if `quiet`."""

    def __init__(self, quiet: bool):
        self._quiet = quiet
        self._bar: Any = None

    def begin_epoch(self, text: str, done: int, total: int) -> None:
        """Show `text` before the bar; on the first call, create the bar with `done` of `total` batches."""
        if self._bar is None:
            self._bar = tqdm(total=total, unit='batch', leave=False, initial=done, smoothing=0.05,
                             disable=True if self._quiet or sys.stderr is None else None, dynamic_ncols=True)
        self._bar.set_description(text, refresh=False)

    def advance(self, num_batches: int, loss: float, images_per_second: float) -> None:
        """Count batches that the devices have finished, and show their loss and speed."""
        if num_batches and not self._bar.disable:
            self._bar.set_postfix_str(f'loss {loss:.3f}, {images_per_second:,.0f} images/s', refresh=False)
        self._bar.update(num_batches)

    def close(self) -> None:
        """Remove the bar from the screen."""
        if self._bar is not None:
            self._bar.close()
