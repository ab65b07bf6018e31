"""Several processes that train one network through Horovod, on one machine or many."""
from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy

from ..base.nested import leaves, refill
from ..base.program import InputError, JobError, clear_engine_errors, warn
from ..devices.gpus import gpu_of_worker, num_mxnet_gpus
from ..mxnet_setup.compat import MXNET_MAJOR, assign, autograd, mx, npx, running_statistics, zeros
from ..mxnet_setup.installation import GET_HOROVOD
from ..parallel.workers import SAME_PROGRAM, Workers
from .trainer import HorovodTrainer

# Horovod identifies operations by their names and caches metadata for each name, so a few names are used in turn. Two
# pending operations must not have the same name
NUM_NAMES = 64
CONTROL = mx.cpu(1)  # for exchanging values; on the training device they would wait for its queue
DEFAULTS = {  # of Horovod's settings
    'HOROVOD_LOG_LEVEL': 'fatal',  # this package prints its own messages
    'HOROVOD_CYCLE_TIME': '3',     # ms between two checks for arrays to sum; each check takes time from a core
}


def check_horovod() -> None:
    """Raise ValueError, with the remedy, if Horovod is missing or does not work with this MXNet."""
    if MXNET_MAJOR >= 2:
        raise ValueError(f'Horovod does not support MXNet {mx.__version__}: use MXNet 1.9.1')
    try:
        importlib.import_module('horovod.mxnet')
    except (ImportError, OSError) as error:  # OSError: a library that it was built with is missing
        raise ValueError(f'Horovod is not built for this MXNet ({error}): {GET_HOROVOD}') from None


