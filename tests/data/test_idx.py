"""Tests of the reader for IDX files."""
import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy
import pytest
from idx_files import dataset, idx_bytes

from gluon_mgpu.data import folders, idx

IMAGES, LABELS = folders.FILES[:2]
ARRAYS = dataset(num_train=7)
READERS = {IMAGES: idx.read_images, LABELS: idx.read_labels}


@pytest.fixture(params=['compressed', 'plain'])
def pack(request):
    """Return a function that packs the bytes of a file, compressed or not."""
    return gzip.compress if request.param == 'compressed' else bytes


def error_of(path: Path, content: bytes) -> str:
    """Return the error message for a file with `content`: one line with the file and the remedy."""
    path.write_bytes(content)
    with pytest.raises(ValueError) as error:
        READERS[path.name](path)
    message = str(error.value)
    assert '\n' not in message
    assert message.startswith(f'{path.name} in {path.parent}: ')
    assert message.endswith('; delete the file or replace it with the original')
    return message


def test_reads_images_and_labels(tmp_path, pack):
    for name in (IMAGES, LABELS):
        (tmp_path / name).write_bytes(pack(idx_bytes(ARRAYS[name])))
    images, labels = idx.read_pair(tmp_path / IMAGES, tmp_path / LABELS)
    assert (images.dtype, images.shape, labels.dtype, labels.shape) == ('uint8', (7, 28, 28), 'int32', (7,))
    numpy.testing.assert_array_equal(images, ARRAYS[IMAGES])
    numpy.testing.assert_array_equal(labels, ARRAYS[LABELS])


def test_finds_a_file_with_and_without_gz(tmp_path):
    assert folders.find(tmp_path, IMAGES) is None
    plain = tmp_path / 'train-images-idx3-ubyte'
    plain.touch()
    assert folders.find(tmp_path, IMAGES) == plain
    (tmp_path / IMAGES).touch()
    assert folders.find(tmp_path, IMAGES) == tmp_path / IMAGES


@pytest.mark.parametrize('name, magic, other', [(IMAGES, 2051, 2049), (LABELS, 2049, 2051)])
@pytest.mark.parametrize('found', [17, None])
def test_wrong_magic(tmp_path, pack, name, magic, other, found):
    found = found or other  # labels instead of images, and vice versa
    content = struct.pack('>I', found) + idx_bytes(ARRAYS[name])[4:]
    assert f': expected magic number {magic}, found {found};' in error_of(tmp_path / name, pack(content))


@pytest.mark.parametrize('name, header, row', [(IMAGES, 16, 784), (LABELS, 8, 1)])
@pytest.mark.parametrize('change', [-1, 1, 784])
def test_count_and_bytes_differ(tmp_path, pack, name, header, row, change):
    content = idx_bytes(ARRAYS[name])
    content = content[:change] if change < 0 else content + bytes(change)
    size = header + 7 * row
    found = size + change if change < 0 else 'more'
    message = error_of(tmp_path / name, pack(content))
    assert f': expected {size} bytes for 7 rows, found {found};' in message


@pytest.mark.parametrize('name, size', [(IMAGES, 16), (LABELS, 8)])
def test_incomplete_header(tmp_path, pack, name, size):
    content = idx_bytes(ARRAYS[name])[:size - 1]
    message = error_of(tmp_path / name, pack(content))
    assert f': expected a header of {size} bytes, found {size - 1} bytes;' in message


def test_empty_file(tmp_path):
    assert ': expected a header of 16 bytes, found 0 bytes;' in error_of(tmp_path / IMAGES, b'')


