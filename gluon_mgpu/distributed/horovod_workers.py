"""Several processes that train one network through Horovod, on one machine or many."""
from __future__ import annotations

import atexit
import importlib.util
import os
import platform
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy

from ..base.nested import leaves, refill
from ..base.program import BAD_INPUT, JobError, clear_engine_errors, reason, warn
from ..devices.gpus import gpu_of_worker, num_mxnet_gpus, uuid_of
from ..mxnet_setup.compat import MXNET_MAJOR, assign, autograd, mx, np, npx, running_statistics, zeros
from ..mxnet_setup.installation import GET_HOROVOD
from ..parallel.workers import Workers
from . import launchers
from .trainer import HorovodTrainer
from .watch import BEAT, Watchdog, silence

# Horovod identifies operations by their names and caches metadata for each name, so a few names are used in turn. Two
# pending operations must not have the same name; see `HorovodWorkers.allreduce`
NUM_NAMES = 64
MAX_NUMBERS = 64  # in one `allgather_async`, including the signal
CONTROL = mx.cpu(1)  # for exchanging losses and signals; on the training device they would wait for its queue


def check_horovod() -> None:
    """Raise ValueError, with the remedy, if Horovod is missing or does not work with this MXNet."""
    if MXNET_MAJOR >= 2:
        raise ValueError(f'Horovod does not support MXNet {mx.__version__}: use MXNet 1.9.1')
    if importlib.util.find_spec('horovod') is None:
        raise ValueError(f'Horovod is not installed: {GET_HOROVOD}')
    try:
        importlib.import_module('horovod.mxnet')
    except (ImportError, OSError) as error:  # OSError: a library that it was built with is missing
        raise ValueError(f'Horovod is not built for this MXNet ({error}): {GET_HOROVOD}') from None


