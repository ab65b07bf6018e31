"""`gluon.Trainer` that updates all parameters in a few operator calls. For ResNet-18, Gluon's makes 76 per device."""
from __future__ import annotations

from operator import is_
from typing import Any

from ..devices.lists import check_same
from ..mxnet_setup.compat import fill, gluon, mx, trainer_devices
from .allreduce import star
from .flat import flatten_gradients

# Limits of one multi_sgd_update: the number of parameters, and the size of the smallest relative to the largest (the
# operator takes as long for each parameter as for the largest)
MAX_AT_ONCE, MIN_RELATIVE_SIZE = 60, 0.5
# Their updates depend on random numbers, or on how often the optimizer was called, so replicas would drift apart
REFUSED = {'LARS', 'LBSGD', 'Nadam', 'SGLD'}


def trainable(net: Any) -> list:
    """Return the parameters of a Gluon network without batch norm's running statistics, as a Trainer should get them.

    Frozen ones (``grad_req='null'``) are among them, because they may be trained later. The book passes all parameters.
    At its first step, a Trainer then copies the statistics from the first device to the others.
    """
    # MXNet 2 lists a parameter that several layers share once for each layer
    params = {id(param): param for param in net.collect_params().values()}.values()
    return [param for param in params if param._differentiable]


def set_update_counts(trainer: gluon.Trainer, counts: dict[int, int]) -> None:
    """Set how often each parameter was updated, by its index in the Trainer. The optimizer counts on each device."""
    optimizer = trainer.optimizer
    ids = {0, *(device.device_id for param in trainer._params for device in param.list_ctx())}
    optimizer._all_index_update_counts = {device_id: dict(counts) for device_id in ids}
    optimizer._index_update_count = optimizer._all_index_update_counts[0]


def add_zero(param: gluon.Parameter) -> None:
    """Let each device whose backward pass has not used a parameter add the gradient 0 instead of an older one."""
    for weight, gradient in zip(param._data or (), param._grad or ()):  # none if frozen
        if not weight._fresh_grad and param.grad_req == 'write':
            fill(gradient, 0)
        weight._fresh_grad = True


class StaleGradientError(ValueError, UserWarning):
    """No backward pass has written a gradient since the last step; ``gluon.Trainer`` raises UserWarning."""


