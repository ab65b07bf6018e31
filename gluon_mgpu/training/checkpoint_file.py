"""The file of a checkpoint: arrays by name and a record of what they are, written whole, and read if it is whole.

A file of safetensors: a header of JSON and the arrays. The header's entry ``gluon_mgpu`` is JSON, too, and begins with
the version and a checksum of the whole file, in which the checksum itself is taken for zeros.
"""
from __future__ import annotations

import hashlib
import json
import os
import re
from typing import NamedTuple

import safetensors
import safetensors.numpy

from .folder import write_whole

VERSION = 1
NO_SUM = '0' * 64  # in the place of the checksum while it is computed
# The entry's first words, as they stand in the file, within its first bytes
BEGINNING = re.compile(rb'\\"version\\":(\d{1,9}),\\"sha256\\":\\"([0-9a-f]{64})\\"')
BEGINNING_WITHIN, PIECE = 512, 2**20


class CheckpointError(ValueError):
    """A file is no checkpoint, a damaged one, or one of something else."""


class Snapshot(NamedTuple):
    """What is in a checkpoint, copied to the host."""

    arrays: dict[str, list]  # by name, numpy arrays: one if it is the same on all devices, else one per device
    record: dict             # the rest, of what JSON can hold


def write(path: str | os.PathLike, kept: Snapshot, position: dict) -> None:
    """Write a checkpoint; can be called in any thread, and returns when the file is on the disk.

    Parameters
    ----------
    path : path-like
        What it was before is left until the new file is complete.
    kept : Snapshot
        As `checkpoint.snapshot` returns it.
    position : dict
        What else is to be in it, of what JSON can hold.

    Raises
    ------
    ValueError
        If something in it cannot be kept.
    OSError
        If the file cannot be written.
    """
    tensors = {f'{name}@{k}': array for name, arrays in kept.arrays.items() for k, array in enumerate(arrays)}
    try:
        record = json.dumps({'version': VERSION, 'sha256': NO_SUM, **kept.record, 'position': position},
                            separators=(',', ':'))
        content = memoryview(safetensors.numpy.save(tensors, {'gluon_mgpu': record}))
    except (TypeError, KeyError, safetensors.SafetensorError) as error:
        raise ValueError(f'{error}: a checkpoint cannot hold that, only arrays of common types and what JSON '
                         'can hold') from None
    found = BEGINNING.search(content[:BEGINNING_WITHIN])
    if not found:
        raise RuntimeError('safetensors has changed the order in a file: the checksum has no place in it')
    start, end = found.span(2)
    write_whole(path, [content[:start], hashlib.sha256(content).hexdigest().encode(), content[end:]])


def read(path: str | os.PathLike) -> tuple[dict, dict[str, list]]:
    """Read a checkpoint, once it is known to be whole.

    Parameters
    ----------
    path : path-like
        The file.

    Returns
    -------
    record : dict
        ``parameters``, ``position`` and, with a trainer, ``optimizer``.
    arrays : dict of str to list of numpy.ndarray
        By ``parameters/NAME`` and ``states/NAME/NUMBER``: one, or one per device.

    Raises
    ------
    CheckpointError
        If it is anything else; one line says what.
    """
    try:
        check_sum(path)
        with safetensors.safe_open(path, 'numpy') as file:
            record = json.loads(file.metadata()['gluon_mgpu'])
            del record['version'], record['sha256']
            arrays: dict[str, list] = {}
            for key in sorted(file.keys(), key=_in_order):
                arrays.setdefault(key.rpartition('@')[0], []).append(file.get_tensor(key))
    except OSError as error:
        raise CheckpointError(f'{path}: cannot be read ({error.strerror or error})') from None
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f'{path}: a damaged checkpoint ({error})') from None
    expected = {'parameters': dict, 'position': dict, **({'optimizer': dict} if 'optimizer' in record else {})}
    if not all(isinstance(record.get(name), kind) for name, kind in expected.items()) or any(
            len(arrays.get(f'parameters/{name}', ())) != number for name, number in record['parameters'].items()):
        raise CheckpointError(f'{path}: a damaged checkpoint (its header does not describe what is in it)')
    return record, arrays


def check_sum(path: str | os.PathLike) -> None:
    """Compare the checksum of a checkpoint with its content, with little memory.

    Parameters
    ----------
    path : path-like
        The file.

    Raises
    ------
    CheckpointError
        If the file is no checkpoint, of another version, or altered.
    OSError
        If it cannot be read.
    """
    with open(path, 'rb') as file:
        beginning = file.read(BEGINNING_WITHIN)
        found = BEGINNING.search(beginning)
        if not found:
            raise CheckpointError(f'{path}: no checkpoint of gluon_mgpu')
        if int(found[1]) != VERSION:
            raise CheckpointError(f'{path}: version {int(found[1])}, and this gluon_mgpu reads version {VERSION}; '
                                  'use the gluon_mgpu that wrote it')
        start, end = found.span(2)
        digest = hashlib.sha256(beginning[:start] + NO_SUM.encode() + beginning[end:])
        while piece := file.read(PIECE):
            digest.update(piece)
    if digest.hexdigest().encode() != found[2]:
        raise CheckpointError(f'{path}: truncated or altered (its checksum is not that of its content)')


def _in_order(key: str) -> tuple:
    name, _, number = key.rpartition('@')
    return name, int(number)
