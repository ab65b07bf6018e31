"""The parameters of what is trained, whichever way they are kept: by a Gluon network or as lists of arrays.

Can be imported without MXNet.
"""
from __future__ import annotations

from typing import Any

import numpy


def copies(net: Any) -> dict[str, list]:
    """Return every parameter's copies, one per device, by its name; does not wait.

    Parameters
    ----------
    net : gluon.Block, list of np.ndarray, or list of lists of np.ndarray
        A network, or the parameters on one device or on each; these are named by their number.

    Returns
    -------
    dict of str to list of np.ndarray
        The arrays themselves.

    Raises
    ------
    ValueError
        If a network has no parameters yet, or lists are not the same parameters on each device.
    """
    if hasattr(net, 'collect_params'):
        try:
            return {name: param.list_data() for name, param in by_name(net).items()}
        except RuntimeError:  # MXNet's own line is five, and names the parameter by a number
            raise ValueError('the network has no parameters yet: call net.initialize(ctx=devices), and pass one '
                             'batch through it if its layers are to learn their shapes') from None
    return {f'parameter {i}': list(on_devices) for i, on_devices in enumerate(zip(*_on_devices(net)))}


def by_name(net: Any) -> dict[str, Any]:
    """Return the parameters of a Gluon network by where they are in it, such as ``'2.weight'``.

    Their own names, in MXNet 1.9, count the networks that the process has made before.

    Parameters
    ----------
    net : gluon.Block or what `hybridized` makes of one

    Returns
    -------
    dict of str to gluon.Parameter
    """
    from ..networks.hybridize import unwrapped
    block = unwrapped(net)
    return getattr(block, '_collect_params_with_prefix', block.collect_params)()


def unregistered(net: Any) -> list[str]:
    """Return the attributes of a Gluon network's blocks that hold parameters the network does not know.

    Gluon registers a layer or a parameter that is an attribute, but not one in a plain list or dict, or one that
    ``self.params.get`` has created and that is no attribute. Such a parameter is not among those of `by_name`.

    Parameters
    ----------
    net : gluon.Block or list of np.ndarray
        Anything else than a block has none.

    Returns
    -------
    list of str
        Such as ``'Encoder.layers'``.
    """
    from ..mxnet_setup.compat import gluon
    from ..networks.hybridize import unwrapped
    block = unwrapped(net)
    if not isinstance(block, gluon.Block):
        return []
    known, found = {id(param) for param in by_name(block).values()}, []

    def look(layer):
        for name, value in {**vars(layer), 'params': dict(layer.params.items())}.items():
            if any(id(param) not in known for param in _parameters_in(value)):
                found.append(f'{type(layer).__name__}.{name}')

    block.apply(look)
    return found


def refuse_uninitialized(net: Any) -> None:
    """Raise ValueError if a Gluon network is on no devices yet.

    Parameters
    ----------
    net : gluon.Block
        The network.
    """
    for name, param in by_name(net).items() if hasattr(net, 'collect_params') else ():
        try:
            param.list_ctx()
        except RuntimeError:
            raise ValueError(f'{name} is on no device: call net.initialize(ctx=devices) first') from None


def finish_initialization(net: Any, shapes: dict[str, tuple]) -> None:
    """Give the parameters of a Gluon network the shapes that it would learn from its first batch.

    Parameters
    ----------
    net : gluon.Block
        Changed in place.
    shapes : dict of str to tuple
        By the names of the parameters in the network.
    """
    for name, param in by_name(net).items() if hasattr(net, 'collect_params') else ():
        if param._deferred_init:
            param.shape = shapes[name]
            param._finish_deferred_init()


def trainable(net: Any) -> list:
    """Return the parameters of a Gluon network that have gradients: what a Trainer is to be given.

    Given all, as in the book, it copies batch norm's running statistics from the first device to the others at its
    first step; and with a hybridized network, whose statistics MXNet does not wait for, now and then it puts back
    those from before the first batch.

    Parameters
    ----------
    net : gluon.Block or what `hybridized` makes of one

    Returns
    -------
    list of gluon.Parameter
    """
    return [param for param in net.collect_params().values() if param.grad_req != 'null']


def statistics(net: Any) -> list[str]:
    """Return the names of the parameters that are not trained, such as batch norm's running statistics.

    They are computed on each device for itself, and differ.

    Parameters
    ----------
    net : gluon.Block or list of lists of np.ndarray
        A network, or the parameters on each device.
    """
    return [name for name, param in by_name(net).items() if param.grad_req == 'null'] \
        if hasattr(net, 'collect_params') else []


def not_finite(net: Any) -> str:
    """Return the name of a parameter that holds NaN or infinity on some device, '' if none does; waits.

    Parameters
    ----------
    net : gluon.Block or list of lists of np.ndarray
        A network, or the parameters on each device.
    """
    for name, arrays in copies(net).items():
        if not all(numpy.isfinite(array.asnumpy()).all() for array in arrays):
            return name
    return ''


def _on_devices(net: Any) -> list:
    """Return lists of parameters, one list per device; a single list of arrays is that of one device."""
    lists = net if isinstance(net, (list, tuple)) and net and isinstance(net[0], (list, tuple)) else [net]
    sound = (all(isinstance(params, (list, tuple)) for params in lists)
             and all(hasattr(array, 'asnumpy') for params in lists for array in params)
             and len({tuple((array.shape, str(array.dtype)) for array in params) for params in lists}) == 1)
    if not sound:
        raise ValueError(f'{type(net).__name__}: expected a Gluon network, a list of arrays, or a list of such lists, '
                         'one per device, with the same shapes and dtypes')
    return list(lists)


def _parameters_in(value: Any) -> list:
    """Return the Gluon parameters in an attribute's value, also within lists and dicts."""
    from ..mxnet_setup.compat import gluon
    if isinstance(value, gluon.Parameter):
        return [value]
    if isinstance(value, gluon.Block):
        return list(by_name(value).values())
    if isinstance(value, dict):
        value = list(value.values())
    return [param for item in value for param in _parameters_in(item)] if isinstance(value, (list, tuple, set)) else []


def seed_all(seed: int, epoch: int) -> None:
    """Begin MXNet's and NumPy's random numbers anew, decided by a seed and an epoch."""
    from ..mxnet_setup.compat import mx
    number = int(numpy.random.SeedSequence((seed, epoch)).generate_state(1)[0]) % 2**31
    mx.random.seed(number)
    numpy.random.seed(number)


def wait() -> None:
    """Wait until all devices are done."""
    from ..mxnet_setup.compat import npx
    npx.waitall()
