"""Fake clock that a test moves by hand, to replace a module's ``time``."""


class Clock:
    """Wall-clock seconds, and CPU seconds of Python's thread."""

    def __init__(self):
        self.wall = self.cpu = 0.0

    def perf_counter(self) -> float:
        return self.wall

    def thread_time(self) -> float:
        return self.cpu
