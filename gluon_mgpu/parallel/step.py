"""The training step on several devices: the parts that are the same for every network.

A network is a Gluon block, a `SyncBatchNorm`, or a list of parameters for each device, attached with
``grad_req='write'``.
"""
from collections.abc import Sequence
from typing import Any

from ..base.nested import leaves
from ..base.text import counted
from ..devices.lists import check_list
from ..mxnet_setup.compat import fill, gluon, npx, running_statistics, trainer_devices
from .split import check_rows


def check_losses(ls: list, X: Any) -> None:
    """Raise ValueError if there are fewer losses than rows in the batch `X`."""
    if (size := sum(l.size for l in ls)) < (num_rows := check_rows(X)):
        raise ValueError(f'the loss has {counted(size, "value")} for {counted(num_rows, "row")}: return one for each '
                         'row, because the mean of a shard would depend on the number of devices')


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
    has no rows. Otherwise this does not block.
    """
    num_rows = len(leaves(X)[0])
    if not (idle_devices := devices[num_rows:]):
        return
    is_network = hasattr(net, 'collect_params')
    statistics = [param for param in running_statistics(net) if not param._deferred_init] if is_network else []
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
    if devices == []:
        return
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