class HorovodWorkers(Workers):
    """The workers of a Horovod job, seen from this one; a context manager.

    Source: Horovod's documentation for MXNet, where each worker reads its own data and gradients are averaged. Here,
    each takes its shard of the same batches, gradients are summed, and updates divided by the total batch size.

    `signals` and the methods are as for `Workers`. The message about a lost worker begins with `program`. A machine's
    workers have the devices ``gpu(0)``, ``gpu(1)`` and so on; ``gpu(0)`` if each sees one; ``cpu(0)`` without GPUs.
    """

    _watchdog: Any = None
    _has_left = False  # True from the end of the with block
    _initialized = False  # True once this process has called hvd.init, which can connect workers only once

    def __init__(self, signals: Any = None, program: str = 'gluon_mgpu'):
        info = launchers.launch_info()
        self.launcher = info.launcher
        host = os.environ.get('HOROVOD_HOSTNAME') or platform.node()  # before `rendezvous` changes the variable
        if info.size > 1 and HorovodWorkers._initialized:
            raise ValueError('Horovod can connect workers only once per process: use one HorovodWorkers for all '
                             'training, or start the job again')
        try:
            check_horovod()
            silence()  # an error after the workers are connected would look like one of Horovod on the others
            launchers.rendezvous(info)
        except ValueError as error:
            raise ValueError(f'worker {info.rank} ({host}): {error}' if info.size > 1 else str(error)) from None
        self._hvd = hvd = importlib.import_module('horovod.mxnet')
        HorovodWorkers._initialized = True
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()
        # hvd.local_rank() is 0 except under horovodrun, see `launchers.rendezvous`
        self.device = mx.gpu(gpu_of_worker(info.local_rank)) if num_mxnet_gpus() else mx.cpu(0)
        super().__init__(signals)
        self._thread = threading.get_ident()
        self._signum = 0  # the signal that all workers know of, 0 if none
        self._numbers: dict[str, count] = defaultdict(count)  # of the operations of each kind
        self._sums: deque = deque()  # results of `allreduce`, the newest NUM_NAMES
        places = self.allgather((host, uuid_of(self.device.device_id) if self.device.device_type == 'gpu' else ''))
        self.hosts, uuids = zip(*places)
        self._check_own_gpu(uuids)
        self._watchdog = Watchdog(self.rank, self.allgather, launchers.address(), f'{host}, process {os.getpid()}',
                                  lambda line, ends: warn(f'{program}: {line}; the job ' + (
                                      f'ends{self.resume_hint}' if ends else 'continues')))
        atexit.register(self.__exit__, None, None, None)  # of a program without a with block

    def __enter__(self) -> HorovodWorkers:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._has_left:
            return
        self._has_left = True
        if error is None or getattr(error, 'on_all_ranks', False) or (isinstance(error, SystemExit) and not error.code):
            self.record('the end of its program', str(error) if isinstance(error, JobError) else '')
            npx.waitall()  # wait for the queued allreduces, which end because all workers have queued the same ones
            self._allgather(None, 'end')  # wait for the slowest worker
            self._watchdog.leave()
            self._hvd.shutdown()
            if isinstance(error, JobError):
                error.reported = self.rank != 0  # so that only rank 0 prints it
            return
        if isinstance(error, RuntimeError):  # another worker may be lost: then the watchdog names it and exits
            time.sleep(2 * BEAT)
        # The other workers may not have failed. They would block in an allreduce with this one, so make them exit
        self._watchdog.leave(failed=True)
        atexit.register(clear_engine_errors)  # of operations that wait for other workers, which this fails before:
        atexit.register(self._hvd.shutdown)
        if self.size > 1:  # exit by force after 3 s, because Horovod's shutdown at exit may block on pending allreduces
            timer = threading.Timer(3, os._exit, [1])
            timer.daemon = True
            timer.start()

    def extend_allreduce(self, algorithm: Callable) -> Callable:
        def over_all_workers(data: list) -> None:
            algorithm(data)
            self._allreduce(data[0], 'gradients')
            for array in data[1:]:
                data[0].copyto(array)
        return over_all_workers

    def allreduce(self, array: Any) -> Any:
        # The sums of a worker without rows wait for nothing, so hundreds could be pending. Wait for the name to be free
        if len(self._sums) == NUM_NAMES:
            self._sums.popleft().wait_to_read()
        self._sums.append(array)
        return self._allreduce(array, 'sums')

    def trainer(self, params: Any, optimizer: str, optimizer_params: dict, clip_norm: float | None = None) -> Any:
        for param in params.values() if hasattr(params, 'values') else params:
            if len(param.list_ctx()) > 1:
                raise ValueError(f'{param.name} is on {param.list_ctx()}, but Horovod sums the gradients of one device '
                                 'for each worker: initialize the network on [workers.device]')
        return HorovodTrainer(self, next(self._numbers['Trainer']), params, optimizer, optimizer_params,
                              clip_norm)

    def broadcast_parameters(self, net: Any, *args: Any, statistics: bool = True) -> None:
        if hasattr(net, 'collect_params'):
            params = net.collect_params().values()
            if any(param._deferred_init for param in params):
                self._infer_shapes(net, args)
            left_out = [] if statistics else [id(param) for param in running_statistics(net)]
            arrays = [param.data() for param in params if id(param) not in left_out]
        else:
            arrays = net[0]
        npx.waitall()  # a backward pass of static shapes writes batch norm's statistics without the engine
        self.check_equal({f'parameter {i}': f'{array.shape} {array.dtype}' for i, array in enumerate(arrays)})
        # Through the host, because Horovod cannot read weights that oneDNN has put into its own memory layout
        for array, value in zip(arrays, self.on_rank_0(lambda: [param.asnumpy() for param in arrays])):
            if not numpy.array_equal(array.asnumpy(), value):
                assign(array, value)

    def _infer_shapes(self, net: Any, args: tuple) -> None:
        try:
            rows = [zeros((1, *X.shape[1:]), X.dtype, self.device) for X in leaves(args)]
            with autograd.predict_mode():
                net(*refill(args, iter(rows)))
        except (AssertionError, AttributeError, TypeError, ValueError, mx.MXNetError) as error:
            raise ValueError(f'the network cannot get its shapes from the first batch ({reason(error)}): call it once, '
                             'with all of its inputs, before training') from error

    def allgather_async(self, numbers: list) -> Callable[[], list]:
        own = numpy.zeros((self.size, MAX_NUMBERS))  # each worker fills its own row, and the sum has the rows of all
        own[self.rank, :len(numbers) + 1] = self._received_signal(), *numbers
        rows_of_all = self._allreduce(np.array(own, dtype='float64', ctx=CONTROL), 'numbers')

        def wait() -> list:
            rows = rows_of_all.asnumpy()
            self._signum = max(self._signum, int(rows[:, 0].max()))  # an `allgather` in between may have set it
            return rows[:, 1:1 + len(numbers)].tolist()
        return wait

    def allgather(self, value: Any, what: str = 'an exchange of values') -> list:
        self.record(what)
        return self._allgather(value, what)

    def _allgather(self, value: Any, name: str) -> list:
        gathered = [(value, self._received_signal())]
        if self.size > 1:
            with CONTROL:  # allgather_object creates its arrays on the current context
                gathered = self._hvd.allgather_object(gathered[0], name=name)
        self._signum = max(self._signum, *(signum for _, signum in gathered))
        return [value for value, _ in gathered]

    def pending_signal(self) -> int:
        return self._signum

    def _check_own_gpu(self, uuids: Sequence[str]) -> None:
        """Raise JobError, which rank 0 reports, if two workers share a GPU: NCCL would hang. A CPU has the UUID ''."""
        for rank, uuid in enumerate(uuids):
            if uuid and uuids.index(uuid) != rank:
                raise JobError(f'workers {uuids.index(uuid)} and {rank} have the same GPU ({self.hosts[rank]}, UUID '
                               f'{uuid}): start at most one worker per GPU', BAD_INPUT, on_all_ranks=True,
                               reported=self.rank != 0)

    def _allreduce(self, array: Any, kind: str, number: int | None = None) -> Any:
        """Sum an array over all workers, in place, and return it; does not block. Smaller numbers are summed first."""
        priority = -(number or 0)
        if number is None:
            self.record(f'an exchange of {kind}')
            number = next(self._numbers[kind]) % NUM_NAMES
        self._hvd.allreduce_(array, op=self._hvd.Sum, name=f'{kind}.{number}', priority=priority)
        return array

    def record(self, exchange: str, place: str | None = None) -> None:
        """Note an exchange, to end the job if another worker takes part in another one instead."""
        # Not those of other threads, as in the backward pass of an ``autograd.Function``, which come in any order
        if self._watchdog and threading.get_ident() == self._thread:
            number = next(self._numbers[exchange]) + 1
            self._watchdog.record(exchange, (self.place or f'number {number}') if place is None else place)
