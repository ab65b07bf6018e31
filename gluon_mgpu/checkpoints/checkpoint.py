"""Checkpoints: one file with everything that a training loop needs to continue as if it had not been interrupted.

It is in the safetensors format, which cannot contain code. Its metadata entry ``gluon_mgpu`` is a JSON record, which
starts with the checksum of the arrays and of its other items.
"""
from __future__ import annotations

import functools
import hashlib
import json
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import safetensors.numpy

from ..base.files import read_file, write_atomically
from ..base.text import counted
from ..mxnet_setup.compat import npx
from ..parallel.workers import Workers
from ..training.parameters import create_deferred, of_unknown_shape, unregistered
from . import state
from .state import CheckpointError

VERSION = 1
_to_json = functools.partial(json.dumps, separators=(',', ':'))


class DamagedError(CheckpointError):
    """The file is not a complete checkpoint."""


class Snapshot(NamedTuple):
    """The content of a checkpoint, copied to the host."""

    arrays: dict[str, list]  # numpy arrays by name, one per device; of parameters and states that are equal, only one
    record: dict             # everything else, JSON-serializable


def save(path: str | os.PathLike, net: Any, trainer: Any = None, **metadata) -> None:
    """Write a checkpoint; waits for the devices and until the file is on the disk.

    Raises OSError if the file cannot be written, TypeError for metadata that JSON cannot hold, such as NumPy's numbers.

    Parameters
    ----------
    path : path-like
        Usually ``*.safetensors``. An existing file is kept until the new one is complete.
    net : gluon.Block, a list of np.ndarray, or a list of such lists
        The network, or its parameters on one device or on each. Those that are equal on all devices are stored once;
        those that differ, such as running statistics, for each device, and so are gradients with ``grad_req='add'``.
        Parameters that Gluon does not register, such as those in a plain list, are not stored, with a warning, nor
        those of unknown shape, because no batch has passed through their layer.
    trainer : gluon.Trainer, optional
        Its optimizer's state is stored: momentum, moments, counts of updates; not settings such as the rate.
    **metadata
        Anything else the loop needs, such as ``epoch=3``, JSON-serializable.
    """
    npx.waitall()
    write(path, snapshot(net, trainer), metadata)