class HorovodWorkers(Workers):
    """The workers of a job that ``horovodrun`` has started, seen from this one; a context manager.

    Source: Horovod's documentation for MXNet, where each worker reads its own data and gradients are averaged. Here,
    each takes its shard of the same batches, gradients are summed, and updates divided by the total batch size.

    The methods are as for `Workers`; `signals` are those of this process. Messages about other workers begin with
    `program`. A machine's workers have the devices ``gpu(0)``, ``gpu(1)`` and so on; ``cpu(0)`` without GPUs. An
    exchange that takes longer than ``GLUON_MGPU_EXCHANGE_TIMEOUT``, by default 600 seconds, ends the job.
    """

    def __init__(self, signals: Any = None, program: str = 'gluon_mgpu'):
        super().__init__(signals)
        self.signals = SimpleNamespace(received=0)  # after each `allgather`, that of any worker
        check_horovod()
        if 'HOROVOD_RANK' not in os.environ:  # each process would train alone
            raise ValueError('Horovod has not started this process: start it with horovodrun -np 2 python ...')
        self._time_limit = float(os.environ.get('GLUON_MGPU_EXCHANGE_TIMEOUT', 600))
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)
        self._hvd = hvd = importlib.import_module('horovod.mxnet')
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()
        self.device = mx.gpu(gpu_of_worker(hvd.local_rank())) if num_mxnet_gpus() else mx.cpu(0)
        self._program = program
        self._num_sums, self._num_trainers = count(), count()
        self._sums: deque = deque()  # results of `allreduce`, the newest NUM_NAMES

    def __enter__(self) -> HorovodWorkers:
        return self

    def __exit__(self, kind: object, error: Any, trace: object) -> None:
        if isinstance(error, JobError) and error.on_all_ranks:
            error.reported = self.rank != 0  # so that only rank 0 prints it
            all_end = True
        else:
            all_end = error is None or (isinstance(error, SystemExit) and not error.code)
        if all_end:
            try:
                with self.time_limit('the end of the program'):
                    npx.waitall()  # for the queued sums, which end because all workers have queued the same ones
                return
            except mx.MXNetError as caught:
                error = caught
        self._end_job(error)

    def _end_job(self, error: Any) -> None:
        """End the exchanges of all workers after an error of this one, or of one that is lost, and say which."""
        lost = isinstance(error, RuntimeError) and any(
            name in str(error) for name in ('Horovod has been shut down', 'gloo'))
        what = ': another worker has failed, was stopped or has ended its program' if lost else ' has failed'
        line = f'worker {self.rank}{what}{self.resume_hint}'
        if self.rank < 2 or not lost:  # rank 1 if rank 0 is lost
            warn(f'{self._program}: {line}')  # at once: MXNet may crash when many sums fail
        self._hvd.shutdown()
        clear_engine_errors()
        if lost:
            time.sleep(2)  # horovodrun ends all when the first has ended: let the one that failed print why
            raise JobError(line, reported=True) from None
        if isinstance(error, mx.MXNetError):
            raise error

    def extend_allreduce(self, algorithm: Callable) -> Callable:
        def over_all_workers(data: list) -> None:
            algorithm(data)
            self.allreduce(data[0])
            for array in data[1:]:
                data[0].copyto(array)
        return over_all_workers

    def allreduce(self, array: Any) -> Any:
        # The sums of a worker without rows wait for nothing, so hundreds could be pending. Wait for names to be free
        if len(self._sums) == NUM_NAMES:
            with self.time_limit('the sums of the gradients'):
                for _ in range(NUM_NAMES // 2):
                    self._sums.popleft().wait_to_read()
        self._sums.append(array)
        return self.sum_by_name(array, f'sum.{next(self._num_sums) % NUM_NAMES}')

    def sum_by_name(self, array: Any, name: str, priority: int = 0) -> Any:
        """Sum the arrays that all workers pass under this name, in place, and return this one; does not block."""
        self._hvd.allreduce_(array, op=self._hvd.Sum, name=name, priority=priority)
        return array

    def trainer(self, params: Any, optimizer: str, optimizer_params: dict | None = None,
                clip_norm: float | None = None, update_on_kvstore: bool = False) -> Any:
        for param in params.values() if hasattr(params, 'values') else params:
            if len(param.list_ctx()) > 1:
                raise ValueError(f'{param.name} is on {param.list_ctx()}, but Horovod sums the gradients of one device '
                                 'for each worker: initialize the network on [workers.device]')
        return HorovodTrainer(self, next(self._num_trainers), params, optimizer, optimizer_params, clip_norm,
                              update_on_kvstore)

    def broadcast_parameters(self, net: Any, *args: Any, statistics: bool = True) -> None:
        if hasattr(net, 'collect_params'):
            params = net.collect_params().values()
            if any(param._deferred_init for param in params):  # get the shapes
                rows = [zeros((1, *X.shape[1:]), X.dtype, self.device) for X in leaves(args)]
                with autograd.predict_mode():
                    net(*refill(args, iter(rows)))
            left_out = [] if statistics else [id(param) for param in running_statistics(net)]
            arrays = [param.data() for param in params if id(param) not in left_out]
        else:
            arrays = net[0]
        npx.waitall()  # a backward pass of static shapes writes batch norm's statistics without the engine
        # Through the host, because Horovod cannot read weights that oneDNN has put into its own memory layout
        for array, value in zip(arrays, self.on_rank_0(lambda: [param.asnumpy() for param in arrays])):
            if not numpy.array_equal(array.asnumpy(), value):
                assign(array, value)

    def allgather(self, value: Any, what: str = 'an exchange of values') -> list:
        with CONTROL, self.time_limit(what):  # allgather_object creates its arrays on the current context
            gathered = self._hvd.allgather_object((value, self.own_signals.received), name=what)
        self.signals.received = max(self.signals.received, *(signum for _, signum in gathered))
        return [value for value, _ in gathered]

    def on_rank_0(self, function: Callable[[], Any]) -> Any:
        return self._call(function, 1)[0]

    def on_all_ranks(self, function: Callable[[], Any]) -> list:
        return self._call(function, self.size)

    def _call(self, function: Callable[[], Any], num_workers: int) -> list:
        result = line = None
        if self.rank < num_workers:
            try:
                result = function()
            except (ValueError, OSError) as error:
                line = str(error)
        results, lines = zip(*self.allgather((result, line), 'a result')[:num_workers])
        for rank, line in enumerate(lines):
            if line is not None:
                raise InputError(line if len(set(lines)) == 1 else f'worker {rank}: {line}')
        return list(results)

    def check_equal(self, facts: dict[str, Any], remedy: str = SAME_PROGRAM) -> None:
        first, *others = self.allgather(facts, 'a comparison')
        for rank, other in enumerate(others, 1):
            for name in {**first, **other}:
                if first.get(name) != other.get(name):
                    raise InputError(f'{name} is {first.get(name)} on worker 0 and {other.get(name)} on worker {rank}: '
                                     f'{remedy}')

    @contextlib.contextmanager
    def time_limit(self, what: str) -> Iterator[None]:
        """End the job if the exchange in the block does not end: the other workers may never take part in it."""
        timer = threading.Timer(self._time_limit, self._end, [what])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _end(self, what: str) -> None:
        place = f' ({self.place})' if self.place else ''
        warn(f'{self._program}: worker {self.rank} has waited {self._time_limit:g} s for the others in {what}{place}: '
             f'all workers must take the same steps, with as many batches and evaluations{self.resume_hint}')
        os._exit(1)  # the main thread is blocked
