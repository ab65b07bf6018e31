"""The parameters of a network, a Gluon block or plain lists of arrays."""
from typing import Any

import numpy

from ..mxnet_setup.compat import gluon, layers_of, running_statistics, zeros


def copies(net: Any) -> dict[str, list]:
    """Return the copies of each parameter of a network or of lists of arrays, one per device; does not wait.

    Those of unknown shape have no values, and are left out.
    """
    if not hasattr(net, 'collect_params'):
        return {f'parameter {i}': list(arrays) for i, arrays in enumerate(zip(*_lists_per_device(net)))}
    return {name: param.list_data() for name, param in parameters_by_name(net).items() if not param._deferred_init}


def plain(net: Any) -> Any:
    """Return the network inside a `SyncBatchNorm`; return any other as it is."""
    return net if isinstance(net, gluon.Block) else getattr(net, 'block', net)


def parameters_by_name(net: Any) -> dict[str, Any]:
    """Return the parameters of a network by their path in it, such as ``'2.weight'``.

    The names that MXNet 1.9 gives to parameters depend on the networks that the process created before.
    """
    block = plain(net)
    return getattr(block, '_collect_params_with_prefix', block.collect_params)()


def registered(net: Any) -> dict[str, Any]:
    """Return the parameters of a Gluon network by name; none for lists of arrays."""
    return parameters_by_name(net) if hasattr(net, 'collect_params') else {}


def unregistered(net: Any) -> list[str]:
    """Return attributes that hold parameters unknown to Gluon, such as ``'Encoder.layers'``, a plain list."""
    known = {id(param) for param in registered(net).values()}
    return [f'{type(layer).__name__}.{name}' for layer in layers_of(plain(net))
            for name, value in {**vars(layer), 'params': dict(layer.params.items())}.items()
            if any(id(param) not in known for param in _parameters_in(value))]


def of_unknown_shape(net: Any) -> list[str]:
    """Return the names of the parameters whose shape is unknown, because no batch has passed through their layer."""
    return [name for name, param in registered(net).items() if param._deferred_init]


def create_deferred(net: Any, shapes: dict[str, tuple]) -> None:
    """Create the parameters of a Gluon network whose shapes are unknown before a first batch, as zeros, by name."""
    for name, param in registered(net).items():
        if param._deferred_init and name in shapes:  # others belong to layers that were never used
            param.shape = shapes[name]
            param.set_data(zeros(param.shape, param.dtype))  # MXNet's own initializers fail for float64
            param._finish_deferred_init()


def with_grad_req(net: Any, grad_req: str) -> dict[str, Any]:
    """Return a Gluon network's parameters by name that have this ``grad_req``; ``'null'``: without gradients.

    Those of unknown shape have no arrays, and are left out, as in `copies`.
    """
    return {name: param for name, param in registered(net).items()
            if param.grad_req == grad_req and not param._deferred_init}


def not_in_trainer(net: Any, trainer: Any) -> list[str]:
    """Return the names of a Gluon network's parameters with gradients that a Trainer, or None, does not have."""
    trained = getattr(trainer, '_params', [])
    return [name for name, param in registered(net).items() if param.grad_req != 'null' and param not in trained]


def unchanged_names(net: Any) -> set[str]:
    """Return the names of the parameters that training does not change: constants, and those of frozen layers."""
    if not hasattr(net, 'collect_params'):
        return set()
    statistics = {id(param) for param in running_statistics(net)}
    return {name for name, param in with_grad_req(net, 'null').items() if id(param) not in statistics}


def trained_arrays(net: Any) -> list:
    """Return the parameters that training changes, on the first device, as arrays; does not wait."""
    without_gradients = with_grad_req(net, 'null')
    return [arrays[0] for name, arrays in copies(net).items() if name not in without_gradients]


def first_non_finite(net: Any) -> str:
    """Return the name of the first parameter that training has made NaN or infinite on any device, or ''; waits."""
    unchanged = unchanged_names(net)
    for name, arrays in copies(net).items():
        if name not in unchanged and not all(numpy.isfinite(array.asnumpy()).all() for array in arrays):
            return name
    return ''


def first_unequal(net: Any) -> str:
    """Return the name of the first trained parameter whose copies on the devices differ, or ''; waits."""
    without_gradients = with_grad_req(net, 'null')
    for name, (first, *others) in copies(net).items():
        values = first.asnumpy()
        tolerance = 1e-3 * abs(values).max(initial=0) + 1e-6  # more than rounding, if devices sum in another order
        differs = any((abs(values - other.asnumpy()) > tolerance).any() for other in others)
        if differs and name not in without_gradients:
            return name
    return ''


def _lists_per_device(net: Any) -> list:
    lists = net if isinstance(net, (list, tuple)) and net and isinstance(net[0], (list, tuple)) else [net]
    valid = (all(isinstance(params, (list, tuple)) for params in lists)
             and all(hasattr(array, 'asnumpy') for params in lists for array in params)
             and len({tuple((array.shape, str(array.dtype)) for array in params) for params in lists}) == 1)
    if not valid:
        raise ValueError(f'{type(net).__name__}: expected a Gluon network, a list of arrays, or a list of such lists, '
                         'one per device, with the same shapes and dtypes')
    return list(lists)


def _parameters_in(value: Any) -> list:
    """Return the Gluon parameters in a value, also those within lists and dicts."""
    if isinstance(value, gluon.Parameter):
        return [value]
    if isinstance(value, gluon.Block):
        return list(parameters_by_name(value).values())
    if isinstance(value, dict):
        value = list(value.values())
    return [param for item in value for param in _parameters_in(item)] if isinstance(value, (list, tuple, set)) else []
