"""Tests of loading datasets by name, and of errors."""
import contextlib
import functools
import hashlib

import numpy
import pytest
from datasets import ARRAYS, assert_holds, error_of, fail, labels, rows
from idx_files import file_contents, idx_bytes, write
from local_mirror import LocalMirror, checksums

from gluon_mgpu.data import (
    DATASETS,
    download as download_module,
    glyphs,
    load as load_module,
    load_data,
)
from gluon_mgpu.data.folders import FILES, DownloadError, cache_dir

GLYPHS_INSTEAD = "training on the built-in dataset 'glyphs' instead"
pytestmark = pytest.mark.usefixtures('no_dataset')


def test_downloaded_once_to_the_cache_folder(tmp_path, monkeypatch):
    with contextlib.closing(LocalMirror(file_contents(ARRAYS['fashion-mnist']))) as server:
        monkeypatch.setitem(download_module.MIRRORS, 'fashion-mnist', (server.mirror,))
        monkeypatch.setitem(download_module.CHECKSUMS, 'fashion-mnist', checksums(server.files))
        for _ in range(2):
            iters = load_data('auto', 32, log=fail, progress=False)
            assert_holds(iters, ARRAYS['fashion-mnist'], 'fashion-mnist')
        assert server.fetched == list(FILES)
    folder = tmp_path / 'cache' / 'gluon-mgpu' / 'fashion-mnist'
    assert {path.name for path in folder.iterdir()} == set(FILES)


def test_glyphs_by_name(small_glyphs):
    train_iter, test_iter = load_data('glyphs', 32, log=fail)
    assert (train_iter.dataset, train_iter.num_rows, test_iter.num_rows) == ('glyphs', 60, 20)
    (_, labels), (images, _) = glyphs.load(cache_dir())
    numpy.testing.assert_array_equal(numpy.rint(rows(test_iter)[0][:, 0] * 255), images)
    assert sorted(rows(train_iter)[1]) == sorted(labels)


@pytest.mark.parametrize('asked', ['glyphs', 'auto'])
def test_glyphs_with_a_bad_home_folder(small_glyphs, tmp_path, monkeypatch, asked):
    (tmp_path / 'home').touch()
    monkeypatch.delenv('XDG_CACHE_HOME')
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    lines = []
    train_iter, _ = load_data(asked, 32, log=lines.append, progress=False)
    assert (train_iter.dataset, train_iter.num_rows) == ('glyphs', 60)
    folder = tmp_path / 'home/.cache/gluon-mgpu/fashion-mnist'
    expected = (f'fashion-mnist could not be stored in {folder} (Not a directory); set XDG_CACHE_HOME to a writable '
                f'folder; {GLYPHS_INSTEAD}')
    assert lines == ([] if asked == 'glyphs' else [expected])


def test_files_of_another_dataset_or_part(data_dir, monkeypatch):
    """The checksums of the published images say what they are, also compressed anew."""
    known = {hashlib.md5(idx_bytes(ARRAYS[name][file])).hexdigest(): (name, file.partition('-')[0])
             for name in ARRAYS for file in (FILES[0], FILES[2])}
    monkeypatch.setattr(load_module, 'KNOWN_IMAGES', known)
    assert_holds(load_data('mnist', 32, data_dir=data_dir), ARRAYS['mnist'], 'mnist')
    write(data_dir / 'mnist', ARRAYS['fashion-mnist'])
    assert 'these are the train images of fashion-mnist; put' in error_of('mnist', 32, data_dir=data_dir)
    write(data_dir / 'mnist', dict(zip(FILES, map(ARRAYS['mnist'].get, FILES[2:] + FILES[:2]))))
    assert f'mnist/{FILES[0]}: these are the t10k images of mnist; put' in error_of('mnist', 32, data_dir=data_dir)


def test_auto_without_network_uses_glyphs_and_reports_why(small_glyphs):
    lines = []
    train_iter, test_iter = load_data('auto', 32, log=lines.append, progress=False)
    assert train_iter.dataset == test_iter.dataset == 'glyphs'
    line, = lines
    assert '\n' not in line
    assert line.startswith('fashion-mnist could not be downloaded (127.0.0.1:')
    assert line.endswith(f' with --data-dir; {GLYPHS_INSTEAD}')


def test_an_unknown_dataset():
    assert error_of('cifar', 32) == f"dataset 'cifar': must be one of {', '.join(DATASETS)}"


@pytest.mark.parametrize('name', ARRAYS)
def test_a_dataset_by_name_without_network(name):
    with pytest.raises(DownloadError, match=f'^{name} could not be downloaded .*; if you have the files, name'):
        load_data(name, 32, log=fail, progress=False)


