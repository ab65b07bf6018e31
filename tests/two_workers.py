"""Two workers, of which only one exists."""
from types import SimpleNamespace

from gluon_mgpu.parallel.workers import Workers


class OfTwo(Workers):
    """Worker `rank` of two. `of_other` maps the value that this one sends to that of the other."""

    size = 2

    def __init__(self, rank=0, of_other=lambda value: value):
        super().__init__(SimpleNamespace(received=0))
        self.rank, self.of_other = rank, of_other

    def allgather(self, value, what=''):
        values = [value, self.of_other(value)]
        return values[::-1] if self.rank else values

    def on_rank_0(self, function):
        return None if self.rank else function()


class Shard(list):
    """Batches that are marked as the shard of worker 0 of two."""

    shard = (0, 2)
