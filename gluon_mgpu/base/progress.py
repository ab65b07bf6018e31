"""Progress bars, and lines above them."""
import sys
import threading

from tqdm import tqdm

from .program import show, warn

BAR = '{desc} |{bar}| {n_fmt}/{total_fmt}'


class ProgressBar(tqdm):
    """A progress bar of tqdm for one process, shown only if stderr is a terminal.

    tqdm's own lock is for several; from Python 3.14 on, it starts a process, which would outlive a killed worker.
    """

    def __init__(self, shown: bool = True, **options):
        super().__init__(disable=None if shown and sys.stderr is not None else True, **options)

    def display(self, *args, **options) -> None:
        """Show the bar, with the cursor at its beginning: at its end, the ^C of a terminal would begin a new line."""
        super().display(*args, **options)
        self.fp.write('\r')


ProgressBar.set_lock(threading.RLock())


class Progress:
    """The progress bar of a run, one for each epoch; only on a terminal, not if `quiet`, and not above rank 0."""

    def __init__(self, quiet: bool, rank: int = 0):
        self._rank, self._quiet = rank, quiet or rank > 0
        self._bar = ProgressBar(shown=False)

    def begin_epoch(self, text: str, done: int, total: int) -> None:
        """Show `text` and a bar with `done` of `total` batches; `total` is 0 if unknown."""
        self._bar = ProgressBar(desc=text, initial=done, total=total or None, leave=False, smoothing=0.05,
                                bar_format=BAR, shown=not self._quiet, dynamic_ncols=True)

    def advance(self, num_batches: int, loss: float, images_per_second: float) -> None:
        """Count batches that the devices have finished, and show their loss and speed."""
        left = ', {remaining} left' if self._bar.total else ''
        self._bar.bar_format = f'{BAR}, loss {loss:.3f}, {images_per_second:,.0f} images/s{left}'
        self._bar.update(num_batches)

    def print(self, *lines: str) -> None:
        """Print lines above the bar, unless `quiet`."""
        if not self._quiet:
            with ProgressBar.external_write_mode():
                show(*lines)

    def warn(self, line: str) -> None:
        """Print a line above the bar on stderr, even if `quiet`."""
        if self._rank == 0:
            with ProgressBar.external_write_mode(file=sys.stderr):
                warn(line)

    def close(self) -> None:
        """Remove the bar from the screen."""
        self._bar.close()