def test_the_two_datasets_are_not_confused(data_dir):
    """Their files have the same names."""
    message = error_of('fashion-mnist', 32, data_dir=data_dir / 'mnist')
    assert message.startswith(f'data_dir {data_dir}/mnist/fashion-mnist: {", ".join(FILES)} missing')


@pytest.mark.parametrize('asked', ['fashion-mnist', 'auto'])
@pytest.mark.parametrize('name', FILES)
@pytest.mark.parametrize('place', ['data', 'cache/gluon-mgpu'])
def test_a_damaged_file_is_never_ignored(tmp_path, monkeypatch, asked, name, place):
    monkeypatch.setattr(glyphs, 'load', fail)
    write(tmp_path / place / 'fashion-mnist', ARRAYS['fashion-mnist'])
    (tmp_path / place / 'fashion-mnist' / name).write_bytes(b'\0\0\0\x11 and so on, for longer than a header')
    message = error_of(asked, 32, data_dir=tmp_path / place if place == 'data' else None)
    assert message.startswith(f'{name} in {tmp_path}/{place}/fashion-mnist is damaged (a header of [17, ')


@pytest.mark.parametrize('size', [0, -1, 101, 2.0])
def test_train_size(data_dir, size):
    message = error_of('mnist', 32, data_dir=data_dir, train_size=size)
    assert message == f'train_size {size!r}: must be an integer from 1 to 100'
    message = error_of('mnist', 32, data_dir=data_dir, test_size=size)
    assert message.startswith(f'test_size {size!r}: must be an integer from 1 to ')


@pytest.mark.parametrize('size, rule', [
    *((size, 'an integer of at least 1') for size in (0, -1, 2.0, True)),
    *((size, 'less than the 40 training images') for size in (40, 41, 10**6))])
def test_validation_size(data_dir, size, rule):
    message = error_of('mnist', 32, data_dir=data_dir, train_size=40, validation_size=size)
    assert message == f'validation_size {size!r}: must be {rule}'


@pytest.mark.parametrize('size', [1, 30, 79])
def test_the_last_training_rows_are_held_out(data_dir, size):
    """In order; the others are shuffled as if the training set ended before them."""
    load = functools.partial(load_data, 'mnist', 32, data_dir=data_dir)
    train_iter, validation_iter, test_iter = load(train_size=80, validation_size=size)
    fewer, same = load(train_size=80 - size)
    assert (train_iter.num_rows, validation_iter.num_rows) == (80 - size, size)
    images, found = rows(validation_iter)
    numpy.testing.assert_array_equal(numpy.rint(images[:, 0] * 255), ARRAYS['mnist'][FILES[0]][80 - size:80])
    assert found.tolist() == ARRAYS['mnist'][FILES[1]][80 - size:80].tolist()
    assert labels(train_iter) == labels(fewer)
    assert (train_iter.digest, test_iter.digest) == (fewer.digest, same.digest)
    shards = [load(train_size=80, validation_size=size, shard=(rank, 3))[1] for rank in range(3)]
    for (_, y), *parts in zip(validation_iter, *shards, strict=True):
        assert y.tolist() == [label for _, part in parts for label in part.tolist()]


def test_test_size_takes_the_first_rows(data_dir):
    (_, some), (_, every) = (load_data('mnist', 3, data_dir=data_dir, test_size=size) for size in (5, None))
    assert [y.size for _, y in some] == [3, 2] and some.digest != every.digest
    first = [numpy.concatenate([X.asnumpy() for X, _ in batches])[:5] for batches in (some, every)]
    assert (first[0] == first[1]).all()


def test_train_size_takes_the_first_rows(data_dir):
    train_iter, test_iter = load_data('mnist', 32, data_dir=data_dir, train_size=40)
    assert (train_iter.num_rows, len(train_iter), test_iter.num_rows) == (40, 2, 30)
    assert sorted(labels(train_iter)) == sorted(ARRAYS['mnist'][FILES[1]][:40])
    assert len(load_data('mnist', 32, data_dir=data_dir, train_size=100)[0]) == 4


def test_only_the_training_rows_are_shuffled(data_dir):
    orders = [[labels(batches) for batches in load_data('mnist', 32, data_dir=data_dir, seed=seed)] for seed in (0, 1)]
    assert orders[0][0] != orders[1][0] and sorted(orders[0][0]) == sorted(orders[1][0])
    assert orders[0][1] == orders[1][1] == ARRAYS['mnist'][FILES[3]].tolist()
