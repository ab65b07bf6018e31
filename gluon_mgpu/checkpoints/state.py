"""The state of a network and of its Trainer's optimizer as arrays and numbers: momentum, moments, counts of updates.

`Trainer.save_states` pickles it, and loading a pickle can run any code. Here, the Trainer's optimizer creates its own
state, and takes the values of named arrays if shapes and dtypes match.
"""
from itertools import count, takewhile
from typing import Any

import numpy

from ..base.nested import leaves
from ..mxnet_setup.compat import MXNET_MAJOR, assign, mx, npx
from ..parallel.workers import Workers
from ..training.parameters import copies, parameters_by_name, registered, with_grad_req
from ..training.schedules import go_to_update

NUMBERS = {'m_schedule', 'last_lr', 'cur_lr'}  # Nadam and LARS keep these from step to step


class CheckpointError(ValueError):
    """The file is not a checkpoint, is damaged, or belongs to another run, network or optimizer."""


def collect_network(net: Any, workers: Workers) -> dict[str, list]:
    """Return parameters and gradients with ``grad_req='add'`` on the host, those that differ of all workers; waits."""
    on_host = {f'parameters/{name}': [array.asnumpy() for array in arrays] for name, arrays in copies(net).items()}
    own = {f'parameters/{name}': on_host[f'parameters/{name}'] for name in with_grad_req(net, 'null')}
    own |= {f'gradients/{name}': [gradient.asnumpy() for gradient in param.list_grad()]
            for name, param in with_grad_req(net, 'add').items()}
    gathered = workers.allgather(own) if own else []
    return {**on_host, **{key: [array for each in gathered for array in each[key]] for key in own}}


def check_network(path, net: Any, kept: dict[str, list], left_out: list) -> None:
    """Raise CheckpointError if the parameters in a checkpoint do not fit the network.

    The network may have the parameters that were `left_out`, because their shape was unknown.
    """
    params = {**{name: array for name, (array, *_) in copies(net).items()}, **registered(net)}
    if differing := sorted((params.keys() - {*map(str, left_out)}) ^ kept.keys()):
        raise CheckpointError(f'{path}: of another network, only one of the two has {differing[0]}')
    for name, (found, *_) in kept.items():
        shape, dtype = params[name].shape, numpy.dtype(params[name].dtype)
        if not _fits(found.shape, shape) or found.dtype != dtype:
            raise CheckpointError(f'{path}: of another network, {name} is {_dtype_and_shape(found)} in the file and '
                                  f'{dtype} {shape} in the network')


def _fits(found: tuple, shape: tuple | None) -> bool:
    """Return True if a shape may be `shape`, which is None or has 0 or -1 for unknown dimensions."""
    return shape is None or (len(found) == len(shape) and all(n <= 0 or n == m for n, m in zip(shape, found)))


def reset_stores(net: Any) -> None:
    """Let key-value stores of Trainers forget their copies of a network's parameters, and with them the states."""
    # Otherwise a store gives its own copies back after the next update. `set_data` resets it, as Gluon's `load` does
    for param in registered(net).values():
        if param.shape and not param._deferred_init:  # MXNet 1.9 cannot set those without dimensions
            param.set_data(param.list_data()[0])


def set_network(net: Any, kept: dict[str, list], workers: Workers) -> list[str]:
    """Give each device its values, or the mean of all; return the names of the parameters that were averaged."""
    averaged, arrays_of = [], copies(net)
    for name, values in kept.items():
        arrays = arrays_of[name]
        if len(values) not in (1, workers.size * len(arrays)):
            averaged.append(name)
            values = [numpy.mean(values, axis=0, dtype='float64').astype(values[0].dtype)]
        for k, array in enumerate(arrays, workers.rank * len(arrays)):
            assign(array, values[k % len(values)])
    npx.waitall()
    return averaged


def set_gradients(net: Any, kept: dict[str, list], workers: Workers) -> None:
    """Give each device its own sum of gradients; another number of devices gets the whole sum on the first."""
    for name, param in with_grad_req(net, 'add').items():
        gradients = param.list_grad()
        first, number = workers.rank * len(gradients), workers.size * len(gradients)  # of all devices
        sums = kept.get(f'gradients/{name}', [])  # none if the gradients were not added up then
        if len(sums) != number:
            zero = numpy.zeros(param.shape, param.dtype)
            sums = [sum(sums, zero)] + [zero] * (number - 1)
        for gradient, value in zip(gradients, sums[first:]):
            assign(gradient, value)


def collect_optimizer(trainer: Any, net: Any) -> tuple[dict, dict[str, list]]:
    """Return the state of a Trainer, possibly before its first step, as a record for JSON and arrays; does not wait."""
    # The arrays, by PARAMETER/NUMBER, are a list with one NDArray for each device that keeps it
    updated = _updated(trainer, net)
    optimizer, updaters = trainer.optimizer, _updaters(trainer)
    if hasattr(optimizer, 'cumgrads'):  # LBSGD: gradients of batches that are not complete yet
        raise ValueError(f'the optimizer {type(optimizer).__name__} keeps more than arrays and numbers: checkpoints '
                         'cannot hold its state')
    counts = optimizer._all_index_update_counts.values()
    numbers = {name: getattr(optimizer, name) for name in NUMBERS if hasattr(optimizer, name)}
    record: dict[str, Any] = {
        'name': type(optimizer).__name__, 'num_update': optimizer.num_update, 'counts': {},
        'numbers': {name: value if value is None else float(value) for name, value in numbers.items()}}
    states: dict[str, list] = {}
    for i, name in updated:
        key = _key(trainer, i)
        record['counts'][name] = max(on_device.get(key, 0) for on_device in counts)
        if record['counts'][name]:
            # Parameter.set_data drops a state; then save the one that the next step would create
            per_device = [leaves(updater.states[key] if key in updater.states else _new_state(trainer, i, k))
                          for k, updater in enumerate(updaters)]
            states |= {f'{name}/{j}': list(arrays) for j, arrays in enumerate(zip(*per_device))}
    return record, states


