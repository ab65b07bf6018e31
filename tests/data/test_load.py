"""Tests of loading datasets by name, and of errors."""
import functools
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy
import pytest
from datasets import ARRAYS, NO_HOME, assert_holds, error_of, fail, labels, lock, rows
from idx_files import file_contents, write
from local_mirror import LocalMirror, checksums

import gluon_mgpu
from gluon_mgpu.data import (
    DATASETS,
    download as download_module,
    glyphs,
    load_data,
    load_data_fashion_mnist,
)
from gluon_mgpu.data.folders import FILES, DownloadError, cache_dir

GLYPHS_INSTEAD = ("training on the built-in dataset 'glyphs' instead. "
                  'If you have the files, name a folder that contains fashion-mnist/ with --data-dir.')
pytestmark = pytest.mark.usefixtures('no_dataset')


@pytest.fixture
def small_glyphs(monkeypatch):
    for name, value in {'NUM_TRAIN': 60, 'NUM_TEST': 20, 'TRAIN_FONTS': ('DejaVuSans',),
                        'TEST_FONTS': ('cmr10',)}.items():
        monkeypatch.setattr(glyphs, name, value)


@pytest.fixture
def bad_home(request, tmp_path, monkeypatch):
    """A home folder that cannot be entered, or is a file; simulated, because root can enter every folder."""
    home = tmp_path / 'home'
    monkeypatch.delenv('XDG_CACHE_HOME')
    monkeypatch.setenv('HOME', str(home))
    if request.param == 'a file':
        home.touch()
    else:
        home.mkdir()
        lock(monkeypatch, home)
    return home


def test_downloaded_once_to_the_cache_folder(tmp_path, monkeypatch):
    server = LocalMirror(file_contents(ARRAYS['fashion-mnist']))
    try:
        monkeypatch.setitem(download_module.MIRRORS, 'fashion-mnist', (server.mirror,))
        monkeypatch.setitem(download_module.CHECKSUMS, 'fashion-mnist', checksums(server.files))
        for _ in range(2):
            iters = load_data('auto', 32, log=fail, progress=False)
            assert_holds(iters, ARRAYS['fashion-mnist'], 'fashion-mnist')
        assert server.fetched == list(FILES)
    finally:
        server.close()
    folder = tmp_path / 'cache' / 'gluon-mgpu' / 'fashion-mnist'
    assert {path.name for path in folder.iterdir()} == set(FILES)


def test_glyphs_by_name(small_glyphs):
    train_iter, test_iter = load_data('glyphs', 32, log=fail)
    assert (train_iter.dataset, train_iter.num_rows, test_iter.num_rows) == ('glyphs', 60, 20)
    (_, labels), (images, _) = glyphs.load(cache_dir())
    numpy.testing.assert_array_equal(numpy.rint(rows(test_iter)[0][:, 0] * 255), images)
    assert sorted(rows(train_iter)[1]) == sorted(labels)


@pytest.mark.parametrize('asked', ['glyphs', 'auto'])
def test_glyphs_need_no_home_folder(small_glyphs, no_home, asked):
    lines = []
    train_iter, test_iter = load_data(asked, 32, log=lines.append, progress=False)
    assert (train_iter.dataset, test_iter.dataset, train_iter.num_rows) == ('glyphs', 'glyphs', 60)
    assert lines == ([] if asked == 'glyphs' else [f'{NO_HOME}; {GLYPHS_INSTEAD}'])


@pytest.mark.slow
def test_glyphs_are_made_without_a_home_folder(tmp_path):
    """In a new process, because Matplotlib looks for the home folder when it is imported."""
    program = ('import pwd\n'
               'def no_account(user): raise KeyError(user)\n'
               'pwd.getpwuid = no_account\n'
               'from gluon_mgpu.data import glyphs, load_data\n'
               'glyphs.NUM_TRAIN, glyphs.NUM_TEST = 60, 20\n'
               'print(load_data("glyphs", 32)[0].num_rows)')
    homes = ('HOME', 'XDG_CACHE_HOME', 'XDG_CONFIG_HOME', 'MPLCONFIGDIR')
    environment = {name: value for name, value in os.environ.items() if name not in homes}
    process = subprocess.run([sys.executable, '-c', program], env={**environment, 'TMPDIR': str(tmp_path)},
                             cwd=Path(gluon_mgpu.__file__).parents[1], capture_output=True, text=True, timeout=60)
    assert (process.stdout, process.returncode) == ('60\n', 0), process.stderr
    assert list(tmp_path.iterdir()) == []  # Matplotlib's temporary list of fonts is deleted


