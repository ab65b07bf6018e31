"""The file format of checkpoints: arrays by name and a JSON record, with a checksum.

A safetensors file. Its metadata entry ``gluon_mgpu`` is JSON: the checksum of everything else, the version, the record.
"""
from __future__ import annotations

import hashlib
import json
import os
import stat
from typing import NamedTuple

import numpy
import safetensors
import safetensors.numpy

from ..base.files import write_atomically

VERSION = 1


class CheckpointError(ValueError):
    """The file is not a checkpoint, is damaged, or belongs to something else."""


class Snapshot(NamedTuple):
    """The content of a checkpoint, copied to the host."""

    arrays: dict[str, list]  # by name, numpy arrays: one if all devices have the same, else one per device
    record: dict             # everything else, of JSON types


def write(path: str | os.PathLike, kept: Snapshot, position: dict) -> None:
    """Write a checkpoint; can be called from any thread and returns once the file is on the disk.

    Parameters
    ----------
    path : path-like
        An existing file is kept until the new one is complete.
    kept : Snapshot
        As returned by `checkpoint.snapshot`.
    position : dict
        Anything else to store, of JSON types.

    Raises
    ------
    ValueError
        If something cannot be stored.
    OSError
        If the file cannot be written.
    """
    tensors = {f'{name}@{k}': array for name, arrays in kept.arrays.items() for k, array in enumerate(arrays)}
    try:
        record = json.loads(_to_json({'version': VERSION, **kept.record, 'position': position}))  # as `read` gets it
        metadata = {'gluon_mgpu': _to_json({'sha256': checksum(record, tensors), **record})}
        content = safetensors.numpy.save(tensors, metadata)
    except (TypeError, ValueError, KeyError, RecursionError, safetensors.SafetensorError) as error:
        raise ValueError(f'{error}: a checkpoint can only hold arrays of common types and what JSON can hold') from None
    write_atomically(path, [content])


def read(path: str | os.PathLike) -> tuple[dict, dict[str, list]]:
    """Read the checkpoint at `path` and verify its checksum.

    Returns
    -------
    record : dict
        ``position`` and, if a trainer was saved, ``optimizer``.
    arrays : dict of str to list of numpy.ndarray
        By ``parameters/NAME`` and ``states/NAME/NUMBER``: one, or one per device.

    Raises
    ------
    CheckpointError
        If the file is not a complete checkpoint; one line says why.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise CheckpointError(f'{path}: not a regular file')  # opening a FIFO would wait for a writer
        with open(path, 'rb'):
            pass  # raises an OSError that says why; safe_open always says that there is no such file
        record, tensors = _verified(path)
    except OSError as error:
        raise CheckpointError(f'{path}: cannot be read ({error.strerror or error})') from None
    arrays: dict[str, list] = {}
    try:
        for key in sorted(tensors, key=_name_and_number):
            arrays.setdefault(_name_and_number(key)[0], []).append(tensors[key])
    except ValueError as error:
        raise CheckpointError(f'{path}: a damaged checkpoint ({error})') from None
    for name, copies in arrays.items():
        if len({(array.shape, array.dtype) for array in copies}) > 1:
            raise CheckpointError(f'{path}: a damaged checkpoint (the copies of {name} differ in shape or dtype)')
    if not isinstance(record.get('position'), dict) or not isinstance(record.get('optimizer', {}), dict):
        raise CheckpointError(f'{path}: a damaged checkpoint (its header lacks what should be there)')
    return record, arrays


def checksum(record: dict, tensors: dict[str, numpy.ndarray]) -> str:
    """Return the SHA-256 of a `record` and of all `tensors`, with their names, dtypes and shapes."""
    digest = hashlib.sha256(_to_json(record).encode())
    for name, array in sorted(tensors.items()):
        digest.update(f'{name} {array.dtype.name} {array.shape}'.encode())
        digest.update(numpy.ascontiguousarray(array, array.dtype.newbyteorder('<')).data)
    return digest.hexdigest()


def _verified(path: str | os.PathLike) -> tuple[dict, dict[str, numpy.ndarray]]:
    """Return the record and the arrays of a file whose checksum is right."""
    problem = CheckpointError(f'{path}: truncated or altered, or not a checkpoint of gluon_mgpu')
    try:
        with safetensors.safe_open(path, 'numpy') as file:
            record = json.loads((file.metadata() or {})['gluon_mgpu'])
            expected, version = record.pop('sha256'), record['version']
            if version != VERSION:
                raise CheckpointError(f'{path}: version {version}, and this gluon_mgpu reads version {VERSION}; '
                                      'use the gluon_mgpu that wrote it')
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118, it is not a dict
        found = checksum(record, tensors)
    except CheckpointError:
        raise
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise problem from None
    if found != expected:
        raise problem
    del record['version']
    return record, tensors


def _name_and_number(key: str) -> tuple[str, int]:
    name, _, number = key.rpartition('@')
    return name, int(number)


def _to_json(content: dict) -> str:
    return json.dumps(content, separators=(',', ':'))
