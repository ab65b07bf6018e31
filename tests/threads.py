"""Several workers, each a thread of this process."""
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, np, npx
from gluon_mgpu.parallel.workers import Workers


class Threads(Workers):
    """Worker `rank` of several, each of which is a thread, with the caller's semantics, for `function(workers)`."""

    def __init__(self, rank, barrier, arrays):
        super().__init__()
        self.rank, self.size, self._barrier, self._arrays = rank, len(arrays), barrier, arrays

    def allreduce(self, array):
        self._arrays[self.rank] = array.asnumpy()
        self._barrier.wait(60)
        total = sum(self._arrays)
        self._barrier.wait(60)
        array[:] = np.array(total, dtype=array.dtype, ctx=array.ctx)
        return array

    @staticmethod
    def run(num_workers, function):
        barrier, arrays = threading.Barrier(num_workers), [None] * num_workers
        semantics = npx.is_np_shape(), npx.is_np_array()
        with ThreadPoolExecutor(num_workers, initializer=npx.set_np, initargs=semantics) as pool:
            return list(pool.map(lambda rank: function(Threads(rank, barrier, arrays)), range(num_workers)))


# MXNet 2 traces with arrays; no worker trains on it, because Horovod needs MXNet 1.9
without_rows = pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 cannot trace a network without rows')
