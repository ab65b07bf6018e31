"""The state of a Gluon Trainer's optimizer as arrays and numbers: momentum, Adam's means, the counts of updates.

`Trainer.save_states` pickles it: a file from a stranger could run anything when it is loaded. Here it becomes
arrays by name. What they are for is not recorded: the Trainer that they are given back to makes a state of its
own, and takes over the values if it is of the same kind.
"""
from __future__ import annotations

from typing import Any

import numpy

from .checkpoint_file import CheckpointError


def collect(trainer: Any, names: dict[int, str]) -> tuple[dict, dict[str, list]]:
    """Return the state as numbers and as arrays; does not wait.

    Parameters
    ----------
    trainer : gluon.Trainer
        It may have made no step yet.
    names : dict of int to str
        The names of the network's parameters by identity.

    Returns
    -------
    record : dict
        ``name`` of the optimizer, ``num_update``, ``counts`` of each parameter's updates, and of how many
        ``arrays`` its state consists; of what JSON can hold.
    states : dict of str to list of NDArray
        By ``PARAMETER/NUMBER``, on each device that keeps them.

    Raises
    ------
    ValueError
        If the trainer has a parameter that is not named, or its optimizer keeps more than arrays and counts.
    """
    optimizer, updaters = trainer.optimizer, _updaters(trainer)
    if hasattr(optimizer, 'm_schedule'):
        raise ValueError(f'the optimizer {type(optimizer).__name__} keeps more than arrays and counts: '
                         'its state cannot be saved here')
    counts = optimizer._all_index_update_counts.values()
    record: dict[str, Any] = {'name': type(optimizer).__name__, 'num_update': optimizer.num_update,
                              'counts': {}, 'arrays': {}}
    states: dict[str, list] = {}
    for i, name in _indices(trainer, names):
        leaves = [_leaves(updater.states.get(i)) for updater in updaters]
        record['counts'][name] = max((on_device.get(i, 0) for on_device in counts), default=0)
        record['arrays'][name] = len(leaves[0])
        states |= {f'{name}/{j}': list(on_devices) for j, on_devices in enumerate(zip(*leaves))}
    return record, states


def check(path, trainer: Any, names: dict[int, str], record: dict, states: dict[str, list]) -> None:
    """Refuse a state that is not one of this Trainer's optimizer and parameters; changes nothing.

    Parameters
    ----------
    path : path-like
        The name of the file, for the error.
    trainer : gluon.Trainer
        What it would be given to.
    names : dict of int to str
        Of each parameter its `id` and its name in the network.
    record : dict
        What the checkpoint says of the optimizer.
    states : dict of str to list of numpy.ndarray
        Its arrays: one, or one per device.

    Raises
    ------
    CheckpointError
        With the name of the file, `path`.
    """
    mine = type(trainer.optimizer).__name__
    try:
        if record['name'] != mine:
            raise CheckpointError(f"{path}: the optimizer's state is of {record['name']}, this is {mine}")
        int(record['num_update'])
        for i, name in _indices(trainer, names):
            if name not in record['counts']:
                raise CheckpointError(f'{path}: its Trainer did not update {name}, this one does')
            number, shape = record['arrays'][name], trainer._params[i].shape
            kept = [states[f'{name}/{j}'][0] for j in range(number)]
            int(record['counts'][name])
            if number and number != (expected := _number_of_arrays(trainer, i)):
                raise CheckpointError(f"{path}: the optimizer's state of {name} has {number} arrays in it and "
                                      f'{expected} here: give {mine} the same settings')
            for array in kept:
                if len(array.shape) != len(shape) or any(n > 0 and n != m for n, m in zip(shape, array.shape)):
                    raise CheckpointError(f"{path}: the optimizer's state of {name} has the shape {array.shape}")
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: a damaged checkpoint (of the optimizer's state: {error})") from None


def restore(trainer: Any, names: dict[int, str], record: dict, states: dict[str, list]) -> None:
    """Give a Trainer a state that `check` has let pass; its parameters must have their values already.

    Parameters
    ----------
    trainer : gluon.Trainer
        Changed in place.
    names : dict of int to str
        Of each parameter its `id` and its name in the network.
    record : dict
        What the checkpoint says of the optimizer.
    states : dict of str to list of numpy.ndarray
        Its arrays: one, or one per device.
    """
    optimizer = trainer.optimizer
    trainer._reset_kvstore()  # it holds copies of the parameters
    trainer._init_kvstore()
    trainer._init_params()
    for k, updater in enumerate(_updaters(trainer)):
        updater.states, updater.states_synced = {}, {}
        for i, name in _indices(trainer, names):
            if not record['counts'][name]:
                continue  # no update yet: the state is made at the first
            weight = trainer._params[i].list_data()[k].as_nd_ndarray()
            state = optimizer.create_state_multi_precision(i, weight)
            for j, leaf in enumerate(_leaves(state)):
                kept = states[f'{name}/{j}']
                leaf[:] = kept[k if len(kept) > k else 0]
            updater.states[i], updater.states_synced[i] = state, False  # on the wrong device, perhaps
    counts = {i: record['counts'][name] for i, name in _indices(trainer, names) if record['counts'][name]}
    ids = {0, *(device.device_id for param in trainer._params for device in param.list_ctx())}
    optimizer._all_index_update_counts = {device_id: dict(counts) for device_id in sorted(ids)}
    optimizer._index_update_count = optimizer._all_index_update_counts[0]
    optimizer.num_update = record['num_update']


def _updaters(trainer) -> list:
    """What keeps the states: the KVStore's, or one per device."""
    return [trainer._kvstore._updater] if trainer._update_on_kvstore else trainer._updaters


def _indices(trainer, names: dict[int, str]) -> list[tuple[int, str]]:
    """(i, name) of the parameters that the Trainer updates, by its own numbers."""
    for param in trainer._params:
        if id(param) not in names:
            raise ValueError(f'the Trainer updates {param.name}, which is not in the network: pass the network '
                             'that the Trainer is for')
    return [(i, names[id(param)]) for i, param in enumerate(trainer._params) if param.grad_req != 'null']


def _leaves(state) -> list:
    """(mean, (variance, None)) -> [mean, variance]"""
    if state is None:
        return []
    return [leaf for part in state for leaf in _leaves(part)] if isinstance(state, (tuple, list)) else [state]


def _number_of_arrays(trainer, i: int) -> int:
    """Of how many arrays the optimizer makes the state of a parameter."""
    from ..mxnet_setup.compat import mx
    weight = mx.nd.zeros((1, 1), dtype=numpy.dtype(trainer._params[i].dtype))
    return len(_leaves(trainer.optimizer.create_state_multi_precision(i, weight)))
