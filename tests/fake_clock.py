"""A clock that stands still until a test moves it: in place of a module's ``time``."""


class Clock:
    """Seconds on the wall, and seconds that Python's thread has been running."""

    def __init__(self):
        self.wall = self.cpu = 0.0

    def perf_counter(self) -> float:
        return self.wall

    def thread_time(self) -> float:
        return self.cpu
