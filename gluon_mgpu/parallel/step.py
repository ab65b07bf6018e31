"""The training step on several devices: the parts that are the same for every network.

A network is a Gluon block, a `SyncBatchNorm`, or a list of parameters for each device, attached with
``grad_req='write'``.
"""
from collections.abc import Callable, Sequence
from typing import Any

from ..base.text import counted
from ..data.shards import shard_rows
from ..devices.lists import check_list
from ..mxnet_setup.compat import autograd, fill, gluon, npx, running_statistics, trainer_devices
from .sharing import as_devices
from .split import check_rows, rows_of
from .sync_batch_norm.synchronized import SyncBatchNorm


def in_parts(forward_backward: Callable, X: Any, y: Any, net: Any, devices: Sequence, *args: Any) -> list:
    """Call ``forward_backward(X, y, net, devices, *args)``, once or for each of ``devices.parts`` parts of a batch.

    Parts need less memory. Returns the losses of all parts; each device's gradients are summed over the parts; does
    not block. `forward_backward`, such as `concise.forward_backward`, computes the gradients on all devices and returns
    the losses. The rows are cut as evenly as possible, and into fewer parts if some device would get no rows. With
    several workers, there are always ``devices.parts`` parts, even without rows: all workers take part in each
    exchange. `X` and `y` are arrays, or nested lists and tuples of arrays.
    """
    devices = as_devices(devices)
    num_rows, num_parts = check_rows(X, y), devices.parts
    if devices.workers.size == 1:
        num_parts = min(num_parts, num_rows // len(devices))
    if num_parts <= 1:
        return forward_backward(X, y, net, devices, *args)
    ls: list = []
    for rows in [shard_rows(num_rows, part, num_parts) for part in range(num_parts)]:
        # g <- (gradient of this part) + (sum over the parts before)
        sums = [g.copy() for g in gradients(net, devices, ['write'])] if ls else []
        for g in gradients(net, devices, ['write']):
            fill(g, 0)  # a part need not use every parameter
        ls += forward_backward(rows_of(X, rows), rows_of(y, rows), net, devices, *args)
        if sums:
            for g, so_far in zip(gradients(net, devices, ['write']), sums):
                g += so_far
    return ls


def check_losses(ls: list, X: Any) -> None:
    """Raise ValueError if there are fewer losses than rows in the batch `X`."""
    if (size := sum(l.size for l in ls)) < (num_rows := check_rows(X)):
        raise ValueError(f'the loss has {counted(size, "value")} for {counted(num_rows, "row")}: return one for each '
                         'row, because the mean of a shard would depend on the number of devices')


def forward(net: Callable, X_shards: list) -> list:
    """Return the output of a Gluon network for each shard, while autograd records; does not block."""
    return net.forward(X_shards) if isinstance(net, SyncBatchNorm) else [net(X_shard) for X_shard in X_shards]


def backward(net: Callable, ls: list) -> None:
    """Compute the gradients of all parameters from the losses of the shards; does not block.

    In the book, ``l.backward()`` for each l. With synchronized batch norm, each l depends on the rows of all devices.
    """
    if isinstance(net, SyncBatchNorm):
        net.backward(ls)
    elif ls:
        autograd.backward(ls)
    elif any(param._deferred_init for param in params_with_gradients(net)):
        raise ValueError('the first batch has no rows, so the shapes of layers are unknown: leave it out')


def params_with_gradients(net: Any) -> list:
    """Return the parameters of a Gluon network that have gradients."""
    # MXNet 2 lists a parameter that several layers share once for each layer
    params = {id(param): param for param in net.collect_params().values()}.values()
    return [param for param in params if param.grad_req != 'null']


def zero_unused_gradient(param: gluon.Parameter) -> None:
    """Set the gradient to 0 on devices whose backward pass did not use the parameter, and mark all as written."""
    for weight, gradient in zip(param._data or (), param._grad or ()):  # none if frozen
        if not weight._fresh_grad and param.grad_req == 'write':
            fill(gradient, 0)
        weight._fresh_grad = True


def gradients(net: Any, devices: list, kinds: Sequence[str] = ('write', 'add')) -> list:
    """Return the gradients on these devices; of a Gluon network, those whose ``grad_req`` is in `kinds`."""
    if not hasattr(net, 'collect_params'):
        return [param.grad for params in net for param in params if param.ctx in devices]
    params = [param for param in params_with_gradients(net) if param.grad_req in kinds and not param._deferred_init]
    return [param.grad(device) for device in devices for param in params]


def prepare_idle_devices(net: Any, X: Any, devices: list) -> None:
    """Set the gradients of the devices that got no rows of the batch `X` to zero, in place.

    With n rows, these are the devices after the first n; their old gradients would enter the sum. If the network has
    batch norm, they also get the running statistics of the first device, after a wait for all devices; not if the batch
    has no rows or `net` is a `SyncBatchNorm`. Otherwise this does not block.
    """
    num_rows = check_rows(X)
    if not (idle_devices := devices[num_rows:]):
        return
    is_plain = hasattr(net, 'collect_params') and not isinstance(net, SyncBatchNorm)
    statistics = [param for param in running_statistics(net) if not param._deferred_init] if is_plain else []
    if num_rows and statistics:
        npx.waitall()  # under ``hybridize(static_shape=True)``, backward passes write statistics without the engine
        for param in statistics:
            for device in idle_devices:
                param.data(devices[0]).copyto(param.data(device))
    zero_grad(net, idle_devices)


def zero_grad(net: gluon.Block, devices: list) -> None:
    """Set the gradients of a network, or of lists of arrays, on these devices to zero, in place; does not block.

    Gradients with ``grad_req='add'`` stay: they are sums, to which these devices add nothing. A gradient that all other
    devices have written is marked as written here as well (without others, every one), so that Gluon's Trainer accepts
    it.
    """
    devices = check_list(devices)
    for gradient in gradients(net, devices, ['write']):
        fill(gradient, 0)
    for param in params_with_gradients(net) if hasattr(net, 'collect_params') else ():
        if param._deferred_init:  # before the first batch
            continue
        copies = dict(zip(param.list_ctx(), param._data))  # `param.data` fails for row-sparse parameters
        is_fresh = all(data._fresh_grad for device, data in copies.items() if device not in devices)
        for device in devices:
            copies[device]._fresh_grad = is_fresh


def check_params(device_params: list, devices: list) -> None:
    """Check the first parameter (only that, for speed) of each device; ValueError if it is missing or elsewhere."""
    if any(hasattr(params, 'ctx') for params in device_params):
        raise ValueError('the parameters are one list of arrays: pass a list of lists, with the copies for each device '
                         'from get_params(params, device)')
    if not devices or not all(device_params):
        raise ValueError(f'{len(device_params)} lists of parameters on {list(devices)}: there must be at least one '
                         'device, and parameters on each')
    check_same('the parameters are on', [params[0].ctx for params in device_params], devices)
    if any(params[0].grad is None for params in device_params):
        raise ValueError('the parameters have no gradients: copy them with get_params(params, device)')


def prepare_trainer(trainer: gluon.Trainer, devices: list) -> None:
    """Check the Trainer; does not block. If its key-value store updates, mark all gradients as not yet written.

    Raises ValueError unless it sums gradients and is, with its parameters, on `devices`, in the same order.
    """
    if not isinstance(trainer, gluon.Trainer):
        raise ValueError(f'trainer is a {type(trainer).__name__}: pass a gluon.Trainer, made after net.initialize')
    check_same('the Trainer was made for', trainer_devices(trainer), devices)
    if len(devices) > 1 and trainer._kvstore_params['kvstore'] is None:
        raise ValueError("the Trainer was made with kvstore=None and sums no gradients: leave out that argument, or "
                         "pass 'device'")
    for param in trainer._params:
        check_same(f'{param.name} is on', param.list_ctx(), devices)
        # With a key-value store that updates, Gluon's step does not mark them, and would add old gradients of unused
        # layers again
        if trainer._update_on_kvstore and param.grad_req != 'null':
            for weight in param._data or ():
                weight._fresh_grad = False


def check_same(what: str, found: Sequence, devices: Sequence) -> None:
    """Raise ValueError unless two lists have the same devices in the same order. `what` begins the message."""
    if found != devices:
        raise ValueError(f'{what} {found}, but the step is on {list(devices)}: use the same devices for both; make a '
                         'Trainer after the network is initialized')
