"""The file format of checkpoints: a safetensors file with arrays by name, and a JSON record with a checksum.

The record is the metadata entry ``gluon_mgpu``. It starts with the checksum of the arrays and of its other items.
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
    """The file is not a checkpoint, is damaged, or belongs to another run, network or optimizer."""


class DamagedError(CheckpointError):
    """The file is not a complete checkpoint."""


class Snapshot(NamedTuple):
    """The content of a checkpoint, copied to the host."""

    arrays: dict[str, list]  # numpy arrays by name: one if it is equal on all devices, else one per device
    record: dict             # everything else, JSON-serializable


def write(path: str | os.PathLike, kept: Snapshot, metadata: dict) -> None:
    """Write a snapshot and JSON-serializable metadata, and wait until the file is on the disk. Thread-safe.

    Raises ValueError if something cannot be stored, and OSError if the file cannot be written; an existing file is then
    unchanged.
    """
    tensors = {f'{name}@{k}': array for name, arrays in kept.arrays.items() for k, array in enumerate(arrays)}
    try:
        record = json.loads(_to_json({'version': VERSION, **kept.record, 'metadata': metadata}))  # as `read` gets it
        header = {'gluon_mgpu': _to_json({'sha256': checksum(record, tensors), **record})}
        content = safetensors.numpy.save(tensors, header)
    except (TypeError, ValueError, KeyError, RecursionError, safetensors.SafetensorError) as error:
        raise ValueError(f'{error}: a checkpoint can only hold arrays of common types and what JSON can hold') from None
    write_atomically(path, content)


def read(path: str | os.PathLike) -> tuple[dict, dict[str, list]]:
    """Read a checkpoint and verify its checksum; return its record and its arrays.

    The record has ``metadata`` and, if a trainer was saved, ``optimizer``. For each name, ``parameters/NAME`` or
    ``states/NAME/NUMBER``, there is a list with one NumPy array, or with one per device. Raises DamagedError if the
    file is not a complete checkpoint, CheckpointError if it cannot be read or has another version.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a FIFO would wait for a writer
            raise DamagedError(f'{path}: not a regular file')
        with open(path, 'rb'):
            pass  # raises an OSError with the reason; safe_open always says that there is no such file
        with safetensors.safe_open(path, 'numpy') as file:
            record = json.loads(file.metadata()['gluon_mgpu'])
            expected, version = record.pop('sha256'), record['version']
            if version != VERSION:
                raise CheckpointError(f'{path}: version {version}, but this gluon_mgpu reads version {VERSION}; use '
                                      'the gluon_mgpu that wrote it')
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118, it is not a dict
        arrays: dict[str, list] = {}
        for key in sorted(tensors, key=_name_and_number):
            arrays.setdefault(_name_and_number(key)[0], []).append(tensors[key])
        intact = (checksum(record, tensors) == expected
                  and isinstance(record['metadata'], dict) and isinstance(record.get('optimizer', {}), dict)
                  and all(len({(array.shape, array.dtype) for array in copies}) == 1 for copies in arrays.values()))
    except OSError as error:
        raise CheckpointError(f'{path}: cannot be read ({error.strerror or error})') from None
    except CheckpointError:
        raise
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        intact = False
    if not intact:
        raise DamagedError(f'{path}: truncated or altered, or not a checkpoint of gluon_mgpu')
    del record['version']
    return record, arrays


def checksum(record: dict, tensors: dict[str, numpy.ndarray]) -> str:
    """Return the SHA-256 of a record and of the names, dtypes, shapes and values of all tensors."""
    digest = hashlib.sha256(_to_json(record).encode())
    for name, array in sorted(tensors.items()):
        digest.update(f'{name} {array.dtype.name} {array.shape}'.encode())
        digest.update(numpy.ascontiguousarray(array, array.dtype.newbyteorder('<')).data)
    return digest.hexdigest()


def _name_and_number(key: str) -> tuple[str, int]:
    name, _, number = key.rpartition('@')
    return name, int(number)


def _to_json(content: dict) -> str:
    return json.dumps(content, separators=(',', ':'))
