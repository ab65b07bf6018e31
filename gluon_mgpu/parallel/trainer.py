"""A Trainer whose step takes few calls: Python's time to start it hardly grows with the parameters.

``gluon.Trainer`` hands each parameter to the key-value store and to the optimizer on its own: 62 times for ResNet-18,
2 ms per device, in which a GPU could train on a small batch. Here all gradients of a device lie side by side in one
array, so that one sum does for all of them, and one operator updates up to 60 parameters.
"""
from __future__ import annotations

import math

from ..mxnet_setup.compat import gluon, mx
from .allreduce import star
from .flat import gradients_in_one_piece

# Parameters that one multi_sgd_update takes. For each it counts up to the size of the largest: the others must not be
# much smaller.
MOST_AT_ONCE, SMALLEST_SHARE = 60, 0.5


class Trainer(gluon.Trainer):
    """``gluon.Trainer`` with fewer calls; the numbers are the same.

    Source: MXNet's ``gluon.Trainer``, used in D2L 13.6.3. The sum begins when all gradients are there. Parameters that
    do not fit into one array, being of several dtypes or sparse, go the way of ``gluon.Trainer``; so does the update by
    another optimizer than SGD without momentum, with ``ignore_stale_grad``, or with a loss scaled by ``contrib.amp``.
    Otherwise it is not checked whether a backward pass has written the gradients since the last step.

    Parameters
    ----------
    params : list of gluon.Parameter
        Initialized on the same devices by the first step, which gives their gradients other memory.
    optimizer : str
        MXNet's name of it, such as ``'sgd'``.
    optimizer_params : dict
        Its settings.
    """

    def __init__(self, params: list, optimizer: str, optimizer_params: dict):
        super().__init__(params, optimizer, optimizer_params, update_on_kvstore=False)
        self._trained: list = []    # numbers of the parameters that have a gradient
        self._flat: list = []       # on each device, all gradients as one array
        self._gradients: list = []  # on each device, the parts of it
        self._groups: list = []     # on each device, what is updated at once: numbers; weight, gradient, weight ...

    def _allreduce_grads(self) -> None:
        if self._in_one_piece():
            star(self._flat)  # the key-value store would keep the memory of each key, also of one no longer used
        else:
            super()._allreduce_grads()

    def _update(self, ignore_stale_grad: bool = False) -> None:
        sgd = self._optimizer
        if (type(sgd) is not mx.optimizer.SGD or sgd.momentum or sgd.multi_precision or ignore_stale_grad
                or hasattr(self, '_amp_loss_scaler') or not self._in_one_piece()):
            super()._update(ignore_stale_grad)
            return
        for number, groups in enumerate(self._groups):
            sgd._set_current_context(number)
            for indices, arrays in groups:
                sgd._update_count(indices)
                mx.nd.multi_sgd_update(*arrays, out=arrays[::2], num_weights=len(indices), lrs=sgd._get_lrs(indices),
                                       wds=sgd._get_wds(indices), rescale_grad=sgd.rescale_grad,
                                       clip_gradient=sgd.clip_gradient or -1)

    def _in_one_piece(self) -> bool:
        """Put the gradients side by side if they are not yet, or no longer; False if they cannot be."""
        trained = [i for i, param in enumerate(self._params) if param.grad_req != 'null']
        params = [self._params[i] for i in trained]
        if self._flat and trained == self._trained and all(part is gradient
                                                           for param, parts in zip(params, zip(*self._gradients))
                                                           for part, gradient in zip(parts, param._grad)):
            return True
        weights = [weight for param in params for weight in param.list_data()]
        if len({weight.dtype for weight in weights}) != 1 or any(param._grad_stype != 'default' for param in params):
            return False
        self._trained = trained
        self._flat, self._gradients = gradients_in_one_piece(params)
        self._groups = [[(numbers, [array.as_nd_ndarray() for n in numbers
                                    for array in (self._params[n].list_data()[i], self._params[n].list_grad()[i])])
                         for numbers in self._of_similar_size()] for i in range(len(self._flat))]
        return True

    def _of_similar_size(self) -> list[list[int]]:
        """The numbers of the parameters, in groups to be updated at once."""
        size = {i: math.prod(self._params[i].shape) for i in self._trained}
        groups: list[list[int]] = []
        for i in sorted(self._trained, key=lambda i: -size[i]):
            if not groups or len(groups[-1]) == MOST_AT_ONCE or size[i] < SMALLEST_SHARE * size[groups[-1][0]]:
                groups.append([])
            groups[-1].append(i)
        return groups
