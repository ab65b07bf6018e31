"""The book's timer and accumulator."""
import time
from itertools import accumulate


class Timer:
    """Records multiple running times, in seconds. Source: D2L 12.5, ``Timer``."""

    def __init__(self):
        self.times: list[float] = []
        self.start()

    def start(self) -> None:
        """Begin the time that the next `stop` records."""
        self.started = time.perf_counter()

    def stop(self) -> float:
        """Stop the timer, record the time since `start` and return it. Does not wait for devices."""
        self.times.append(time.perf_counter() - self.started)
        return self.times[-1]

    def avg(self) -> float:
        """Return the average of the recorded times."""
        return sum(self.times) / len(self.times)

    def sum(self) -> float:
        """Return the sum of the recorded times."""
        return sum(self.times)

    def cumsum(self) -> list[float]:
        """Return the running sums of the recorded times."""
        return list(accumulate(self.times))


class Accumulator:
    """Sums over `n` variables. Source: D2L 23.7, ``Accumulator``."""

    def __init__(self, n: int):
        self.data = [0.0] * n

    def add(self, *args) -> None:
        """Add one number to each sum; blocks until an array argument is computed."""
        self.data = [a + float(b) for a, b in zip(self.data, args)]

    def reset(self) -> None:
        """Set the sums to zero."""
        self.data = [0.0] * len(self.data)

    def __getitem__(self, idx: int) -> float:
        return self.data[idx]
