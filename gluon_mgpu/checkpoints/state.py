"""The state of a network and of its Trainer's optimizer as arrays and numbers: momentum, moments, counts of updates.

`Trainer.save_states` pickles it, and loading a pickle can run any code. Here, the Trainer's optimizer creates its own
state, and takes the values of named arrays if shapes and dtypes match.
"""
import copy
from itertools import count, takewhile
from typing import Any

import numpy

from ..base.nested import leaves
from ..mxnet_setup.compat import MXNET_MAJOR, assign, gluon, mx, npx
from ..parallel.allreduce import dtype_and_shape
from ..parallel.workers import Workers
from ..training.parameters import by_name, copies, with_grad_req
from ..training.schedules import restart

NUMBERS = ('m_schedule', 'last_lr', 'cur_lr')  # Nadam and LARS keep these from step to step


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


def check_network(path, net: Any, kept: dict[str, list]) -> None:
    """Raise CheckpointError if the arrays of a checkpoint do not fit the network."""
    params = by_name(net) if hasattr(net, 'collect_params') else {k: arrays[0] for k, arrays in copies(net).items()}
    # Shapes may be None, or have 0 or -1 for unknown dimensions
    expected = {name: (param.shape, numpy.dtype(param.dtype)) for name, param in params.items()}
    missing, unknown = sorted(expected.keys() - kept.keys()), sorted(kept.keys() - expected.keys())
    if missing or unknown:
        what = f'lacks {missing[0]}' if missing else f'has {unknown[0]}, which the network lacks'
        raise CheckpointError(f'{path}: of another network, it {what}')
    for name, (shape, dtype) in expected.items():
        found = kept[name][0]
        if shape is not None and (len(found.shape) != len(shape)
                                  or any(n > 0 and n != m for n, m in zip(shape, found.shape))):
            raise CheckpointError(f'{path}: of another network, the shape of {name} is {found.shape} in the file and '
                                  f'{tuple(shape)} in the network')
        if found.dtype != dtype:
            raise CheckpointError(f'{path}: {name} is {found.dtype} in the file and {dtype} in the network; cast the '
                                  'network')


def set_network(net: Any, kept: dict[str, list], workers: Workers) -> list[str]:
    """Give each device its values, or the mean of all; return the names of the parameters that were averaged."""
    averaged = []
    for name, arrays in copies(net).items():
        values = kept[name]
        if len(values) not in (1, workers.size * len(arrays)):
            averaged.append(name)
            values = [numpy.mean(values, axis=0, dtype='float64').astype(values[0].dtype)]
        for k, array in enumerate(arrays, workers.rank * len(arrays)):
            assign(array, values[k % len(values)])
    npx.waitall()
    return averaged


def set_gradients(net: Any, kept: dict[str, list], workers: Workers) -> None:
    """Give each device its sum over batches, or the first the sum of all; without any, set these gradients to zero."""
    for name, param in with_grad_req(net, 'add').items():
        gradients, values = param.list_grad(), kept.get(f'gradients/{name}', [])
        if len(values) != (total := workers.size * len(gradients)):
            values = [sum(values), *[0] * total]
        for gradient, value in zip(gradients, values[workers.rank * len(gradients):]):
            assign(gradient, numpy.broadcast_to(value, gradient.shape))


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
    updated = _updated(trainer, net)
    _check_schedule(path, trainer.optimizer)
    mine = type(trainer.optimizer).__name__
    if record['name'] != mine:
        raise CheckpointError(f"{path}: the optimizer's state is of {record['name']}, this is {mine}")
    for i, name in updated:
        if name not in record['counts'] and trainer._params[i].grad_req != 'null':
            raise CheckpointError(f'{path}: its Trainer did not update {name}, but this one does')
        if record['counts'].get(name):
            keys = takewhile(arrays.__contains__, (f'states/{name}/{j}' for j in count()))
            found = [dtype_and_shape(arrays[key][0]) for key in keys]
            weight = arrays[f'parameters/{name}'][0]
            state = trainer.optimizer.create_state_multi_precision(i, mx.nd.array(weight, dtype=weight.dtype))
            expected = [dtype_and_shape(leaf) for leaf in leaves(state)]
            if found != expected:
                raise CheckpointError(f"{path}: the optimizer's state of {name} is {', '.join(found) or 'empty'} in "
                                      f'the file and {", ".join(expected) or "empty"} here; give {mine} the same '
                                      'settings')


