"""`Trainer` that sums gradients over all workers."""
from __future__ import annotations

from typing import Any

import numpy

from ..mxnet_setup.compat import fill, mx
from ..parallel.trainer import Trainer
from ..parallel.workers import checksum


class HorovodTrainer(Trainer):
    """`Trainer` for the device of this worker, which takes the same step as those of the other workers.

    Horovod identifies a sum by the number of the Trainer and that of the parameter in it. Names of parameters depend on
    the layers that a worker has created before. In the first step, the workers compare their Trainers.
    """

    def __init__(self, workers: Any, number: int, params: list, optimizer: str, optimizer_params: dict):
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        if workers.size > 1 and isinstance(self._optimizer, mx.optimizer.SGLD):
            raise ValueError('SGLD draws other random numbers on each worker: use another optimizer')
        self._workers, self._kind, self._compared = workers, f'Trainer {number}', workers.size == 1

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Do the same as `Trainer`, and keep the workers equal if only some have used a parameter."""
        if ignore_stale_grad:
            self._update_on_all()
        super().step(batch_size, ignore_stale_grad)

    def allreduce_grads(self) -> None:
        """Do the same as ``gluon.Trainer``, for an `update` that possibly ignores stale gradients."""
        self._update_on_all()
        super().allreduce_grads()

    def _update_on_all(self) -> None:
        """Let all workers update the parameters that any worker has used; those that have not add the gradient 0."""
        trained = [(param, param.list_data()[0]) for param in self._params if param.grad_req != 'null']
        fresh_on_all = self._workers.allgather([weight._fresh_grad for _, weight in trained])
        for (param, weight), fresh in zip(trained, zip(*fresh_on_all)):
            if any(fresh) and not weight._fresh_grad:
                if param.grad_req == 'write':
                    fill(param.list_grad()[0], 0)
                weight._fresh_grad = True

    def _allreduce_grads(self) -> None:
        super()._allreduce_grads()  # checks the device
        if not self._compared:
            self._compare()
        trained = [(i, param.list_grad()[0]) for i, param in enumerate(self._params) if param.grad_req != 'null']
        self._workers._record(f'an exchange of {len(trained)} gradients')
        for i, gradient in trained if self._workers.size > 1 else ():
            self._workers._allreduce(gradient, self._kind, i)

    def _group(self) -> bool:
        return False  # each parameter is updated while others are still summed

    def _compare(self) -> None:
        """Raise JobError on all workers unless their Trainers are equal, with equal parameters."""
        self._compared, optimizer = True, self._optimizer
        self._workers.check_equal({
            'the Trainer': self._kind, 'its optimizer': type(optimizer).__name__,
            **{f'{name} of the optimizer': value for name, value in vars(optimizer).items()
               if isinstance(value, (bool, int, float))},
            **{f'parameter {i} of the Trainer': f'{param.shape} {numpy.dtype(param.dtype)}, {param.grad_req}'
               for i, param in enumerate(self._params)}})
        checksums = {f'the checksum of parameter {i} of the Trainer': checksum(param.list_data()[:1])
                     for i, param in enumerate(self._params)}
        self._workers.check_equal(checksums, 'call workers.broadcast_parameters(net) before the first step')
