"""Limits of time and memory for code that could wait for ever or fill the memory."""
import contextlib
import resource
import signal
from pathlib import Path


@contextlib.contextmanager
def limits(seconds: int = 60, memory: int = 2**32):
    """Raise TimeoutError after some seconds, and MemoryError if this process takes so many bytes more."""
    def end(*_):
        raise TimeoutError('the program does not end')

    before, handler = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, end)
    pages = int(Path('/proc/self/statm').read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, before[1]))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)
