"""``gluon.Trainer`` that sums gradients over all workers."""
from __future__ import annotations

from typing import Any

from ..mxnet_setup.compat import mx
from ..parallel.clipping import ClippingTrainer
from ..parallel.step import zero_unused_gradient
from ..parallel.workers import checksum


class HorovodTrainer(ClippingTrainer):
    """``gluon.Trainer`` for the device of this worker, which takes the same step as those of the other workers.

    Horovod identifies a sum by the numbers of the Trainer and of the parameter: names depend on the layers that a
    worker has created before. The first step raises InputError on all workers if settings or values differ.
    """

    def __init__(self, workers: Any, number: int, params: Any, optimizer: str, optimizer_params: dict | None,
                 clip_norm: float | None = None, update_on_kvstore: bool = False):
        super().__init__(params, optimizer, optimizer_params, clip_norm, update_on_kvstore, kvstore=None)
        if isinstance(self._optimizer, mx.optimizer.SGLD):
            raise ValueError('SGLD draws other random numbers on each worker: use another optimizer')
        self._workers, self._name, self._compared = workers, f'Trainer {number}', False

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Sum and update, on all workers equally, also if only some have used a parameter."""
        if ignore_stale_grad:
            self._update_on_all()
        super().step(batch_size, ignore_stale_grad)

    def allreduce_grads(self) -> None:
        """Sum, for an `update` that possibly ignores stale gradients."""
        self._update_on_all()
        super().allreduce_grads()

    def _update_on_all(self) -> None:
        """Let all workers update the parameters that any worker has used; those that have not add the gradient 0."""
        trained = self._trained().values()
        fresh_on_all = self._workers.allgather([param.data()._fresh_grad for param in trained])
        for param, fresh in zip(trained, zip(*fresh_on_all)):
            if any(fresh):
                zero_unused_gradient(param)

    def _allreduce_grads(self) -> None:
        if not self._compared:
            self._compare()
        with self._workers.time_limit('the sum of the gradients'):  # of the step before
            self._params[-1].data().wait_to_read()
        for i, param in self._trained().items():
            self._workers.sum_by_name(param.grad(), f'{self._name}.{i}', priority=-i)

    def _trained(self) -> dict[int, Any]:
        return {i: param for i, param in enumerate(self._params) if param.grad_req != 'null'}

    def _compare(self) -> None:
        self._compared = True
        facts: dict[str, Any] = {'the Trainer': self._name, 'the optimizer': type(self._optimizer).__name__}
        facts |= {f'{name} of the optimizer': value for name, value in vars(self._optimizer).items()
                  if isinstance(value, (bool, int, float))}
        self._workers.check_equal(facts)
        # Not of running statistics, which are those of the rows of each worker
        self._workers.check_equal({f'the checksum of parameter {i} of the Trainer': checksum([param.data()])
                                   for i, param in enumerate(self._params) if param._differentiable},
                                  'call workers.broadcast_parameters(net) before the first step')
