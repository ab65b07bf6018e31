"""Files with a fault, by what the fault is: of each field in turn, and of every length."""
from __future__ import annotations

import gzip
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator

import numpy
import safetensors
import safetensors.numpy

from gluon_mgpu.checkpoints import checkpoint, file as checkpoint_file
from gluon_mgpu.data import idx

READERS = {'checkpoints': checkpoint.read, 'images': idx.read_images, 'labels': idx.read_labels}
ABSURD = (0, 1, 2**31 - 1, 2**31, 2**32 - 1)  # counts and lengths
ABSURD_64 = (*ABSURD, 2**40, 2**63 - 1, 2**63, 2**64 - 1)


def flipped(content: bytes, long: bool, step: int = 1) -> Iterator[tuple[str, bytes]]:
    """One bit of each byte turned over; in the long version all eight."""
    for i in range(0, len(content), step):
        for bit in range(8) if long else [i % 8]:
            yield f'bit {bit} of byte {i}', content[:i] + bytes([content[i] ^ 1 << bit]) + content[i + 1:]


def truncated(content: bytes, step: int = 1) -> Iterator[tuple[str, bytes]]:
    """The file as it is when it ends earlier, or later."""
    yield from ((f'the first {n} bytes', content[:n]) for n in range(0, len(content), step))
    yield 'a byte more', content + b'\1'


def checkpoints(long: bool) -> Iterator[tuple[str, bytes]]:
    """Checkpoints: altered as disks do it, and made up, with a checksum that is right."""
    content = whole_checkpoint()
    yield from truncated(content, 1 if long else 7)
    yield from flipped(content, long)
    for number in ABSURD_64:
        yield f'header of {number} bytes', summed(struct.pack('<Q', number) + content[8:])
    size = struct.unpack('<Q', content[:8])[0]
    header = json.loads(content[8:8 + size])
    for key in header:
        yield f'no {key}', made_up({name: value for name, value in header.items() if name != key}, content)
        for value in (None, 1, 'a', [], {}, [[]]):
            yield f'{key} is {value!r}', made_up({**header, key: value}, content)
    for key in header.keys() - {'__metadata__'}:
        for field in header[key]:
            wrong = {'dtype': ['F64', 'I8', 'BF16', '', 7], 'shape': [[n] for n in ABSURD_64] + [[2**32] * 9, [-1]],
                     'data_offsets': [[0, n] for n in ABSURD_64] + [[n, 0] for n in ABSURD_64[1:]]}[field]
            for value in (None, 'a', {}, *wrong):
                if header[key][field] != value:
                    changed = {**header[key], field: value}
                    yield f'{key}.{field} is {value!r}', made_up({**header, key: changed}, content)
    for name in ('parameters/a', 'parameters/a@', 'parameters/a@one'):
        yield f'named {name}', made_up({**header, name: header['parameters/a@0']}, content)
    other = {'dtype': 'F32', 'shape': [1, 3], 'data_offsets': header['parameters/a@1']['data_offsets']}
    yield 'copies of two shapes', made_up({**header, 'parameters/a@1': other}, content)
    record = json.loads(header['__metadata__']['gluon_mgpu'])
    for field in record.keys() - {'sha256'}:
        for value in (None, 7, -1, 'a', [], [1], 10**400, True):
            if value is not True or field != 'version':
                text = json.dumps({**record, field: value}, separators=(',', ':'))
                yield f'{field} is {value!r:.20}', made_up({**header, '__metadata__': {'gluon_mgpu': text}}, content)
    deep = '[' * 50_000 + ']' * 50_000
    text = json.dumps({**record, 'position': 0}, separators=(',', ':')).replace('"position":0', f'"position":{deep}')
    yield 'a position 50,000 lists deep', made_up({**header, '__metadata__': {'gluon_mgpu': text}}, content)


def whole_checkpoint() -> bytes:
    """One of two devices, as `save` writes it."""
    with tempfile.TemporaryDirectory() as folder:
        arrays = {'parameters/a': [numpy.arange(3, dtype='float32'), numpy.arange(3, 6, dtype='float32')]}
        path = os.path.join(folder, 'a')
        checkpoint.write(path, checkpoint.Snapshot(arrays, {'optimizer': {}}), {'epoch': 1})
        with open(path, 'rb') as file:
            return file.read()


def made_up(header: dict, content: bytes) -> bytes:
    """The content with another header and a checksum that fits."""
    size = struct.unpack('<Q', content[:8])[0]
    text = json.dumps(header, separators=(',', ':')).encode()
    return summed(struct.pack('<Q', len(text)) + text + content[8 + size:])


def summed(content: bytes) -> bytes:
    """The content with a checksum that fits, if it can be read at all."""
    try:
        tensors = safetensors.numpy.load(content)
        size = struct.unpack('<Q', content[:8])[0]
        record = json.loads(json.loads(content[8:8 + size])['__metadata__']['gluon_mgpu'])
        before = record.pop('sha256')
        return content.replace(before.encode(), checkpoint_file.checksum(record, tensors).encode(), 1)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return content


def images(long: bool) -> Iterator[tuple[str, bytes]]:
    """Files of images."""
    yield from _idx_files(struct.pack('>4I', 2051, 3, 28, 28) + bytes(range(256)) * 9 + bytes(48), long)


def labels(long: bool) -> Iterator[tuple[str, bytes]]:
    """Files of labels."""
    yield from _idx_files(struct.pack('>2I', 2049, 100) + bytes(i % 10 for i in range(100)), long)
    yield 'a label of 10', struct.pack('>2I', 2049, 2) + b'\1\x0a'


def _idx_files(content: bytes, long: bool) -> Iterator[tuple[str, bytes]]:
    """A file with each field of its header made absurd, cut off anywhere, and its gzip version altered anywhere."""
    packed = gzip.compress(content, mtime=0)
    yield from truncated(content, 1 if long else 11)
    yield from truncated(packed, 1 if long else 3)
    header = 16 if len(content) > 200 else 8
    for field in range(0, header, 4):
        for number in ABSURD:
            changed = content[:field] + struct.pack('>I', number) + content[field + 4:]
            yield f'{number} in the field at {field}', changed
            yield f'{number} in the field at {field}, gzip', gzip.compress(changed, mtime=0)
    yield from flipped(content[:header], long)
    # The gzip header's flags, time, level and system may be anything; over its data, a checksum watches. A few bits
    # fill up the last byte and mean nothing
    for what, changed in flipped(packed[10:], long):
        if not _same(packed[:10] + changed, content):
            yield f'{what} of the gzip data', packed[:10] + changed
    yield 'terabytes, compressed', _bomb(content[:header])


def _same(packed: bytes, content: bytes) -> bool:
    try:
        return gzip.decompress(packed) == content
    except (OSError, EOFError, zlib.error):
        return False


def _bomb(header: bytes) -> bytes:
    """A gzip file of 64 MB of zeros, many times over, behind a header that promises less."""
    piece = gzip.compress(bytes(2**26), mtime=0)
    return gzip.compress(header, mtime=0) + piece * 100
