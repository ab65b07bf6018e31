"""The gradients of a network on several devices, also on those that get no rows of a small batch.

A network is a Gluon block, a `SyncBatchNorm`, or its Gluon parameters, as a list or as ``net.collect_params()``.
"""
from __future__ import annotations

from typing import Any

from ..base.nested import leaves
from ..mxnet_setup.compat import fill, gluon, mx, npx, running_statistics, trainer_devices


def params_with_gradients(net: Any) -> list[gluon.Parameter]:
    """Return the parameters of a Gluon network that have gradients."""
    params = net.collect_params() if hasattr(net, 'collect_params') else net
    params = params.values() if hasattr(params, 'values') else params
    # MXNet 2 lists a parameter that several layers share once for each layer
    return [param for param in {id(param): param for param in params}.values() if param.grad_req != 'null']


def gradients(net: Any, devices: list) -> list:
    """Return the gradient arrays of a network on these devices, device by device; does not block."""
    params = [param for param in params_with_gradients(net) if not param._deferred_init]
    return [param.grad(device) for device in devices for param in params]


def prepare_idle_devices(net: Any, X: Any, devices: list, batch_axis: int = 0) -> None:
    """Set the gradients of the devices that got no rows of a batch to 0, in place; call it between backward and sum.

    Otherwise these devices would add their gradients of the batch before to the sum. Gradients with ``grad_req='add'``
    stay, because they are sums. If `net` has batch norm, these devices also get the running statistics of the first
    device, after a wait for all devices; otherwise this does not block.

    Source: none in the book, whose batches have rows for all devices.

    Parameters
    ----------
    net : gluon.Block, SyncBatchNorm, or its parameters
    X : np.ndarray, (n, ...), or nested lists and tuples of such arrays
        The whole batch, or any array with its n rows. The devices without rows are those after the first n.
    devices : list of mx.Context
        Those that the batch was split over.
    batch_axis : int
        The axis of the n rows in X, as for `split_and_load`: 1 for time-major batches.
    """
    if isinstance(net, (list, tuple)) and not all(isinstance(param, gluon.Parameter) for param in net):
        raise ValueError('prepare_idle_devices needs a Gluon network or its parameters: for arrays, set the gradients '
                         'of devices without rows to 0 by array.grad[:] = 0')
    num_rows = leaves(X)[0].shape[batch_axis]
    if idle_devices := devices[num_rows:]:
        if num_rows:
            _copy_statistics(net, devices[0], idle_devices)
        for param in params_with_gradients(net):
            if not param._deferred_init:  # as before the first batch
                _zero_gradient(param, idle_devices)


def _copy_statistics(net: Any, source: Any, devices: list) -> None:
    """Copy batch norm's running statistics from one device to others."""
    if hasattr(net, 'collect_params'):
        params = running_statistics(net)
    else:
        params = [param for param in getattr(net, 'values', lambda: net)() if not param._differentiable]
    statistics = [param for param in params if not param._deferred_init]
    if statistics:
        npx.waitall()  # under ``hybridize(static_shape=True)``, backward passes write them without the engine
    for param in statistics:
        for device in devices:
            param.data(source).copyto(param.data(device))


def _zero_gradient(param: gluon.Parameter, devices: list) -> None:
    """Set a gradient to 0; if all other devices have written theirs, mark it as written, which Gluon's Trainer asks."""
    copies = dict(zip(param.list_ctx(), param._data))  # `param.data` fails for row-sparse parameters
    is_fresh = all(data._fresh_grad for device, data in copies.items() if device not in devices)
    for device in devices:
        if param.grad_req == 'write':
            fill(param.grad(device), 0)
        copies[device]._fresh_grad = is_fresh


def zero_unused_gradient(param: gluon.Parameter) -> None:
    """Set the gradient to 0 on devices whose backward pass did not use the parameter, and mark all as written."""
    for weight, gradient in zip(param._data or (), param._grad or ()):  # none if frozen
        if not weight._fresh_grad and param.grad_req == 'write':
            fill(gradient, 0)
        weight._fresh_grad = True


def check_trainer(trainer: Any, devices: list | None = None) -> None:
    """Raise ValueError unless a Trainer is, with its parameters, on one list of devices.

    These are `devices`, by default those that it was made for. With `devices`, it must also sum gradients.
    """
    made_for = trainer_devices(trainer)
    if devices and len(made_for) > 1 and trainer._kvstore_params['kvstore'] is None:
        raise ValueError("the Trainer was made with kvstore=None and sums no gradients: leave out that argument, or "
                         "pass 'device'")
    check_same('the Trainer was made for', made_for, devices or made_for)
    on_each_device = trainer._kvstore_params['update_on_kvstore'] is False
    if on_each_device and isinstance(trainer._optimizer, mx.optimizer.Adam) and len(
            {device.device_id for device in made_for}) < len(made_for):
        raise ValueError(f'{made_for}: Adam counts updates by the number of a device, so each needs its own, as gpu(0) '
                         'and cpu(1)')
    for param in trainer._params:
        check_same(f'{param.name} is on', param.list_ctx(), made_for)


def check_same(what: str, found: list, devices: list) -> None:
    """Raise ValueError unless two lists have the same devices in the same order. `what` begins the message."""
    if found != devices:
        raise ValueError(f'{what} {found}, but the step is on {devices}: use the same devices for both; make a '
                         'Trainer after the network is initialized')