class Trainer(gluon.Trainer):
    """`gluon.Trainer` with fewer calls and the same results.

    With several dtypes, it makes as many calls; with another optimizer than SGD, stale gradients or ``contrib.amp``,
    only the sums can take fewer. Raises ValueError on several devices for another `kvstore` than 'device' and 'local',
    and for the optimizers in `REFUSED`; in a step, if the parameters have moved to other devices, and
    (`StaleGradientError`) if no backward pass has written a gradient since the last one. Source: D2L 13.6.3.

    Parameters
    ----------
    move_gradients : result of `hybridized` or `SyncBatchNorm`, or a list of such networks, optional
        The networks that have the parameters. All gradients are summed as one array, into which they are moved, if the
        networks can write them there: not those with transposed convolutions, which crash, or with layers under
        ``hybridize(static_shape=True)``, which write gradients where they were in the first backward pass.
    """

    def __init__(self, params: list, optimizer: str, optimizer_params: dict | None = None,
                 kvstore: str | None = 'device', *, move_gradients: Any = None):
        super().__init__(params, optimizer, optimizer_params, kvstore, update_on_kvstore=False)
        name, several = type(self._optimizer).__name__, len(self._updaters) > 1
        if several and not REFUSED.isdisjoint(kind.__name__ for kind in type(self._optimizer).__mro__):
            raise ValueError(f'{name} would take another step on each device: use gluon.Trainer, which updates on one '
                             'device')
        if kvstore not in ('device', 'local') and (several or kvstore is not None):
            raise ValueError(f"kvstore {kvstore!r}: must be 'device' or 'local', which sum over the devices of one "
                             'process; use gluon.Trainer for others')
        if self._contains_sparse_weight:
            raise ValueError('a parameter has row-sparse weights: use gluon.Trainer, which updates them, or dense ones')
        numbers = {device.device_id for device in trainer_devices(self)}  # which the optimizer counts updates by
        if len(numbers) < len(self._updaters) and (name not in ('SGD', 'NAG') or self._optimizer.lr_scheduler):
            raise ValueError(f'{trainer_devices(self)} have the same number, so {name} would take another step on '
                             'each: use other numbers, such as cpu(1) beside gpu(0)')
        self._networks = _networks(move_gradients, self._params)
        self._flat: list = []       # if moved: for each device, all gradients as one array
        self._gradients: list = []  # those in the groups
        self._groups: list = []     # for each device: (numbers, weights, gradients) of each update

    def load_states(self, fname: str) -> None:
        """Load what `save_states` has written, possibly on other devices: a pickle, which can run any code; blocks."""
        super().load_states(fname)
        # Otherwise the counts would begin at 0 on devices that the file does not know
        set_update_counts(self, max(self._optimizer._all_index_update_counts.values(), key=len))

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Do the same as ``gluon.Trainer``, and keep the devices equal if only some have used a parameter.

        With `ignore_stale_grad`, ``gluon.Trainer`` would add gradients of earlier batches, and update only these.
        """
        for param in self._trained().values() if ignore_stale_grad else ():
            if any(weight._fresh_grad for weight in param.list_data()):
                add_zero(param)
        super().step(batch_size, ignore_stale_grad)

    def _allreduce_grads(self) -> None:
        for param in self._params:
            check_same(f'{param.name} is on', param.list_ctx(), trainer_devices(self))
        if self._moves() and self._group() and self._flat:
            star(self._flat)  # the key-value store would keep buffers for gradients that are no longer used
        else:
            super()._allreduce_grads()

    def _update(self, ignore_stale_grad: bool = False) -> None:
        sgd = self._optimizer
        for name in 'lr', 'wd':  # Adam and others change an array in place, for each device again
            if hasattr(value := getattr(sgd, name), '__setitem__'):
                setattr(sgd, name, float(value))
        stale = next((f'{param.name} on {weight.ctx}' for param in self._params if param.grad_req != 'null'
                      for weight in param.list_data() if not weight._fresh_grad), '')
        if stale and not ignore_stale_grad:
            raise StaleGradientError(f'{stale}: no backward pass has written its gradient since the last step; if the '
                                     'network does not always use it, call step(..., ignore_stale_grad=True)')
        if (type(sgd) is not mx.optimizer.SGD or sgd.multi_precision or stale
                or hasattr(self, '_amp_loss_scaler') or not self._group()):
            super()._update(ignore_stale_grad)
            return
        for number, groups in enumerate(self._groups):
            sgd._set_current_context(groups[0][1][0].context.device_id)  # as gluon.Trainer does
            for indices, *arrays in groups:
                sgd._update_count(indices)
                settings = {'num_weights': len(indices), 'lrs': sgd._get_lrs(indices), 'wds': sgd._get_wds(indices),
                            'rescale_grad': sgd.rescale_grad, 'clip_gradient': sgd.clip_gradient or -1}
                update = mx.nd.multi_sgd_update
                if sgd.momentum:
                    arrays.append(self._momenta(number, indices, arrays[0]))
                    update, settings['momentum'] = mx.nd.multi_sgd_mom_update, sgd.momentum
                update(*(array for of_one in zip(*arrays) for array in of_one), out=arrays[0], **settings)
                for weight in arrays[0]:
                    weight._fresh_grad = False

    def _momenta(self, number: int, indices: list[int], weights: list) -> list:
        """Return the momentum of parameters on a device, from where gluon.Trainer keeps it; create it if missing."""
        updater = self._updaters[number]
        for i, weight in zip(indices, weights):
            if i not in updater.states:
                updater.states[i] = self._optimizer.create_state_multi_precision(i, weight)
            elif not updater.states_synced[i]:
                updater.states[i] = updater.sync_state_context(updater.states[i], weight.context)
            updater.states_synced[i] = True
        return [updater.states[i] for i in indices]

    def _trained(self) -> dict[int, Any]:
        return {i: param for i, param in enumerate(self._params) if param.grad_req != 'null'}

    def _moves(self) -> bool:
        """Return whether the gradients can be moved into one array; known after the networks' first forward pass."""
        return bool(self._networks) and all(net.gradients_can_move for net in self._networks)

    def _group(self) -> bool:
        """Group the parameters for `_update`; return False if they have several dtypes or are sparse."""
        # Groups are kept until a parameter has another gradient, for example because it was frozen or cast
        if self._contains_sparse_grad:
            return False
        params = self._trained()
        gradients = [gradient for param in params.values() for gradient in param._grad or ()]
        is_same = len(gradients) == len(self._gradients) and all(map(is_, gradients, self._gradients))
        if self._groups and is_same and (self._flat or not self._moves()):
            return True
        self._groups, self._flat = [], []
        if len({weight.dtype for param in params.values() for weight in param.list_data()}) != 1:
            return False
        if self._moves():
            self._flat = flatten_gradients(list(params.values()))
        self._gradients = [gradient for param in params.values() for gradient in param.list_grad()]
        groups = _of_similar_size({i: param.list_data()[0].size for i, param in params.items()})
        self._groups = [[(group, [params[i].list_data()[number].as_nd_ndarray() for i in group],
                          [params[i].list_grad()[number].as_nd_ndarray() for i in group]) for group in groups]
                        for number in range(len(self._updaters))]
        return True


def _of_similar_size(sizes: dict[int, int]) -> list[list[int]]:
    groups: list[list[int]] = []
    for i in sorted(sizes, key=lambda i: -sizes[i]):
        if not groups or len(groups[-1]) == MAX_AT_ONCE or sizes[i] < MIN_RELATIVE_SIZE * sizes[groups[-1][0]]:
            groups.append([])
        groups[-1].append(i)
    return groups


def _networks(move_gradients: Any, params: list) -> list:
    """Return the networks in the argument of a Trainer for `params`; raise ValueError unless they have all of these."""
    networks = list(move_gradients) if isinstance(move_gradients, (list, tuple)) else [move_gradients]
    if networks == [None]:
        return []
    if not all(hasattr(type(net), 'gradients_can_move') for net in networks):
        raise ValueError(f'move_gradients {[type(net).__name__ for net in networks]}: must be the result of hybridized '
                         'or SyncBatchNorm, or a list of such networks')
    known = {id(param) for net in networks for param in net.collect_params().values()}
    for param in params:
        if id(param) not in known:
            raise ValueError(f'{param.name} is not in the network of move_gradients: pass a list of all networks that '
                             'the Trainer updates')
    return networks
