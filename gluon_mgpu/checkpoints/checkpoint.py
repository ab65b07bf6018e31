"""Checkpoints: one file with everything that a training loop needs to continue as if it had not been interrupted.

    checkpoint.save('mine.safetensors', net, trainer, epoch=3)
    metadata = checkpoint.load('mine.safetensors', net, trainer)    # {'epoch': 3}

The file is in the safetensors format, which many programs read and which cannot contain code.
"""
from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy

from ..parallel.workers import Workers
from ..training.parameters import by_name, check_initialized, copies, create_deferred, statistics, unregistered, wait
from . import optimizer_state
from .file import CheckpointError, Snapshot, read, write


def save(path: str | os.PathLike, net: Any, trainer: Any = None, **metadata) -> None:
    """Write a checkpoint; waits for the devices and until the file is on the disk.

    Raises OSError if the file cannot be written.

    Parameters
    ----------
    path : path-like
        Usually ``*.safetensors``. An existing file is kept until the new one is complete.
    net : gluon.Block, the result of `hybridized`, a list of np.ndarray, or a list of such lists
        The network, or its parameters on one device or on each. A parameter that is equal on all devices is stored
        once; one that differs, such as batch norm's running statistics, once per device. Parameters that Gluon does
        not register, such as those in a plain list, are not stored, with a warning.
    trainer : gluon.Trainer, optional
        Stores its optimizer's state: momentum, Adam's moments, counts of updates. The learning rate and other settings
        are not stored.
    **metadata
        Anything else the loop needs, such as ``epoch=3``, JSON-serializable.
    """
    wait()
    write(path, snapshot(net, trainer), metadata)


def snapshot(net: Any, trainer: Any = None, workers: Workers | None = None) -> Snapshot:
    """Copy the state that `save` stores to the host.

    Call ``npx.waitall()`` before: reading an array waits for it, except for batch norm's running statistics in a
    hybridized network. All workers must call this together, because arrays that differ between them are gathered.
    """
    _warn_if_unregistered(net, stacklevel=4)  # shows the caller of `save`
    on_host = {name: [array.asnumpy() for array in arrays] for name, arrays in copies(net).items()}
    own_statistics = {name: on_host[name] for name in statistics(net)}
    gathered = (workers or Workers()).allgather(own_statistics) if own_statistics else []
    on_host |= {name: [array for each in gathered for array in each[name]] for name in own_statistics}
    arrays = {f'parameters/{name}': _merge_equal(arrays) for name, arrays in on_host.items()}
    record: dict[str, Any] = {}
    if trainer is not None:
        record['optimizer'], states = optimizer_state.collect(trainer, net)
        arrays |= {f'states/{name}': _merge_equal([array.asnumpy() for array in per_device])
                   for name, per_device in states.items()}
    return Snapshot(arrays, record)


def load(path: str | os.PathLike, net: Any, trainer: Any = None, log: Callable[[str], None] = print,
         workers: Workers | None = None) -> dict:
    """Load a checkpoint into a network and its Trainer, in place, and return the metadata given to `save`; waits.

    Raises CheckpointError, and changes nothing, if the file is not a complete checkpoint, or is of another network or
    optimizer: name, shape and dtype of each array are compared.

    Parameters
    ----------
    path : path-like
        A file that `save` has written.
    net, trainer
        As for `save`: the same network, on any devices, and a Trainer with the same optimizer, or no trainer. The
        Trainer may have made steps. The network must be initialized; unknown shapes are taken from the file.
    log : callable
        Gets one line if parameters that differed between the devices are loaded onto another number of devices: then
        each device gets their mean. On the same number, each device gets its own values.
    workers : Workers, optional
        Rank 0 reads the file and sends its content to all workers, whose devices count together. An error in reading
        it is a `JobError` on all.
    """
    workers = workers or Workers()
    record, arrays = workers.on_rank_0(lambda: read(path))
    parameters = {key.partition('/')[2]: kept for key, kept in arrays.items() if key.startswith('parameters/')}
    _warn_if_unregistered(net, stacklevel=3)
    check_initialized(net)
    _check_fit(path, net, parameters)
    if trainer is not None:
        if 'optimizer' not in record:
            raise CheckpointError(f'{path}: it has no optimizer state; load it without the trainer')
        optimizer_state.check(path, trainer, net, record['optimizer'], arrays)
    create_deferred(net, {name: kept[0].shape for name, kept in parameters.items()})
    wait()
    averaged = _set(net, parameters, workers)
    if averaged:
        log(f'{len(averaged)} arrays, such as {averaged[0]}, differed between the {len(parameters[averaged[0]])} '
            'devices of the checkpoint; each device now has their mean')
    if trainer is not None:
        optimizer_state.restore(trainer, net, record['optimizer'], arrays)
        _set(net, parameters, workers)  # again, because a Trainer that starts copies the first device's to the others
    return record['metadata']


def _merge_equal(copies: list[numpy.ndarray]) -> list[numpy.ndarray]:
    """Return a single copy if all have the same bits, else all copies."""
    return copies[:1] if all(copies[0].tobytes() == other.tobytes() for other in copies[1:]) else copies


def _warn_if_unregistered(net, stacklevel: int) -> None:
    for attribute in unregistered(net):
        warnings.warn(f'{attribute} holds parameters that are not registered and not part of a checkpoint: make each '
                      'layer or parameter an attribute, or use nn.HybridSequential', stacklevel=stacklevel)


def _check_fit(path, net, kept: dict[str, list]) -> None:
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


def _set(net, kept: dict[str, list], workers: Workers) -> list[str]:
    """Give each device its values, or the mean of all; return the names of the parameters that were averaged."""
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
