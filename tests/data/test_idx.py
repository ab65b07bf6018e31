"""Tests of the reader for IDX files."""
import gzip
import hashlib
import os
import struct
import tracemalloc
from functools import partial
from pathlib import Path

import numpy
import pytest
from idx_files import dataset, idx_bytes
from refused import refused

from gluon_mgpu.data import folders, idx

IMAGES, LABELS = folders.FILES[:2]
ARRAYS = dataset(num_train=7)
CONTENT = {name: idx_bytes(ARRAYS[name]) for name in (IMAGES, LABELS)}
READERS = {IMAGES: partial(idx.read_rows, row=(28, 28)), LABELS: idx.read_labels}


@pytest.fixture(params=['compressed', 'plain'])
def pack(request):
    """Return a function that packs the bytes of a file, compressed or not."""
    return gzip.compress if request.param == 'compressed' else bytes


def error_of(path: Path, content: bytes) -> str:
    """Return what is wrong with a file with `content`; the message is one line with the file and the remedy."""
    path.write_bytes(content)
    before, _, rest = refused(READERS[path.name], path).partition(' is damaged (')
    assert before == f'{path.name} in {path.parent}'
    problem, _, remedy = rest.partition('; ')
    assert remedy == 'delete it or replace it with the original'
    return problem


def test_reads_images_and_labels(tmp_path, pack):
    for name in (IMAGES, LABELS):
        (tmp_path / name).write_bytes(pack(CONTENT[name]))
    images, labels = idx.read_pair(tmp_path / IMAGES, tmp_path / LABELS)
    assert (images.dtype, images.shape, labels.dtype, labels.shape) == ('uint8', (7, 28, 28), 'int32', (7,))
    numpy.testing.assert_array_equal(images, ARRAYS[IMAGES])
    numpy.testing.assert_array_equal(labels, ARRAYS[LABELS])
    assert not images.flags.writeable
    assert idx.md5(images) == hashlib.md5(CONTENT[IMAGES]).hexdigest()


def test_finds_a_file_with_and_without_gz(tmp_path):
    assert folders.find(tmp_path, IMAGES) is None
    plain = tmp_path / 'train-images-idx3-ubyte'
    plain.touch()
    assert folders.find(tmp_path, IMAGES) == plain
    (tmp_path / IMAGES).touch()
    assert folders.find(tmp_path, IMAGES) == tmp_path / IMAGES


@pytest.mark.parametrize(('name', 'header', 'found'), [
    (IMAGES, (17, 7, 28, 28), '[17, 7, 28, 28]'), (LABELS, (2051, 7), '[2051, 7]'),      # images instead of labels
    (IMAGES, (2051, 7, 28, 27), '[2051, 7, 28, 27]'), (IMAGES, (2051, 7, 784, 1), '[2051, 7, 784, 1]'),
    (IMAGES, (2051, 0, 28, 28), '[2051, 0, 28, 28]'), (LABELS, (2049, 2**32 - 1), f'[2049, {2**32 - 1}]'),
    (IMAGES, (2051, 2**30 // 784 + 1, 28, 28), '[2051, 1369569, 28, 28]'),
    (IMAGES, (2051, 7, 28), '[2051, 7, 28, 0]'), (IMAGES, (), '[0, 0, 0, 0]')])         # incomplete; empty
def test_a_wrong_header(tmp_path, pack, name, header, found):
    rest = bytes(10 ** 4) if len(header) in (2, 4) else b''
    content = struct.pack(f'>{len(header)}I', *header) + rest
    assert error_of(tmp_path / name, pack(content)) == f'a header of {found})'


@pytest.mark.parametrize('name', [IMAGES, LABELS])
@pytest.mark.parametrize('change', [-1, 1, 784])
def test_count_and_bytes_differ(tmp_path, pack, name, change):
    content = CONTENT[name][:change] if change < 0 else CONTENT[name] + bytes(change)
    problem = f'{"fewer" if change < 0 else "more"} bytes than its 7 rows)'
    assert error_of(tmp_path / name, pack(content)) == problem


@pytest.mark.parametrize('head', [b'', *(CONTENT[IMAGES][:12] + size for size in (b'\0\0\0\x1c', b'\0\0\0\xff'))])
def test_a_file_that_unpacks_to_much_more(tmp_path, head):
    """A gzip bomb of 100 MB: no more is unpacked than its header announces."""
    with gzip.open(tmp_path / IMAGES, 'wb', compresslevel=1) as file:
        file.write(head)
        for _ in range(100):
            file.write(bytes(10**6))
    content = (tmp_path / IMAGES).read_bytes()
    assert len(content) < 10**6
    tracemalloc.start()
    try:
        assert error_of(tmp_path / IMAGES, content) in (
            'a header of [0, 0, 0, 0])', 'a header of [2051, 7, 28, 255])', 'more bytes than its 7 rows)')
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


def test_a_label_out_of_range(tmp_path, pack):
    for label in (10, 255):
        content = idx_bytes(numpy.array([0, 9, label, 3]))
        assert error_of(tmp_path / LABELS, pack(content)) == f'label {label}, and only 0 to 9 are classes)'


@pytest.mark.parametrize('name', [IMAGES, LABELS])
def test_damaged_gzip(tmp_path, name):
    """Cut short, followed by other bytes, or with one byte changed."""
    content = gzip.compress(CONTENT[name], mtime=0)
    middle = len(content) // 2
    changed = content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1:]
    for damaged in (content[:middle], content[:5], content[:-1], content + b'something else', changed):
        error_of(tmp_path / name, damaged)


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    for path in (tmp_path, tmp_path / 'pipe', tmp_path / 'missing'):
        with pytest.raises(OSError, match='directory|regular file'):
            idx.read_labels(path)


def test_fewer_labels_than_images(tmp_path, pack):
    (tmp_path / IMAGES).write_bytes(pack(CONTENT[IMAGES]))
    (tmp_path / LABELS).write_bytes(pack(idx_bytes(ARRAYS[LABELS][:6])))
    with pytest.raises(ValueError, match=rf'^{LABELS} in {tmp_path} is damaged \(6 labels for 7 images in {IMAGES}\)'):
        idx.read_pair(tmp_path / IMAGES, tmp_path / LABELS)
