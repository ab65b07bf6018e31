"""``gluon.Trainer`` that sums gradients over all workers."""
from __future__ import annotations

from typing import Any

import numpy

from ..mxnet_setup.compat import mx, trainer_devices
from ..parallel.clipping import ClippingTrainer
from ..parallel.step import check_same, zero_unused_gradient
from ..parallel.workers import checksum


class HorovodTrainer(ClippingTrainer):
    """``gluon.Trainer`` for the device of this worker, which takes the same step as those of the other workers.

    Horovod identifies a sum by the numbers of the Trainer and of the parameter: names depend on the layers that a
    worker has created before. The first step raises JobError on all workers if settings, parameters or values differ.
    """

    def __init__(self, workers: Any, number: int, params: Any, optimizer: str, optimizer_params: dict,
                 clip_norm: float | None = None):
        super().__init__(params, optimizer, optimizer_params, clip_norm, kvstore=None)
        if workers.size > 1 and isinstance(self._optimizer, mx.optimizer.SGLD):
            raise ValueError('SGLD draws other random numbers on each worker: use another optimizer')
        self._workers, self._kind, self._compared = workers, f'Trainer {number}', False

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Do the same as ``gluon.Trainer``, and keep the workers equal if only some have used a parameter."""
        if ignore_stale_grad:
            self._update_on_all()
        super().step(batch_size, ignore_stale_grad)

    def allreduce_grads(self) -> None:
        """Do the same as ``gluon.Trainer``, for an `update` that possibly ignores stale gradients."""
        self._update_on_all()
        super().allreduce_grads()

    def _update_on_all(self) -> None:
        """Let all workers update the parameters that any worker has used; those that have not add the gradient 0."""
        trained = self._trained().values()
        fresh_on_all = self._workers.allgather([param.list_data()[0]._fresh_grad for param in trained])
        for param, fresh in zip(trained, zip(*fresh_on_all)):
            if any(fresh):
                zero_unused_gradient(param)

    def _allreduce_grads(self) -> None:
        for param in self._params:
            check_same(f'{param.name} is on', param.list_ctx(), trainer_devices(self))
        if self._workers.size > 1:
            if not self._compared:
                self._compare()
            self._workers.record(f'an exchange of {len(self._trained())} gradients')
            for i, param in self._trained().items():
                self._workers._allreduce(param.list_grad()[0], self._kind, i)

    def _trained(self) -> dict[int, Any]:
        return {i: param for i, param in enumerate(self._params) if param.grad_req != 'null'}

    def _compare(self) -> None:
        self._compared, optimizer = True, self._optimizer
        facts: dict[str, Any] = {'the Trainer': self._kind, 'its optimizer': type(optimizer).__name__}
        facts |= {f'{name} of the optimizer': value for name, value in vars(optimizer).items()
                  if isinstance(value, (bool, int, float))}
        params = {f'parameter {i} of the Trainer': param for i, param in enumerate(self._params)}
        facts |= {name: f'{param.shape} {numpy.dtype(param.dtype)}, {param.grad_req}' for name, param in params.items()}
        self._workers.check_equal(facts)
        # Not of running statistics, which are those of the rows of each worker
        self._workers.check_equal({f'the checksum of {name}': checksum(param.list_data()[:1]) for name, param in
                                   params.items() if param._differentiable},
                                  'call workers.broadcast_parameters(net) before the first step')