def restore_optimizer(trainer: Any, net: Any, record: dict, arrays: dict[str, list]) -> None:
    """Give a Trainer a state that `check_optimizer` has accepted, in place; its parameters must have their values."""
    optimizer = trainer.optimizer
    if trainer._update_on_kvstore:
        trainer._reset_kvstore()  # it holds copies of the parameters
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    trainer._init_params()
    # The state of a parameter without updates is created at its first update
    names = {i: name for i, name in _updated(trainer, net) if record['counts'].get(name)}
    for k, updater in enumerate(_updaters(trainer)):
        updater.states, updater.states_synced = {}, {}
        for i, name in names.items():
            state = _new_state(trainer, i, k)
            for j, leaf in enumerate(leaves(state)):
                values = arrays[f'states/{name}/{j}']
                leaf[()] = values[k if len(values) > k else 0]
            key = _key(trainer, i)
            updater.states[key], updater.states_synced[key] = state, False  # possibly on the wrong device
    _set_update_counts(trainer, {_key(trainer, i): record['counts'][name] for i, name in names.items()})
    optimizer.num_update, schedule = record['num_update'], optimizer.lr_scheduler
    if isinstance(schedule, mx.lr_scheduler.LRScheduler):
        restart(schedule, schedule.warmup_final_lr if optimizer.lr is None else optimizer.lr)
    for update in range(1, optimizer.num_update + 1) if schedule else ():
        schedule(update)  # at its end, a schedule keeps the rate of the update before
    for name, number in record['numbers'].items():
        setattr(optimizer, name, number)


def _set_update_counts(trainer: gluon.Trainer, counts: dict[int, int]) -> None:
    """Set how often each parameter was updated, by its number. The optimizer counts on each device."""
    optimizer = trainer.optimizer
    ids = {0, *(device.device_id for param in trainer._params for device in param.list_ctx())}
    optimizer._all_index_update_counts = {device_id: dict(counts) for device_id in ids}
    optimizer._index_update_count = optimizer._all_index_update_counts[0]


def _check_schedule(path: Any, optimizer: Any) -> None:
    """Raise CheckpointError for a used schedule that changes itself in another way than those of MXNet."""
    schedule = copy.deepcopy(optimizer.lr_scheduler)
    if schedule is None or not optimizer.num_update or type(schedule).__module__.startswith('mxnet.'):
        return
    before = dict(getattr(schedule, '__dict__', {}))
    schedule(optimizer.num_update + 1)
    if before != getattr(schedule, '__dict__', {}):
        raise CheckpointError(f'{path}: the schedule {type(schedule).__name__} changes itself and was used for '
                              f'{optimizer.num_update} updates: load into a new Trainer, with a new schedule')


def _updaters(trainer) -> list:
    """Return the objects that keep the states: the KVStore's updater, or one per device."""
    return [trainer._kvstore._updater] if trainer._update_on_kvstore else trainer._updaters


def _updated(trainer, net) -> list[tuple[int, str]]:
    """Return the index in the Trainer and the name in the network of each parameter, also of those frozen now."""
    if not isinstance(trainer, gluon.Trainer):  # for example a list of several
        raise CheckpointError(f'a {type(trainer).__name__} is no gluon.Trainer: pass one Trainer, with its network; '
                              'save several in a file each')
    names = {id(param): name for name, param in by_name(net).items()}
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
