"""Checkpoints: everything a training loop needs to continue as if it had never been interrupted, in one file.

    checkpoint.save('mine.safetensors', net, trainer, epoch=3)
    position = checkpoint.load('mine.safetensors', net, trainer)    # {'epoch': 3}

The file is in the safetensors format, which many programs read and which cannot contain code: a JSON header, whose
entry ``gluon_mgpu`` holds a record and a checksum, and the arrays. `save` never leaves an incomplete file, and `load`
validates everything before it changes anything.
"""
from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy

from ..distributed.workers import Workers
from ..training.parameters import (
    by_name,
    copies,
    finish_initialization,
    refuse_uninitialized,
    statistics,
    unregistered,
    wait,
)
from . import optimizer_state
from .file import CheckpointError, Snapshot, read, write


def save(path: str | os.PathLike, net: Any, trainer: Any = None, **position) -> None:
    """Write a checkpoint; waits for the devices and until the file is on the disk.

    Parameters
    ----------
    path : path-like
        The file, usually ``*.safetensors``. An existing file is kept until the new one is complete.
    net : gluon.Block, the result of `hybridized`, a list of np.ndarray, or a list of such lists
        The network, or its parameters on one device or on each. A parameter that is equal on all devices is stored
        once; one that differs, such as batch norm's running statistics, once per device. Parameters that Gluon does
        not register, such as those in a plain list, are not stored, with a warning.
    trainer : gluon.Trainer, optional
        Stores its optimizer's state: momentum, Adam's moments, counts of updates. The learning rate and other settings
        are not stored.
    **position
        Anything else the loop needs, such as ``epoch=3``, of JSON types.

    Raises
    ------
    ValueError
        If the trainer updates a parameter that the network does not have, or something cannot be stored.
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
    net, trainer
        As for `save`.
    workers : Workers, optional
        The processes that train together; by default this one alone.
    """
    _warn_of_unregistered(net, stacklevel=4)  # the caller of `save`
    on_host = {name: [array.asnumpy() for array in arrays] for name, arrays in copies(net).items()}
    own = {name: on_host[name] for name in statistics(net)}
    for others in (workers or Workers()).allgather(own)[1:] if own else ():
        for name, arrays in others.items():
            own[name] = own[name] + arrays
    parameters = {name: _merged(arrays) for name, arrays in (on_host | own).items()}
    arrays = {f'parameters/{name}': kept for name, kept in parameters.items()}
    record: dict[str, Any] = {}
    if trainer is not None:
        record['optimizer'], states = optimizer_state.collect(trainer, _names(net))
        arrays |= {f'states/{name}': _merged([array.asnumpy() for array in on_devices])
                   for name, on_devices in states.items()}
    return Snapshot(arrays, record)


def load(path: str | os.PathLike, net: Any, trainer: Any = None, log: Callable[[str], None] = print,
         workers: Workers | None = None) -> dict:
    """Load a checkpoint into a network and its Trainer, in place; waits.

    Parameters
    ----------
    path : path-like
        A file that `save` has written.
    net, trainer
        As for `save`: the same network, on any devices, and a Trainer with the same optimizer, or no trainer. The
        Trainer may have made steps. The network must be initialized; unknown shapes are taken from the file.
    log : callable
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
        If the file is not a complete checkpoint, or is of another network or optimizer: name, shape and dtype of each
        array are compared. Nothing has been changed in this case.
    """
    workers = workers or Workers()
    record, arrays = workers.on_rank_0(lambda: read(path))
    parameters = {key.partition('/')[2]: kept for key, kept in arrays.items() if key.startswith('parameters/')}
    _warn_of_unregistered(net, stacklevel=3)
    refuse_uninitialized(net)
    _check(path, net, parameters)
    if trainer is not None:
        if 'optimizer' not in record:
            raise CheckpointError(f"{path}: it holds no optimizer's state: load it without the trainer")
        optimizer_state.check(path, trainer, _names(net), record['optimizer'], arrays)
    finish_initialization(net, {name: kept[0].shape for name, kept in parameters.items()})
    wait()
    averaged = _set(net, parameters, workers)
    if averaged:
        numbers = f'{len(parameters[averaged[0]])} devices, now on {workers.size * len(copies(net)[averaged[0]])}'
        log(f'{len(averaged)} arrays, such as {averaged[0]}, differed between the {numbers}: each has their mean')
    if trainer is not None:
        optimizer_state.restore(trainer, _names(net), record['optimizer'], arrays)
        _set(net, parameters, workers)  # once more: a Trainer that begins copies the first device's to the others
    return record['position']


def _merged(copies: list[numpy.ndarray]) -> list[numpy.ndarray]:
    """Copies of an array, one per device: a single one if they are equal to the bit."""
    first, *others = copies
    equal = all(first.tobytes() == other.tobytes() for other in others)
    return [first] if equal else [first, *others]


def _warn_of_unregistered(net, stacklevel: int) -> None:
    for attribute in unregistered(net):
        warnings.warn(f'{attribute} holds parameters that are not registered and not part of a checkpoint: make each '
                      'layer or parameter an attribute, or use nn.HybridSequential', stacklevel=stacklevel)


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