@pytest.mark.parametrize('bad_home, why', [('a file', 'Not a directory'), ('locked', 'Permission denied')],
                         indirect=['bad_home'])
@pytest.mark.parametrize('asked', ['glyphs', 'auto'])
def test_glyphs_with_a_bad_home_folder(small_glyphs, bad_home, why, asked):
    lines = []
    train_iter, _ = load_data(asked, 32, log=lines.append, progress=False)
    assert (train_iter.dataset, train_iter.num_rows) == ('glyphs', 60)
    folder = bad_home / '.cache' / 'gluon-mgpu' / 'fashion-mnist'
    expected = f'Fashion-MNIST could not be stored in {folder} ({why}); {GLYPHS_INSTEAD}'
    assert lines == ([] if asked == 'glyphs' else [expected])


def test_auto_without_certificates_uses_glyphs_and_reports_why(small_glyphs, monkeypatch):
    monkeypatch.setenv('REQUESTS_CA_BUNDLE', '/no/such.pem')
    thread_errors = []
    monkeypatch.setattr(threading, 'excepthook', thread_errors.append)
    monkeypatch.setitem(download_module.MIRRORS, 'fashion-mnist', ('https://127.0.0.1:1/',))
    lines = []
    assert load_data('auto', 32, log=lines.append, progress=False)[0].dataset == 'glyphs'
    line, = lines
    assert '\n' not in line
    assert line.startswith('Fashion-MNIST could not be downloaded (127.0.0.1:1 not asked, ')
    assert line.endswith(f'invalid path: /no/such.pem); {GLYPHS_INSTEAD}')
    assert thread_errors == []


def test_auto_without_network_uses_glyphs_and_reports_why(small_glyphs):
    lines = []
    train_iter, test_iter = load_data('auto', 32, log=lines.append, progress=False)
    assert train_iter.dataset == test_iter.dataset == 'glyphs'
    line, = lines
    assert '\n' not in line
    assert line.startswith('Fashion-MNIST could not be downloaded (127.0.0.1:')
    assert line.endswith(f' unreachable or too slow); {GLYPHS_INSTEAD}')


def test_an_unknown_dataset():
    assert error_of('cifar', 32) == f"dataset 'cifar': must be one of {', '.join(DATASETS)}"


@pytest.mark.parametrize('name', ARRAYS)
def test_a_dataset_by_name_without_network(name):
    title = {'mnist': 'MNIST', 'fashion-mnist': 'Fashion-MNIST'}[name]
    with pytest.raises(DownloadError, match=f'^{title} could not be downloaded .*; if you have the files, name'):
        load_data(name, 32, log=fail, progress=False)


def test_the_two_datasets_are_not_confused(data_dir):
    """Their files have the same names."""
    message = error_of('fashion-mnist', 32, data_dir=data_dir / 'mnist')
    assert message.startswith(f'{data_dir}/mnist/fashion-mnist: {", ".join(FILES)} missing')


@pytest.mark.parametrize('asked', ['fashion-mnist', 'auto'])
@pytest.mark.parametrize('name', FILES)
@pytest.mark.parametrize('place', ['data', 'cache/gluon-mgpu'])
def test_a_damaged_file_is_never_ignored(tmp_path, monkeypatch, asked, name, place):
    monkeypatch.setattr(glyphs, 'load', fail)
    write(tmp_path / place / 'fashion-mnist', ARRAYS['fashion-mnist'])
    (tmp_path / place / 'fashion-mnist' / name).write_bytes(b'\0\0\0\x11 and so on, for longer than a header')
    message = error_of(asked, 32, data_dir=tmp_path / place if place == 'data' else None)
    assert message.startswith(f'{name} in {tmp_path}/{place}/fashion-mnist: expected magic number ')
    assert message.endswith(', found 17; delete the file or replace it with the original')


@pytest.mark.parametrize('size', [0, -1, 2.0, '8', None])
def test_batch_size(data_dir, size):
    message = error_of('mnist', size, data_dir=data_dir)
    assert message == f'batch_size {size!r}: must be an integer of at least 1'


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
    for (_, y), *parts in zip(validation_iter, *shards):
        assert y.tolist() == [label for _, part in parts for label in part.tolist()]


def test_seed(data_dir):
    assert error_of('mnist', 32, data_dir=data_dir, seed=-1) == 'seed -1: must be an integer of at least 0'


def test_resize(data_dir, monkeypatch):
    monkeypatch.setenv('GLUON_MGPU_DATA', str(data_dir))
    assert len(load_data_fashion_mnist(30, resize=28)[0]) == 4
    with pytest.raises(ValueError, match='^resize 96: images are 28x28, as in both chapters'):
        load_data_fashion_mnist(30, resize=96)


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
