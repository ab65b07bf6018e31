"""A checkpoint: all that a training loop needs to go on as if it had never been interrupted, in one file.

    checkpoint.save('mine.safetensors', net, trainer, epoch=3)
    position = checkpoint.load('mine.safetensors', net, trainer)    # {'epoch': 3}

The file is one of safetensors, which any program can read and none can be made to run: arrays, and before them a
header of JSON, whose entry ``gluon_mgpu`` holds all the rest and a checksum of the file. `save` never leaves half
a file, and `load` changes nothing before it has seen that all of it fits.
"""
from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy

from ..parallel.workers import Workers
from . import optimizer_state
from .checkpoint_file import CheckpointError, Snapshot, read, write
from .parameters import by_name, copies, finish_initialization, refuse_uninitialized, statistics, wait


def save(path: str | os.PathLike, net: Any, trainer: Any = None, **position) -> None:
    """Write a checkpoint; waits for the devices, and until the file is on the disk.

    Parameters
    ----------
    path : path-like
        The file, by custom ``*.safetensors``. What it was before is left until the new one is complete.
    net : gluon.Block, what `hybridized` makes of one, or a list of lists of np.ndarray
        The network, or its parameters on each device. A parameter that is the same on all devices is kept once,
        one that is not, such as batch norm's running statistics, with every device's copy.
    trainer : gluon.Trainer, optional
        Its optimizer's state is kept: momentum, Adam's means, the counts of updates. Not the learning rate and
        other settings, which are the program's own.
    **position
        What else the loop needs to know, such as ``epoch=3``: of what JSON can hold.

    Raises
    ------
    ValueError
        If the trainer updates a parameter that the network does not have, or something cannot be kept.
    OSError
        If the file cannot be written.
    """
    wait()
    write(path, snapshot(net, trainer), position)


def snapshot(net: Any, trainer: Any = None, workers: Workers | None = None) -> Snapshot:
    """Copy to the host what `save` keeps. Call ``npx.waitall()`` after the last step of training.

    To read an array waits for it, but not for the running statistics of batch norm in a hybridized network. Of several
    workers, all must call it: what is not the same on all of them is gathered.

    Parameters
    ----------
    net : gluon.Block or list of lists of np.ndarray
        A network, or the parameters on each device.
    trainer : gluon.Trainer, optional
        Its state is kept, too.
    workers : Workers, optional
        The processes that train together; by default this one alone.
    """
    on_host = {name: [array.asnumpy() for array in arrays] for name, arrays in copies(net).items()}
    own = {name: on_host[name] for name in statistics(net)}
    for others in (workers or Workers()).gather(own)[1:] if own else ():
        for name, arrays in others.items():
            own[name] = own[name] + arrays
    parameters = {name: _merged(arrays) for name, arrays in (on_host | own).items()}
    arrays = {f'parameters/{name}': kept for name, kept in parameters.items()}
    record: dict[str, Any] = {'parameters': {name: len(kept) for name, kept in parameters.items()}}
    if trainer is not None:
        record['optimizer'], states = optimizer_state.collect(trainer, _names(net))
        arrays |= {f'states/{name}': _merged([array.asnumpy() for array in on_devices])
                   for name, on_devices in states.items()}
    return Snapshot(arrays, record)


