"""The reader of IDX files: what it reads and what it refuses."""
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
    """Makes the bytes of a file, compressed or not."""
    return gzip.compress if request.param == 'compressed' else bytes


def refusal(path: Path, content: bytes) -> str:
    """What the reader says of a file with `content`: one line that names it and the remedy."""
    path.write_bytes(content)
    with pytest.raises(ValueError) as error:
        READERS[path.name](path)
    message = str(error.value)
    assert '\n' not in message
    assert message.startswith(f'{path.name} in {path.parent}: ')
    assert message.endswith('; delete the file or put the real one there')
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
    found = found or other  # a file of labels where images belong, and the other way round
    content = struct.pack('>I', found) + idx_bytes(ARRAYS[name])[4:]
    assert f': magic number {magic} expected, {found} found;' in refusal(tmp_path / name, pack(content))


@pytest.mark.parametrize('name, header, row', [(IMAGES, 16, 784), (LABELS, 8, 1)])
@pytest.mark.parametrize('change', [-1, 1, 784])
def test_count_and_bytes_differ(tmp_path, pack, name, header, row, change):
    content = idx_bytes(ARRAYS[name])
    content = content[:change] if change < 0 else content + bytes(change)
    size = header + 7 * row
    found = size + change if change < 0 else 'more'
    message = refusal(tmp_path / name, pack(content))
    assert f': {size} bytes for 7 rows expected, {found} found;' in message


@pytest.mark.parametrize('name, size', [(IMAGES, 16), (LABELS, 8)])
def test_not_even_a_header(tmp_path, pack, name, size):
    content = idx_bytes(ARRAYS[name])[:size - 1]
    message = refusal(tmp_path / name, pack(content))
    assert f': a header of {size} bytes expected, {size - 1} bytes found;' in message


def test_empty_file(tmp_path):
    assert ': a header of 16 bytes expected, 0 bytes found;' in refusal(tmp_path / IMAGES, b'')


@pytest.mark.parametrize('name, magic, row', [(IMAGES, 2051, (28, 28)), (LABELS, 2049, ())])
@pytest.mark.parametrize('count', [2**30 // 784 + 1, 2**32 - 1])
def test_too_many_rows(tmp_path, pack, name, magic, row, count):
    """A header that promises more than a GiB of pixels is refused as such, before they are read."""
    content = struct.pack(f'>{2 + len(row)}I', magic, count, *row) + bytes(1000)
    message = refusal(tmp_path / name, pack(content))
    assert f': at most {2**30 // 784} rows expected, {count} found;' in message


def bomb(path: Path, head: bytes, mb: int) -> None:
    """Write a gzip file that unpacks to `head` and `mb` MB of zeros; on disk it takes a thousandth."""
    with gzip.open(path, 'wb', compresslevel=1) as file:
        file.write(head)
        for _ in range(mb):
            file.write(bytes(10**6))
    assert path.stat().st_size < 10**6


@pytest.fixture
def peak():
    """A function that tells the most memory in use at once since the test began, in bytes."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.mark.parametrize('name, head, said', [
    (IMAGES, b'', 'magic number 2051 expected, 0 found'),
    (LABELS, b'', 'magic number 2049 expected, 0 found'),
    (IMAGES, struct.pack('>4I', 2051, 7, 28, 28), '5504 bytes for 7 rows expected, more found'),
    (LABELS, struct.pack('>2I', 2049, 7), '15 bytes for 7 rows expected, more found'),
    (IMAGES, struct.pack('>4I', 2051, 2**32 - 1, 28, 28), 'at most 1369568 rows expected, 4294967295 found'),
], ids=['no images', 'no labels', 'seven images', 'seven labels', 'billions of images'])
def test_a_bomb(tmp_path, peak, name, head, said):
    """What unpacks to 100 MB takes no more memory than its header promises."""
    bomb(tmp_path / name, head, mb=100)
    with pytest.raises(ValueError, match=said):
        READERS[name](tmp_path / name)
    assert peak() < 10**7  # bytes; a piece of a megabyte, to write it and to read it, and what Python needs


@pytest.mark.parametrize('name, head', [(IMAGES, struct.pack('>4I', 2051, 10**6, 28, 28)),
                                        (LABELS, struct.pack('>2I', 2049, 10**6))])
def test_a_promise_alone_takes_no_memory(tmp_path, pack, peak, name, head):
    """A header may promise 784 MB where a kilobyte follows."""
    message = refusal(tmp_path / name, pack(head + bytes(1000)))
    assert f' bytes for 1000000 rows expected, {len(head) + 1000} found;' in message
    assert peak() < 10**7  # bytes; far below what was promised


def test_images_are_read_only(tmp_path, pack):
    (tmp_path / IMAGES).write_bytes(pack(idx_bytes(ARRAYS[IMAGES])))
    assert not idx.read_images(tmp_path / IMAGES).flags.writeable


def test_no_rows(tmp_path, pack):
    content = idx_bytes(numpy.zeros((0, 28, 28)))
    assert ': at least 1 row expected, 0 found;' in refusal(tmp_path / IMAGES, pack(content))


@pytest.mark.parametrize('shape', [(2, 32, 32), (2, 28, 27), (2, 784, 1)])
def test_images_of_another_size(tmp_path, pack, shape):
    message = refusal(tmp_path / IMAGES, pack(idx_bytes(numpy.zeros(shape))))
    assert f': images of 28x28 pixels expected, {shape[1]}x{shape[2]} found;' in message


@pytest.mark.parametrize('label', [10, 255])
def test_label_out_of_range(tmp_path, pack, label):
    message = refusal(tmp_path / LABELS, pack(idx_bytes(numpy.array([0, 9, label, 3]))))
    assert f': labels 0 to 9 expected, {label} in row 2 found;' in message


def damaged(content: bytes) -> dict:
    """A gzip file cut short, followed by something else, and with one byte changed."""
    middle = len(content) // 2
    return {'cut': content[:middle], 'followed': content + b'something else',
            'changed': content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1:],
            'begun': content[:5]}


@pytest.mark.parametrize('name', [IMAGES, LABELS])
@pytest.mark.parametrize('damage', ['cut', 'followed', 'changed', 'begun'])
def test_damaged_gzip(tmp_path, name, damage):
    content = damaged(gzip.compress(idx_bytes(ARRAYS[name]), mtime=0))[damage]
    assert ': a whole gzip file expected, a damaged one (' in refusal(tmp_path / name, content)


def test_unreadable_file(tmp_path):
    with pytest.raises(ValueError, match=r'cannot be read \(Is a directory\); make it a readable file'):
        idx.read_images(tmp_path)


def test_as_many_labels_as_images(tmp_path, pack):
    (tmp_path / IMAGES).write_bytes(pack(idx_bytes(ARRAYS[IMAGES])))
    (tmp_path / LABELS).write_bytes(pack(idx_bytes(ARRAYS[LABELS][:6])))
    with pytest.raises(ValueError) as error:
        idx.read_pair(tmp_path / IMAGES, tmp_path / LABELS)
    assert str(error.value) == (f'{LABELS} in {tmp_path}: 7 labels, as many as images in {IMAGES}, expected, '
                                '6 found; delete the file or put the real one there')
