"""The reader of IDX files: what it reads and what it refuses."""
import gzip
import struct
from pathlib import Path

import numpy
import pytest
from idx_files import dataset, idx_bytes

from gluon_mgpu.data import idx

IMAGES, LABELS = idx.FILES[:2]
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
    assert idx.find(tmp_path, IMAGES) is None
    plain = tmp_path / 'train-images-idx3-ubyte'
    plain.touch()
    assert idx.find(tmp_path, IMAGES) == plain
    (tmp_path / IMAGES).touch()
    assert idx.find(tmp_path, IMAGES) == tmp_path / IMAGES


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
    message = refusal(tmp_path / name, pack(content))
    assert f': {size} bytes for 7 rows expected, {size + change} found;' in message


@pytest.mark.parametrize('name, size', [(IMAGES, 16), (LABELS, 8)])
def test_not_even_a_header(tmp_path, pack, name, size):
    content = idx_bytes(ARRAYS[name])[:size - 1]
    message = refusal(tmp_path / name, pack(content))
    assert f': a header of {size} bytes expected, {size - 1} bytes found;' in message


def test_empty_file(tmp_path):
    assert ': a header of 16 bytes expected, 0 bytes found;' in refusal(tmp_path / IMAGES, b'')


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