def check_optimizer(path, trainer: Any, net: Any, record: dict, arrays: dict[str, list]) -> None:
    """Raise CheckpointError if an optimizer's state does not fit a Trainer; the parameters in `arrays` must fit."""
    if not record:
        raise CheckpointError(f'{path}: it has no optimizer state; load it without the trainer')
    mine = type(trainer.optimizer).__name__
    if record['name'] != mine:
        raise CheckpointError(f"{path}: the optimizer's state is of {record['name']}, this is {mine}")
    for i, name in _updated(trainer, net):
        if name not in record['counts'] and trainer._params[i].grad_req != 'null':
            raise CheckpointError(f'{path}: its Trainer did not update {name}, but this one does')
        if record['counts'].get(name):
            keys = takewhile(arrays.__contains__, (f'states/{name}/{j}' for j in count()))
            weight = arrays[f'parameters/{name}'][0]
            state = trainer.optimizer.create_state_multi_precision(i, mx.nd.array(weight, dtype=weight.dtype))
            if [_dtype_and_shape(arrays[key][0]) for key in keys] != [_dtype_and_shape(leaf) for leaf in leaves(state)]:
                raise CheckpointError(f"{path}: the optimizer's state of {name} does not fit: give {mine} the same "
                                      'settings')


def restore_optimizer(trainer: Any, net: Any, record: dict, arrays: dict[str, list]) -> None:
    """Give a Trainer a state that `check_optimizer` has accepted, in place; its parameters must have their values."""
    if any(param._deferred_init for param in trainer._params):
        return  # it has made no step yet, neither here nor before
    # 1. Start the Trainer anew: its key-value store holds copies of the parameters
    if trainer._update_on_kvstore:
        trainer._reset_kvstore()
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    trainer._init_params()
    # 2. The states. That of a parameter without updates is created at its first update
    names = {i: name for i, name in _updated(trainer, net) if record['counts'].get(name)}
    for k, updater in enumerate(_updaters(trainer)):
        updater.states = {_key(trainer, i): _restored_state(trainer, i, k, name, arrays) for i, name in names.items()}
        updater.states_synced = dict.fromkeys(updater.states, False)  # possibly on the wrong device
    # 3. The updates of each parameter, which the optimizer counts on each device, and the schedule after them
    optimizer = trainer.optimizer
    counts = {_key(trainer, i): record['counts'][name] for i, name in names.items()}
    ids = {0, *(device.device_id for param in trainer._params for device in param.list_ctx())}
    optimizer._all_index_update_counts = {device_id: dict(counts) for device_id in ids}
    optimizer._index_update_count = optimizer._all_index_update_counts[0]
    optimizer.num_update = record['num_update']
    go_to_update(optimizer.lr_scheduler, optimizer.num_update, optimizer.lr)
    for name in record['numbers'].keys() & NUMBERS:
        setattr(optimizer, name, record['numbers'][name])


def _restored_state(trainer, i: int, k: int, name: str, arrays: dict[str, list]):
    """Create the state of a parameter on device k, with its values in a checkpoint."""
    state = _new_state(trainer, i, k)
    for j, leaf in enumerate(leaves(state)):
        values = arrays[f'states/{name}/{j}']
        leaf[()] = values[k if len(values) > k else 0]
    return state


def _updaters(trainer) -> list:
    """Return the objects that keep the states: the KVStore's updater, or one per device."""
    return [trainer._kvstore._updater] if trainer._update_on_kvstore else trainer._updaters


def _updated(trainer, net) -> list[tuple[int, str]]:
    """Return the index in the Trainer and the name in the network of each parameter, also of those frozen now."""
    names = {id(param): name for name, param in parameters_by_name(net).items()}
    for param in trainer._params:
        if id(param) not in names:
            raise ValueError(f'the Trainer updates {param.name}, which is not in the network: pass the network '
                             'that the Trainer is for')
    return [(i, names[id(param)]) for i, param in enumerate(trainer._params)]


def _key(trainer, i: int) -> int:
    """Return the number under which parameter i of a Trainer is updated, on MXNet 2 possibly another in the store."""
    if MXNET_MAJOR < 2 or not trainer._update_on_kvstore:
        return i
    return trainer._param2idx[trainer._params[i]._uuid]  # there, parameters that layers share leave gaps


def _new_state(trainer, i: int, k: int):
    """Create the state of a parameter on device k, as its first update would."""
    return trainer.optimizer.create_state_multi_precision(i, trainer._params[i].list_data()[k].as_nd_ndarray())


def _dtype_and_shape(array: Any) -> str:
    return f'{numpy.dtype(array.dtype)} {array.shape}'
