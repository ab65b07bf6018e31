"""Several processes that train one network together, on one machine or many, through Horovod.

    horovodrun -np 4 -H a:2,b:2 python -m gluon_mgpu.scratch --horovod

Each worker has one device, takes its part of every batch, and sums gradients with the others.
"""
from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterable
from itertools import count, takewhile
from typing import Any

import numpy

from ..base.program import Stopped
from ..devices.gpus import gpu_of_worker, num_mxnet_gpus, uuid_of
from ..mxnet_setup.compat import assign, autograd, mx, np, npx
from ..parallel.flat import in_one_piece
from . import launchers
from .horovod_checks import check_horovod, check_own_gpus
from .watch import Watch
from .workers import Workers

NAMES = 64  # of sums, used in turn: Horovod plans those whose names it knows more quickly
TOLD = 64   # numbers that a worker can tell at once
HOST = mx.cpu(1)  # for what comes from the host: on a device it would wait for all work queued there


class HorovodWorkers(Workers):
    """All processes that a launcher has started, of which this is one; to be used as a context manager.

    Source: Horovod's documentation of its MXNet interface. There each worker reads its own part of the data and
    averages over workers; here all cut the same batches, and every update is divided by the total batch size.

    Parameters
    ----------
    fp16 : bool
        Send gradients as float16: half the bytes.
    signals : object with an attribute ``received``, optional
        Such as `StopSignals`: the signal that this worker has received, or 0.
    program : str
        How the line begins that tells of a worker that is lost.

    Attributes
    ----------
    rank, size, local_rank : int
        Which worker this is, of how many, and which of those on its machine.
    device : mx.Context
        ``gpu(local_rank)`` where MXNet sees GPUs, ``gpu(0)`` where it sees one alone, else ``cpu(0)``.

    Raises
    ------
    ValueError
        If Horovod is not there, the launcher has not told what it needs, or several workers were connected in this
        process before.
    """

    lag = 1
    _connected = False  # once in this process

    def __init__(self, fp16: bool = False, signals: Any = None, program: str = 'gluon_mgpu'):
        check_horovod()
        found, host = launchers.place() or launchers.Place('', 0, 1, 0), launchers.host()
        self.launcher = found.launcher
        if found.size > 1 and HorovodWorkers._connected:
            raise ValueError('Horovod cannot connect the workers a second time in one process: use the HorovodWorkers '
                             'made before, or start the job again')
        launchers.prepare(found)
        self._hvd = hvd = importlib.import_module('horovod.mxnet')
        HorovodWorkers._connected = True
        hvd.init()
        self.rank, self.size, self.local_rank = hvd.rank(), hvd.size(), found.local_rank
        self.device = mx.gpu(gpu_of_worker(self.local_rank)) if num_mxnet_gpus() else mx.cpu(0)
        self._compression = hvd.Compression.fp16 if fp16 else hvd.Compression.none
        super().__init__(signals)
        self._signum = 0  # the signal that a worker had received when values were last told or gathered
        self._names = count()
        told = self.allgather((host, uuid_of(self.device.device_id) if self.device.device_type == 'gpu' else ''))
        check_own_gpus(told, self.rank)
        self.hosts = [host for host, _ in told]
        self._watch = Watch(self.rank, self.allgather, launchers.address(), f'{host}, process {os.getpid()}', program,
                            lambda: self.advice)

    def __enter__(self) -> HorovodWorkers:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or getattr(error, 'agreed', False):
            npx.waitall()  # all have begun the same sums
            self.allgather(None)  # nobody leaves before the last
            self._watch.leave()
            self._hvd.shutdown()
            if error is not None:
                error.told = self.rank != 0  # type: ignore[attr-defined]
            return
        # The others wait for sums that will never come, and so may this process when Python ends
        self._watch.leave(failed=True)
        fuse = threading.Timer(3, os._exit, [1])
        fuse.daemon = True
        fuse.start()

    def allreduce(self, algorithm: Callable) -> Callable:
        """See `Workers.allreduce`."""
        def over_all_workers(data: list) -> None:
            algorithm(data)
            self._sum(data[0], 'gradient', self._compression)
            for array in data[1:]:
                data[0].copyto(array)
        return over_all_workers

    def trainer(self, params: list, optimizer: str, optimizer_params: dict) -> Any:
        """See `Workers.trainer`: a ``horovod.mxnet.DistributedTrainer``."""
        hvd, size = self._hvd, self.size

        class Trainer(hvd.DistributedTrainer):  # type: ignore[name-defined]
            def step(self, batch_size, ignore_stale_grad=False):
                super().step(batch_size / size, ignore_stale_grad)  # it divides by the number of workers, too

        named = {param.name: param for param in params}
        return Trainer(named, optimizer, optimizer_params, compression=self._compression)

    def broadcast_parameters(self, net: Any, X: Any) -> None:
        """See `Workers.broadcast_parameters`."""
        if hasattr(net, 'collect_params'):
            with autograd.predict_mode():
                net(np.zeros((1, *X.shape[1:]), dtype=X.dtype, ctx=self.device))  # its layers learn their shapes
            params = net.collect_params().values()
            own = {f'parameter {i}': p.data() for i, p in enumerate(params)}
            given = [p.data() for p in params if p.grad_req != 'null']
        else:
            own = {f'parameter {i}': array for i, array in enumerate(net[0])}
            given = in_one_piece(net[0])
        self.check_equal({name: f'{array.shape} {array.dtype}' for name, array in own.items()})
        # By way of the host: in the layouts that oneDNN gives weights once they are used, Horovod cannot read them
        for array, value in zip(given, self.on_rank_0(lambda: [own.asnumpy() for own in given])):
            assign(array, value)

    def allreduce_counts(self, counts: Iterable[tuple[float, int]]) -> tuple[float, int]:
        """See `Workers.allreduce_counts`."""
        told = self.allgather(super().allreduce_counts(takewhile(lambda _: not self._received(), counts)))
        if self._signum:
            raise Stopped(self._signum)
        return super().allreduce_counts(told)

    def allgather_async(self, numbers: list) -> Callable[[], list]:
        """See `Workers.allgather_async`."""
        own = numpy.zeros((self.size, TOLD))  # zeros in the rows of the others, so that the sum holds the row of each
        own[self.rank, :len(numbers) + 1] = self._received(), *numbers
        told = self._sum(np.array(own, dtype='float64', ctx=HOST), 'told')

        def of_all() -> list:
            rows = told.asnumpy()
            self._signum = max(self._signum, int(rows[:, 0].max()))  # what was gathered since may know of one
            return rows[:, 1:].tolist()
        return of_all

    def allgather(self, value: Any) -> list:
        """See `Workers.allgather`."""
        told = [(value, self._received())]
        if self.size > 1:
            with HOST:
                told = self._hvd.allgather_object(told[0], name='gather')
        self._signum = max(self._signum, *(signum for _, signum in told))
        return [value for value, _ in told]

    def pending_signal(self) -> int:
        """See `Workers.pending_signal`."""
        return self._signum

    def exchange_signal(self) -> int:
        """See `Workers.exchange_signal`."""
        self.allgather(None)
        return self._signum

    def _sum(self, array: Any, kind: str, compression: Any = None) -> Any:
        """Sum an array over all workers, in place; does not wait."""
        sent, dtype = compression.compress(array) if compression else (array, None)
        self._hvd.allreduce_(sent, op=self._hvd.Sum, name=f'{kind}.{next(self._names) % NAMES}')
        if sent is not array:
            array[:] = compression.decompress(sent, dtype)
        return array
