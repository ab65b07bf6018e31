"""Damaged files. The generators yield pairs: a description of the damage, and the content of the file."""
from __future__ import annotations

import gzip
import json
import os
import struct
import tempfile
from collections.abc import Iterator
from functools import partial

import numpy
import safetensors.numpy

from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.data import idx

READERS = {'checkpoints': checkpoint.read, 'images': partial(idx.read_rows, row=(28, 28)), 'labels': idx.read_labels}
EXTREMES = (0, 1, 2**31 - 1, 2**31, 2**32 - 1)  # counts and lengths


def flipped(content: bytes, long: bool, part: slice = slice(None)) -> Iterator[tuple[str, bytes]]:
    """Yield the file with one bit of each byte of a part flipped; with `long`, each of the eight."""
    for i in range(len(content))[part]:
        for bit in range(8) if long else [i % 8]:
            yield f'bit {bit} of byte {i}', content[:i] + bytes([content[i] ^ 1 << bit]) + content[i + 1:]


def truncated(content: bytes, step: int = 1) -> Iterator[tuple[str, bytes]]:
    """Yield the file cut off at each length, and with one byte more."""
    yield from ((f'the first {n} bytes', content[:n]) for n in range(0, len(content), step))
    yield 'a byte more', content + b'\1'


def checkpoints(long: bool) -> Iterator[tuple[str, bytes]]:
    """Yield checkpoints damaged as a disk might do it, and others with a correct checksum and a wrong header."""
    content = valid_checkpoint()
    yield from truncated(content, 1 if long else 7)
    yield from flipped(content, long)
    for number in (*EXTREMES, 2**40, 2**63 - 1, 2**63, 2**64 - 1):
        yield f'header of {number} bytes', with_checksum(struct.pack('<Q', number) + content[8:])
    size = struct.unpack('<Q', content[:8])[0]
    header = json.loads(content[8:8 + size])
    for key in header:
        yield f'no {key}', with_header({name: value for name, value in header.items() if name != key}, content)
        for value in (None, 1, 'a', [], {}, [[]]):
            yield f'{key} is {value!r}', with_header({**header, key: value}, content)
    name = 'parameters/a@0'
    for field, wrong in {'dtype': 'F64', 'shape': [2**32] * 9, 'data_offsets': [0, 2**63 - 1]}.items():
        for value in (None, 'a', {}, [-1], wrong):
            changed = {**header, name: {**header[name], field: value}}
            yield f'{field} is {value!r}', with_header(changed, content)
    for name in ('parameters/a', 'parameters/a@', 'parameters/a@one'):
        yield f'named {name}', with_header({**header, name: header['parameters/a@0']}, content)
    record = json.loads(header['__metadata__']['gluon_mgpu'])
    for version in (None, 7, -1, 'a', [], [1], 10**400):
        text = json.dumps({**record, 'version': version}, separators=(',', ':'))
        changed = {**header, '__metadata__': {'gluon_mgpu': text}}
        yield f'version is {version!r:.20}', with_header(changed, content)


def valid_checkpoint() -> bytes:
    """Return a checkpoint of two devices, as `save` writes it."""
    with tempfile.TemporaryDirectory() as folder:
        arrays = {'parameters/a': [numpy.arange(3, dtype='float32'), numpy.arange(3, 6, dtype='float32')]}
        path = os.path.join(folder, 'a')
        checkpoint.write(path, checkpoint.Snapshot(arrays, {'optimizer': {}}), {'epoch': 1})
        with open(path, 'rb') as file:
            return file.read()


def with_header(header: dict, content: bytes) -> bytes:
    """Return the content with another header and a matching checksum."""
    size = struct.unpack('<Q', content[:8])[0]
    text = json.dumps(header, separators=(',', ':')).encode()
    return with_checksum(struct.pack('<Q', len(text)) + text + content[8 + size:])


def with_checksum(content: bytes) -> bytes:
    """Return the content with a matching checksum, or unchanged if it cannot be parsed."""
    try:
        tensors = safetensors.numpy.load(content)
        size = struct.unpack('<Q', content[:8])[0]
        record = json.loads(json.loads(content[8:8 + size])['__metadata__']['gluon_mgpu'])
        before = record.pop('sha256')
        return content.replace(before.encode(), checkpoint.sha256_of(record, tensors).encode(), 1)
    except Exception:  # of many types
        return content


def images(long: bool) -> Iterator[tuple[str, bytes]]:
    """Yield damaged files of images."""
    yield from _idx_files(struct.pack('>4I', 2051, 3, 28, 28) + bytes(range(256)) * 9 + bytes(48), long)


def labels(long: bool) -> Iterator[tuple[str, bytes]]:
    """Yield damaged files of labels."""
    yield from _idx_files(struct.pack('>2I', 2049, 100) + bytes(i % 10 for i in range(100)), long)
    yield 'a label of 10', struct.pack('>2I', 2049, 2) + b'\1\x0a'


def _idx_files(content: bytes, long: bool) -> Iterator[tuple[str, bytes]]:
    """Yield the file with extreme values in its header, cut off anywhere, and with altered gzip data."""
    packed = gzip.compress(content, mtime=0)
    yield from truncated(content, 1 if long else 11)
    yield from truncated(packed, 1 if long else 3)
    header = 16 if len(content) > 200 else 8
    for field in range(0, header, 4):
        for number in EXTREMES:
            changed = content[:field] + struct.pack('>I', number) + content[field + 4:]
            yield f'{number} in the field at {field}', changed
            yield f'{number} in the field at {field}, gzip', gzip.compress(changed, mtime=0)
    yield from flipped(content, long, slice(header))
    # The flags, time, level and system in the gzip header may have any value, and so may a few padding bits before the
    # checksum
    for part in (slice(10, -9), slice(-8, None)):
        yield from flipped(packed, long, part)
    zeros = gzip.compress(bytes(2**26), mtime=0) * 100
    yield '6.7 GB of zeros, compressed', gzip.compress(content[:header], mtime=0) + zeros