def load(path: str | os.PathLike, net: Any, trainer: Any = None, say: Callable[[str], None] = print,
         workers: Workers | None = None) -> dict:
    """Give a network, and the state of its optimizer, the values of a checkpoint, in place; waits.

    Parameters
    ----------
    path : path-like
        A file that `save` has written.
    net, trainer
        As for `save`: the same network, on any devices, and a Trainer with the same optimizer, or no trainer. The
        network must be initialized; shapes that it does not know yet it learns from the file.
    say : callable
        Is told in one line if parameters that differed between the devices come to another number of devices: each
        device gets their mean then. With the same number, each gets its own.
    workers : Workers, optional
        The first one reads the file, and all get what is in it; the devices are those of all of them.

    Returns
    -------
    dict
        The position that `save` was given.

    Raises
    ------
    CheckpointError
        If the file is no whole checkpoint, or one of another network or optimizer: name, shape and dtype of each
        array are compared. Nothing has been changed then.
    """
    workers = workers or Workers()
    record, arrays = workers.first(lambda: read(path))
    parameters = {name: arrays[f'parameters/{name}'] for name in record['parameters']}
    refuse_uninitialized(net)
    _check(path, net, parameters)
    if trainer is not None:
        if 'optimizer' not in record:
            raise CheckpointError(f"{path}: it holds no optimizer's state: load it without the trainer")
        states = {name[len('states/'):]: kept for name, kept in arrays.items() if name.startswith('states/')}
        optimizer_state.check(path, trainer, _names(net), record['optimizer'], states)
    finish_initialization(net, {name: kept[0].shape for name, kept in parameters.items()})
    wait()
    averaged = _set(net, parameters, workers)
    if averaged:
        numbers = f'{len(parameters[averaged[0]])} devices, now on {workers.size * len(copies(net)[averaged[0]])}'
        say(f'{len(averaged)} arrays, such as {averaged[0]}, differed between the {numbers}: each has their mean')
    if trainer is not None:
        optimizer_state.restore(trainer, _names(net), record['optimizer'], states)
        _set(net, parameters, workers)  # once more: a Trainer that begins copies the first device's to the others
    return record['position']


def _merged(copies: list[numpy.ndarray]) -> list[numpy.ndarray]:
    """Copies of an array, one per device: a single one if they are equal to the bit."""
    first, *others = copies
    equal = all(first.tobytes() == other.tobytes() for other in others)
    return [first] if equal else [first, *others]


def _names(net) -> dict[int, str]:
    """The names of a network's parameters by their identity: as a Trainer knows them."""
    return {id(param): name for name, param in by_name(net).items()}


def _check(path, net, kept: dict[str, list]) -> None:
    """Refuse arrays that are not those of the network."""
    there = _shapes(net)
    missing, unknown = sorted(there.keys() - kept.keys()), sorted(kept.keys() - there.keys())
    if missing or unknown:
        what = f'lacks {missing[0]}' if missing else f'has {unknown[0]}, which the network lacks'
        raise CheckpointError(f'{path}: of another network: it {what}')
    for name, (shape, dtype) in there.items():
        found = kept[name][0]
        if len(found.shape) != len(shape) or any(n > 0 and n != m for n, m in zip(shape, found.shape)):
            raise CheckpointError(f'{path}: of another network: {name} has the shape {found.shape} in it and '
                                  f'{tuple(shape)} here')
        if found.dtype != dtype:
            raise CheckpointError(f'{path}: {name} is {found.dtype} in it and {dtype} here: cast the network')


def _shapes(net) -> dict[str, tuple]:
    """Shape, with 0 or -1 for what is not known yet, and dtype of each parameter."""
    if hasattr(net, 'collect_params'):
        return {name: (param.shape or (), numpy.dtype(param.dtype)) for name, param in by_name(net).items()}
    return {name: (arrays[0].shape, arrays[0].dtype) for name, arrays in copies(net).items()}


def _set(net, kept: dict[str, list], workers: Workers) -> list[str]:
    """Give every device its values, or the mean of all; return the names of those that were averaged."""
    from ..mxnet_setup.compat import assign
    averaged = []
    for name, arrays in copies(net).items():
        values = kept[name]
        if len(values) not in (1, workers.size * len(arrays)):
            averaged.append(name)
            values = [numpy.mean(values, axis=0, dtype='float64').astype(values[0].dtype)]
        for k, array in enumerate(arrays, workers.rank * len(arrays)):
            assign(array, values[k % len(values)])
    wait()
    return averaged