def snapshot(net: Any, trainer: Any = None, workers: Workers | None = None) -> Snapshot:
    """Copy the state that `save` stores to the host, on all workers together; call ``npx.waitall()`` before."""
    # Reading waits for an array, except for running statistics under ``hybridize(static_shape=True)``
    for attribute in unregistered(net):
        warnings.warn(f'{attribute} holds parameters that are not registered and not part of a checkpoint: make each '
                      'layer or parameter an attribute, or use nn.HybridSequential', stacklevel=3)
    if unknown := of_unknown_shape(net):
        warnings.warn(f'{unknown[0]} has no values yet, because no batch has passed through its layer: '
                      f'{counted(len(unknown), "parameter")} will not be part of the checkpoint', stacklevel=3)
    record: dict[str, Any] = {'left_out': unknown} if unknown else {}
    arrays = {key: per_device if key.startswith('gradients/') else _merge_equal(per_device)  # gradients are summed
              for key, per_device in state.collect_network(net, workers or Workers()).items()}
    if trainer is not None:
        record['optimizer'], states = state.collect_optimizer(trainer, net)
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
    net, trainer
        As for `save`: the same network, on any devices, and a Trainer with the same optimizer, or no trainer. The
        Trainer may have made steps. The network must be initialized; unknown shapes are taken from the file.
        Parameters that `save` has left out are not changed. A schedule of the learning rate other than MXNet's may
        only depend on the number of the update.
    log : callable
        Gets one line if parameters that differed between the devices are loaded onto another number of devices: then
        each device gets their mean. On the same number, each device gets its own values.
    workers : Workers, optional
        Rank 0 reads the file for all workers, whose devices count together. An error there is a `JobError` on all.
    """
    workers = workers or Workers()
    record, arrays = workers.on_rank_0(lambda: read(path))
    parameters = {key.partition('/')[2]: kept for key, kept in arrays.items() if key.startswith('parameters/')}
    state.check_network(path, net, parameters, record.get('left_out', []))
    if trainer is not None:
        state.check_optimizer(path, trainer, net, record.get('optimizer', {}), arrays)
    create_deferred(net, {name: kept[0].shape for name, kept in parameters.items()})
    npx.waitall()
    state.reset_stores(net)
    if averaged := state.set_network(net, parameters, workers):
        log(f'{len(averaged)} arrays, such as {averaged[0]}, differed between the {len(parameters[averaged[0]])} '
            'devices of the checkpoint; each device now has their mean')
    if trainer is not None:
        state.restore_optimizer(trainer, net, record['optimizer'], arrays)
        # Again, because a Trainer that starts copies the first device's to the others
        state.set_network(net, parameters, workers)
    state.set_gradients(net, arrays, workers)
    return record['metadata']


def write(path: str | os.PathLike, kept: Snapshot, metadata: dict) -> None:
    """Write a snapshot and JSON-serializable metadata, and wait until the file is on the disk. Thread-safe."""
    tensors = {f'{name}@{k}': array for name, arrays in kept.arrays.items() for k, array in enumerate(arrays)}
    record = json.loads(_to_json({'version': VERSION, **kept.record, 'metadata': metadata}))  # as `read` gets it
    header = {'gluon_mgpu': _to_json({'sha256': sha256_of(record, tensors), **record})}
    write_atomically(path, safetensors.numpy.save(tensors, header))


def read(path: str | os.PathLike) -> tuple[dict, dict[str, list]]:
    """Read a checkpoint and verify its checksum; return its record, and for each name a list of arrays.

    There is one array, or one for each device.
    Raises DamagedError if it is no complete checkpoint, CheckpointError if it is unreadable or of another version.
    """
    try:
        content = read_file(path)  # once; a file that is mapped into memory could change or be cut
    except OSError as error:
        raise CheckpointError(f'{path}: cannot be read ({error.strerror or error})') from None
    try:
        header = json.loads(content[8:8 + int.from_bytes(content[:8], 'little')])  # after its size
        record = json.loads(header['__metadata__']['gluon_mgpu'])
        expected, version = record.pop('sha256'), record['version']
        tensors = safetensors.numpy.load(content)
        if version == VERSION and sha256_of(record, tensors) != expected:
            raise ValueError
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError):
        raise DamagedError(f'{path}: truncated or altered, or not a checkpoint of gluon_mgpu') from None
    if version != VERSION:
        raise CheckpointError(f'{path}: version {version}, but this gluon_mgpu reads version {VERSION}; use the '
                              'gluon_mgpu that wrote it')
    arrays: dict[str, list] = {}
    for name, k in sorted((name, int(k)) for name, _, k in (key.rpartition('@') for key in tensors)):
        arrays.setdefault(name, []).append(tensors[f'{name}@{k}'])
    return record, arrays


def sha256_of(record: dict, tensors: dict[str, numpy.ndarray]) -> str:
    """Return the SHA-256 of a record and of the names, dtypes, shapes and values of all tensors."""
    digest = hashlib.sha256(_to_json(record).encode())
    for name, array in sorted(tensors.items()):
        digest.update(f'{name} {array.dtype.name} {array.shape}'.encode())
        digest.update(numpy.ascontiguousarray(array, array.dtype.newbyteorder('<')).data)
    return digest.hexdigest()


def _merge_equal(copies: list[numpy.ndarray]) -> list[numpy.ndarray]:
    """Return a single copy if all have the same bits, else all copies."""
    return copies[:1] if all(copies[0].tobytes() == other.tobytes() for other in copies[1:]) else copies