@pytest.mark.parametrize('name, magic, row', [(IMAGES, 2051, (28, 28)), (LABELS, 2049, ())])
@pytest.mark.parametrize('count', [2**30 // 784 + 1, 2**32 - 1])
def test_too_many_rows(tmp_path, pack, name, magic, row, count):
    """A header of more than a GiB of pixels is an error before any of them are read."""
    content = struct.pack(f'>{2 + len(row)}I', magic, count, *row) + bytes(1000)
    message = error_of(tmp_path / name, pack(content))
    assert f': expected 1 to {2**30 // 784} rows, found {count};' in message


def bomb(path: Path, head: bytes, mb: int) -> None:
    """Write a gzip file that unpacks to `head` and `mb` MB of zeros; on disk it takes a thousandth."""
    with gzip.open(path, 'wb', compresslevel=1) as file:
        file.write(head)
        for _ in range(mb):
            file.write(bytes(10**6))
    assert path.stat().st_size < 10**6


@pytest.fixture
def peak():
    """Return a function that returns the peak memory of the test in bytes."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.mark.parametrize('name, head, message', [
    (IMAGES, b'', 'expected magic number 2051, found 0'),
    (LABELS, b'', 'expected magic number 2049, found 0'),
    (IMAGES, struct.pack('>4I', 2051, 7, 28, 28), 'expected 5504 bytes for 7 rows, found more'),
    (LABELS, struct.pack('>2I', 2049, 7), 'expected 15 bytes for 7 rows, found more'),
    (IMAGES, struct.pack('>4I', 2051, 2**32 - 1, 28, 28), 'expected 1 to 1369568 rows, found 4294967295'),
], ids=['no images', 'no labels', 'seven images', 'seven labels', 'billions of images'])
def test_a_file_that_unpacks_to_much_more(tmp_path, peak, name, head, message):
    """Reading it takes no more memory than its header announces."""
    bomb(tmp_path / name, head, mb=100)
    with pytest.raises(ValueError, match=message):
        READERS[name](tmp_path / name)
    assert peak() < 10**7  # bytes; pieces of 1 MB to write and to read, and Python itself


@pytest.mark.parametrize('name, head', [(IMAGES, struct.pack('>4I', 2051, 10**6, 28, 28)),
                                        (LABELS, struct.pack('>2I', 2049, 10**6))])
def test_a_wrong_header_allocates_no_memory(tmp_path, pack, peak, name, head):
    """The header announces 784 MB, but a kilobyte follows."""
    message = error_of(tmp_path / name, pack(head + bytes(1000)))
    assert f' bytes for 1000000 rows, found {len(head) + 1000};' in message
    assert peak() < 10**7  # bytes; far below the announced size


def test_images_are_read_only(tmp_path, pack):
    (tmp_path / IMAGES).write_bytes(pack(idx_bytes(ARRAYS[IMAGES])))
    assert not idx.read_images(tmp_path / IMAGES).flags.writeable


def test_no_rows(tmp_path, pack):
    content = idx_bytes(numpy.zeros((0, 28, 28)))
    assert f': expected 1 to {2**30 // 784} rows, found 0;' in error_of(tmp_path / IMAGES, pack(content))


@pytest.mark.parametrize('shape', [(2, 32, 32), (2, 28, 27), (2, 784, 1)])
def test_images_of_another_size(tmp_path, pack, shape):
    message = error_of(tmp_path / IMAGES, pack(idx_bytes(numpy.zeros(shape))))
    assert f': expected images of 28x28 pixels, found {shape[1]}x{shape[2]};' in message


@pytest.mark.parametrize('label', [10, 255])
def test_label_out_of_range(tmp_path, pack, label):
    message = error_of(tmp_path / LABELS, pack(idx_bytes(numpy.array([0, 9, label, 3]))))
    assert f': expected labels 0 to 9, found {label} in row 2;' in message


def damaged(content: bytes) -> dict:
    """Return a gzip file cut short, followed by other bytes, or with one byte changed."""
    middle = len(content) // 2
    return {'cut': content[:middle], 'followed': content + b'something else',
            'changed': content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1:],
            'header only': content[:5]}


@pytest.mark.parametrize('name', [IMAGES, LABELS])
@pytest.mark.parametrize('damage', ['cut', 'followed', 'changed', 'header only'])
def test_damaged_gzip(tmp_path, name, damage):
    content = damaged(gzip.compress(idx_bytes(ARRAYS[name]), mtime=0))[damage]
    assert ': expected a complete gzip file, found a damaged one;' in error_of(tmp_path / name, content)


def test_unreadable_file(tmp_path):
    with pytest.raises(ValueError, match=r'cannot be read \(Is a directory\); make it a readable file'):
        idx.read_images(tmp_path)


def test_fewer_labels_than_images(tmp_path, pack):
    (tmp_path / IMAGES).write_bytes(pack(idx_bytes(ARRAYS[IMAGES])))
    (tmp_path / LABELS).write_bytes(pack(idx_bytes(ARRAYS[LABELS][:6])))
    with pytest.raises(ValueError) as error:
        idx.read_pair(tmp_path / IMAGES, tmp_path / LABELS)
    assert str(error.value) == (f'{LABELS} in {tmp_path}: expected 7 labels for the images in {IMAGES}, found 6; '
                                'delete the file or replace it with the original')
