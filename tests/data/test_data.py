"""Tests of finding datasets, of errors, and of the batches."""
import errno
import gc
import os
import pwd
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy
import pytest
from idx_files import dataset, file_contents, idx_bytes, write
from local_mirror import LocalMirror, checksums

import gluon_mgpu
from gluon_mgpu.data import (
    DATASETS,
    download as download_module,
    glyphs,
    load_data,
    load_data_fashion_mnist,
)
from gluon_mgpu.data.batches import BatchIterator, check_data, num_outputs
from gluon_mgpu.data.folders import FILES, DownloadError, cache_dir
from gluon_mgpu.mxnet_setup.compat import autograd, gluon, mx, np, npx

NO_HOME = 'there is no home folder to store downloads in'
NO_HOME_REMEDY = 'set XDG_CACHE_HOME to a writable folder, or use --data-dir to name a folder with the files'
GLYPHS_INSTEAD = ("training on the built-in dataset 'glyphs' instead. "
                  'Use --data-dir to name a folder with the files.')
ARRAYS = {name: dataset(seed=i) for i, name in enumerate(('fashion-mnist', 'mnist'))}


@pytest.fixture(autouse=True)
def no_dataset(tmp_path, monkeypatch):
    """Use an empty cache folder, no data folder in the environment, and mirrors that are down."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    monkeypatch.delenv('GLUON_MGPU_DATA', raising=False)
    for name in ('no_proxy', 'NO_PROXY'):  # requests looks for the first one first
        monkeypatch.setenv(name, '127.0.0.1')
    with socket.socket() as taken:  # bound, and not listening: connections are refused
        taken.bind(('127.0.0.1', 0))
        down = f'http://127.0.0.1:{taken.getsockname()[1]}/'
        monkeypatch.setattr(download_module, 'MIRRORS', dict.fromkeys(ARRAYS, (down,)))
        yield


@pytest.fixture
def data_dir(tmp_path):
    """A folder that holds both datasets."""
    for name, arrays in ARRAYS.items():
        write(tmp_path / 'data' / name, arrays)
    return tmp_path / 'data'


@pytest.fixture
def small_glyphs(monkeypatch):
    for name, value in {'NUM_TRAIN': 60, 'NUM_TEST': 20, 'TRAIN_FONTS': ('DejaVuSans',),
                        'TEST_FONTS': ('cmr10',)}.items():
        monkeypatch.setattr(glyphs, name, value)


@pytest.fixture
def no_home(monkeypatch):
    """No HOME, and a user without an account, as in containers."""
    def no_account(user):
        raise KeyError(user)

    for name in ('HOME', 'XDG_CACHE_HOME'):
        monkeypatch.delenv(name)
    monkeypatch.setattr(pwd, 'getpwuid', no_account)


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


def lock(monkeypatch, folder):
    """Deny access to the content of `folder`, as if it had mode 000."""
    def locked(real):
        def call(path, *args, **kwargs):
            if folder in path.parents:
                raise PermissionError(errno.EACCES, 'Permission denied', str(path))
            return real(path, *args, **kwargs)
        return call

    for name in ('stat', 'mkdir', 'open'):
        monkeypatch.setattr(Path, name, locked(getattr(Path, name)))


def fail(*args):
    raise AssertionError(f'called with {args}')


def rows(data_iter) -> tuple:
    """Return all rows of one epoch as NumPy arrays."""
    X, y = zip(*data_iter)
    return numpy.concatenate([x.asnumpy() for x in X]), numpy.concatenate([x.asnumpy() for x in y])


def assert_holds(iters, arrays, dataset):
    """Check that the test rows are those of `arrays` in order, and the training rows in any order."""
    train_iter, test_iter = iters
    assert train_iter.dataset == test_iter.dataset == dataset
    X, y = rows(test_iter)
    numpy.testing.assert_array_equal(numpy.rint(X[:, 0] * 255), arrays[FILES[2]])
    numpy.testing.assert_array_equal(y, arrays[FILES[3]])
    X, y = rows(train_iter)
    assert sorted(zip(X.sum((1, 2, 3)).round(2), y)) == sorted(zip(
        (arrays[FILES[0]] / 255).sum((1, 2)).round(2).astype('float32'), arrays[FILES[1]]))


def error_of(*args, **kwargs) -> str:
    """Return the error message of `load_data`: one line."""
    with pytest.raises(ValueError) as error:
        load_data(*args, log=fail, **kwargs)
    assert '\n' not in str(error.value)
    return str(error.value)


# Where datasets are found

@pytest.mark.parametrize('name', ARRAYS)
def test_a_folder_of_datasets(data_dir, name):
    assert_holds(load_data(name, 32, data_dir=data_dir), ARRAYS[name], name)
    assert_holds(load_data(name, 32, data_dir=str(data_dir / name)), ARRAYS[name], name)


@pytest.mark.parametrize('name', ARRAYS)
def test_a_folder_of_datasets_that_has_the_name_of_one(tmp_path, name):
    write(tmp_path / name / name, ARRAYS[name])
    assert_holds(load_data(name, 32, data_dir=tmp_path / name), ARRAYS[name], name)
    write(tmp_path / name, dataset(seed=9))  # the folder in it comes first
    assert_holds(load_data(name, 32, data_dir=tmp_path / name), ARRAYS[name], name)


def test_an_empty_folder_of_the_same_name_is_ignored(data_dir):
    (data_dir / 'mnist' / 'mnist').mkdir()
    assert_holds(load_data('mnist', 32, data_dir=data_dir / 'mnist'), ARRAYS['mnist'], 'mnist')


def test_uncompressed_files(tmp_path):
    folder = tmp_path / 'data' / 'mnist'
    folder.mkdir(parents=True)
    for name, array in ARRAYS['mnist'].items():
        (folder / name[:-len('.gz')]).write_bytes(idx_bytes(array))
    assert_holds(load_data('mnist', 32, data_dir=tmp_path / 'data'), ARRAYS['mnist'], 'mnist')


def test_a_folder_in_the_environment(data_dir, tmp_path, monkeypatch):
    monkeypatch.setenv('GLUON_MGPU_DATA', str(data_dir))
    assert_holds(load_data('mnist', 32), ARRAYS['mnist'], 'mnist')
    assert_holds(load_data('auto', 32, log=fail), ARRAYS['fashion-mnist'], 'fashion-mnist')
    assert_holds(load_data_fashion_mnist(32), ARRAYS['fashion-mnist'], 'fashion-mnist')
    other = dataset(seed=9)
    write(tmp_path / 'other' / 'mnist', other)
    assert_holds(load_data('mnist', 32, data_dir=tmp_path / 'other'), other, 'mnist')  # the argument has priority


def test_the_current_folder(data_dir, monkeypatch):
    monkeypatch.chdir(data_dir / 'mnist')
    assert_holds(load_data('mnist', 32, data_dir='.'), ARRAYS['mnist'], 'mnist')


def test_a_folder_in_the_home_folder(data_dir, monkeypatch):
    monkeypatch.setenv('HOME', str(data_dir.parent))
    assert_holds(load_data('mnist', 32, data_dir='~/data'), ARRAYS['mnist'], 'mnist')


def test_files_in_the_cache_folder(tmp_path):
    write(tmp_path / 'cache' / 'gluon-mgpu' / 'mnist', ARRAYS['mnist'])
    assert_holds(load_data('mnist', 32), ARRAYS['mnist'], 'mnist')


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


def test_the_cache_folder(tmp_path, monkeypatch):
    assert cache_dir() == tmp_path / 'cache' / 'gluon-mgpu'
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.delenv('XDG_CACHE_HOME')
    assert cache_dir() == tmp_path / '.cache' / 'gluon-mgpu'
    monkeypatch.setenv('XDG_CACHE_HOME', '')
    assert cache_dir() == tmp_path / '.cache' / 'gluon-mgpu'


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


# Errors

def test_an_unknown_dataset():
    assert error_of('cifar', 32) == f"dataset 'cifar': must be one of {', '.join(DATASETS)}"


@pytest.mark.parametrize('name', DATASETS)
def test_an_empty_folder_name(name):
    """A shell passes '' for a variable that is not set."""
    assert error_of(name, 32, data_dir='') == (
        "data_dir '' is empty: name a folder, or leave data_dir out")


def test_an_empty_folder_name_in_the_environment_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setenv('GLUON_MGPU_DATA', '')
    write(tmp_path / 'cache' / 'gluon-mgpu' / 'mnist', ARRAYS['mnist'])
    assert_holds(load_data('mnist', 32), ARRAYS['mnist'], 'mnist')


@pytest.mark.parametrize('asked', ['mnist', 'fashion-mnist', 'auto'])
def test_the_home_folder_of_an_unknown_user(asked):
    assert error_of(asked, 32, data_dir='~nosuchuser/x') == (
        'data_dir ~nosuchuser/x: must be the full path, because this home folder is unknown')


@pytest.mark.parametrize('asked', ['mnist', 'fashion-mnist'])
def test_no_home_folder(no_home, data_dir, asked, monkeypatch):
    assert error_of(asked, 32) == f'{NO_HOME}; {NO_HOME_REMEDY}'
    message = error_of(asked, 32, data_dir='~/data')
    assert message == 'data_dir ~/data: must be the full path, because this home folder is unknown'
    assert_holds(load_data(asked, 32, data_dir=data_dir), ARRAYS[asked], asked)
    data_dir.rename(data_dir.with_name('gluon-mgpu'))
    monkeypatch.setenv('XDG_CACHE_HOME', str(data_dir.parent))
    assert_holds(load_data(asked, 32), ARRAYS[asked], asked)


def test_a_named_folder_that_cannot_be_entered(data_dir, monkeypatch):
    lock(monkeypatch, data_dir)
    assert error_of('auto', 32, data_dir=data_dir) == (
        f'{data_dir}/fashion-mnist: cannot be read (Permission denied); make it readable')


@pytest.mark.parametrize('name', ARRAYS)
def test_a_dataset_by_name_without_network(name):
    title = {'mnist': 'MNIST', 'fashion-mnist': 'Fashion-MNIST'}[name]
    with pytest.raises(DownloadError, match=f'^{title} could not be downloaded .*; use --data-dir to name a folder'):
        load_data(name, 32, log=fail, progress=False)


@pytest.mark.parametrize('asked, needed', [('mnist', 'mnist'), ('fashion-mnist', 'fashion-mnist'),
                                           ('auto', 'fashion-mnist')])
@pytest.mark.parametrize('place', ['argument', 'environment'])
def test_a_named_folder_lacks_files(data_dir, tmp_path, monkeypatch, asked, needed, place):
    """Neither the cache folder nor a mirror is used."""
    write(tmp_path / 'cache' / 'gluon-mgpu' / needed, ARRAYS[needed])
    folder = data_dir / needed
    (folder / FILES[1]).unlink()
    (folder / FILES[2]).unlink()
    monkeypatch.setattr(download_module, 'download', fail)
    if place == 'environment':
        monkeypatch.setenv('GLUON_MGPU_DATA', str(data_dir))
    message = error_of(asked, 32, data_dir=data_dir if place == 'argument' else None)
    source = '' if place == 'argument' else ', from GLUON_MGPU_DATA'
    assert message == (f'{folder}{source}: {FILES[1]}, {FILES[2]} missing; put the four files of {needed} there, '
                       'name another folder with --data-dir, or train on generated images with --dataset glyphs')


def test_a_missing_folder(tmp_path):
    message = error_of('mnist', 32, data_dir=tmp_path / 'no')
    assert message.startswith(f'{tmp_path}/no/mnist: {", ".join(FILES)} missing')


@pytest.mark.parametrize('place', ['', 'mnist'])
def test_the_error_names_the_folder_with_most_files(tmp_path, place):
    """The files may be in the named folder mnist, or in the folder mnist inside it."""
    message = error_of('mnist', 32, data_dir=tmp_path / 'mnist')
    assert message.startswith(f'{tmp_path}/mnist: {", ".join(FILES)} missing')
    folder = tmp_path / 'mnist' / place
    write(folder, ARRAYS['mnist'])
    (folder / FILES[1]).unlink()
    assert error_of('mnist', 32, data_dir=tmp_path / 'mnist').startswith(f'{folder}: {FILES[1]} missing')


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
    assert message == f'the number of training images {size!r}: must be an integer from 1 to 100'
    message = error_of('mnist', 32, data_dir=data_dir, test_size=size)
    assert message.startswith(f'the number of test images {size!r}: must be an integer from 1 to ')


def test_seed(data_dir):
    assert error_of('mnist', 32, data_dir=data_dir, seed=-1) == 'seed -1: must be an integer of at least 0'


def test_resize(data_dir, monkeypatch):
    monkeypatch.setenv('GLUON_MGPU_DATA', str(data_dir))
    assert len(load_data_fashion_mnist(30, resize=28)[0]) == 4
    with pytest.raises(ValueError, match='^resize 96: images are 28x28, as in both chapters'):
        load_data_fashion_mnist(30, resize=96)


# Batches

def make_batches(batch_size=32, n=100, **kwargs):
    arrays = dataset(num_train=n)
    return BatchIterator(arrays[FILES[0]].astype('uint8'), arrays[FILES[1]], batch_size, 'mnist', **kwargs)


def labels(data_iter) -> list:
    return rows(data_iter)[1].tolist()


def order(data_iter) -> list:
    """Return the position in the dataset of each row of one epoch."""
    sums = dataset()[FILES[0]].sum((1, 2)).tolist()
    assert len(set(sums)) == 100  # so that each row can be recognized
    return [sums.index(round(float(s))) for s in (rows(data_iter)[0].astype('float64') * 255).sum((1, 2, 3))]


@pytest.mark.parametrize('batch_size, sizes', [
    (32, [32, 32, 32, 4]), (50, [50, 50]), (99, [99, 1]), (300, [100])])
@pytest.mark.parametrize('shuffle', [False, True])
def test_shapes(batch_size, sizes, shuffle):
    data_iter = make_batches(batch_size, shuffle=shuffle)
    batches = list(data_iter)
    assert len(data_iter) == len(batches) == len(sizes)
    assert (data_iter.num_rows, data_iter.batch_size) == (100, batch_size)
    for (X, y), b in zip(batches, sizes):
        assert (X.shape, X.dtype, X.ctx) == ((b, 1, 28, 28), 'float32', mx.cpu(0))
        assert (y.shape, y.dtype, y.ctx) == ((b,), 'int32', mx.cpu(0))
        assert isinstance(X, np.ndarray) and isinstance(y, np.ndarray)
    assert min(X.min() for X, _ in batches) == 0 and max(X.max() for X, _ in batches) == 1


def test_in_order_unless_shuffled():
    data_iter = make_batches()
    for _ in range(2):
        X, y = rows(data_iter)
        numpy.testing.assert_allclose(X, dataset()[FILES[0]][:, None] / 255, rtol=1e-7)  # float32
        numpy.testing.assert_array_equal(y, dataset()[FILES[1]])


def test_every_row_once_in_a_new_order_each_epoch():
    data_iter = make_batches(shuffle=True)
    orders = [order(data_iter) for _ in range(5)]
    assert all(sorted(o) == list(range(100)) for o in orders)
    assert len({tuple(o) for o in [*orders, range(100)]}) == 6


def test_images_keep_their_labels():
    data_iter = make_batches(shuffle=True)
    data_iter.epoch = 3
    rows_taken = order(data_iter)
    data_iter.epoch = 3
    assert labels(data_iter) == dataset()[FILES[1]][rows_taken].tolist()


def test_the_seed_and_the_epoch_decide_the_order():
    a, b, other = (make_batches(size, shuffle=True, seed=seed) for size, seed in ((7, 5), (32, 5), (32, 6)))
    orders = [order(a) for _ in range(4)]
    assert a.epoch == 4
    b.epoch = 2  # as a resumed run does
    assert [order(b), order(b)] == orders[2:]
    assert order(other) != orders[0]
    numpy.random.seed(1)
    mx.random.seed(1)
    assert order(make_batches(shuffle=True, seed=5)) == orders[0]  # other random numbers have no influence


def test_an_epoch_left_halfway():
    data_iter, whole = make_batches(shuffle=True), make_batches(shuffle=True)
    for _ in data_iter:
        break
    assert data_iter.epoch == 1
    order(whole)
    assert order(data_iter) == order(whole)


def test_two_epochs_at_the_same_time():
    data_iter, one = make_batches(shuffle=True), make_batches(shuffle=True)
    expected = labels(one), labels(one)
    pairs = list(zip(data_iter, data_iter))
    assert tuple([label for pair in pairs for label in pair[i][1].asnumpy()] for i in (0, 1)) == expected


def test_test_size_takes_the_first_rows(data_dir):
    (_, some), (_, every) = (load_data('mnist', 3, data_dir=data_dir, test_size=size) for size in (5, None))
    assert [y.size for _, y in some] == [3, 2] and some.digest != every.digest
    first = [numpy.concatenate([X.asnumpy() for X, _ in batches])[:5] for batches in (some, every)]
    assert (first[0] == first[1]).all()


def test_only_the_training_rows_are_shuffled(data_dir):
    orders = [[labels(batches) for batches in load_data('mnist', 32, data_dir=data_dir, seed=seed)] for seed in (0, 1)]
    assert orders[0][0] != orders[1][0] and sorted(orders[0][0]) == sorted(orders[1][0])
    assert orders[0][1] == orders[1][1] == ARRAYS['mnist'][FILES[3]].tolist()


def test_train_size_takes_the_first_rows(data_dir):
    train_iter, test_iter = load_data('mnist', 32, data_dir=data_dir, train_size=40)
    assert (train_iter.num_rows, len(train_iter), test_iter.num_rows) == (40, 2, 30)
    assert sorted(labels(train_iter)) == sorted(ARRAYS['mnist'][FILES[1]][:40])
    assert len(load_data('mnist', 32, data_dir=data_dir, train_size=100)[0]) == 4


@pytest.mark.parametrize('shuffle', [False, True])
def test_a_batch_never_changes(shuffle):
    data_iter = make_batches(shuffle=shuffle)
    batches = list(data_iter)
    before = [(X.asnumpy().copy(), y.asnumpy().copy()) for X, y in batches]
    for X, y in data_iter:  # neither by later batches, nor by writing to them
        X[:] = -1
        y[:] = -1
    gc.collect()
    for (X, y), (X_before, y_before) in zip(batches, before):
        numpy.testing.assert_array_equal(X.asnumpy(), X_before)
        numpy.testing.assert_array_equal(y.asnumpy(), y_before)
    npx.waitall()
    assert sorted(labels(data_iter)) == sorted(dataset()[FILES[1]])


def queue_work() -> np.ndarray:
    """Queue about half a second of work on cpu(0) without waiting for it."""
    a = np.ones((1200, 1200))
    for _ in range(10):
        b = np.dot(a, a)
    return b


def test_memory_is_kept_until_queued_work_has_read_it():
    expected = [float(X.asnumpy().astype('float64').sum()) for X, _ in make_batches()]
    queue_work()
    sums = []
    for X, _ in make_batches():
        sums.append(X.sum())
        del X
    gc.collect()
    overwriting = [numpy.full((32, 1, 28, 28), 1e9, 'float32') for _ in range(10)]
    numpy.testing.assert_allclose([float(s) for s in sums], expected, rtol=1e-5)  # float32 sums of 25,000
    assert overwriting


@pytest.mark.slow
def test_reading_batches_does_not_wait():
    npx.waitall()
    queue_work()
    npx.waitall()
    start = time.perf_counter()
    queue_work()
    list(make_batches())
    seconds = time.perf_counter() - start
    npx.waitall()
    assert seconds < 0.5 * (time.perf_counter() - start)


def test_training_on_the_batches(devices):
    """Batches can be copied to any device, and gradients of results from them are correct."""
    X, y = next(iter(make_batches()))
    for device in devices:
        w = np.ones((784, 10), ctx=device)
        w.attach_grad()
        with autograd.record():
            total = npx.pick(np.dot(X.as_in_ctx(device).reshape(32, -1), w), y.as_in_ctx(device)).sum()
        total.backward()
        expected = numpy.zeros((784, 10))
        numpy.add.at(expected.T, y.asnumpy(), X.asnumpy().reshape(32, -1))
        numpy.testing.assert_allclose(w.grad.asnumpy(), expected, rtol=1e-5)  # float32 sums of up to 32


@pytest.mark.parametrize('change, message', [
    (lambda X, y: (X / numpy.float32(255), y),
     'images must be a NumPy array of uint8 (n, height, width), not float32 (4, 28, 28)'),
    (lambda X, y: (X[0], y), 'images must be a NumPy array of uint8 (n, height, width), not uint8 (28, 28)'),
    (lambda X, y: (X.tolist(), y), 'images must be a NumPy array of uint8 (n, height, width), not list'),
    (lambda X, y: (X, y / 1), 'labels must be a NumPy array of integers (n,), not float64 (4,)'),
    (lambda X, y: (X, y[:, None]), 'labels must be a NumPy array of integers (n,), not int64 (4, 1)'),
    (lambda X, y: (X, y[:3]), '4 images and 3 labels: each image needs one label'),
    (lambda X, y: (X, y - 1), 'label -1: must be at least 0')])
def test_arrays_that_are_not_images_and_labels(change, message):
    arrays = change(numpy.zeros((4, 28, 28), 'uint8'), numpy.arange(4))
    with pytest.raises(ValueError) as error:
        BatchIterator(*arrays, 2, 'mnist')
    assert str(error.value) == message


@pytest.mark.parametrize('dtype', ['>i4', 'uint8', 'int8', 'uint64'])
def test_labels_of_any_integer_dtype(dtype):
    data_iter = BatchIterator(numpy.zeros((4, 28, 28), 'uint8'), numpy.arange(4, dtype=dtype), 3, 'mnist')
    assert labels(data_iter) == [0, 1, 2, 3] and data_iter.num_classes == 4
    assert check_data((data_iter, data_iter), 3) == (data_iter, data_iter)
    images = numpy.zeros((4, 1, 28, 28), 'float32')
    as_list = [(images, numpy.arange(4, dtype=dtype)), (images[:0], np.zeros(0))]
    assert check_data((as_list, []), 4) == (as_list, [])


def batches_of(*sizes):
    return [(np.zeros((size, 1, 28, 28)), np.zeros(size)) for size in sizes]


@pytest.mark.parametrize('train_iter, rows', [
    (lambda: batches_of(4, 4), 4), (lambda: batches_of(4, 3), 4), (lambda: batches_of(5), 5),
    (lambda: gluon.data.DataLoader(gluon.data.ArrayDataset(np.zeros((8, 1)), np.zeros(8)), 4), 4)])
def test_another_batch_size_than_that_of_the_data(train_iter, rows):
    data = train_iter(), []
    assert check_data(data, rows) == data
    for batch_size in (1, rows - 1):
        with pytest.raises(ValueError, match=f'^batch_size {batch_size}, but the training data has batches of {rows} '):
            check_data(data, batch_size)
    assert check_data((batches_of(2), []), 4)  # all rows in one batch


@pytest.mark.parametrize('batch', [(np.zeros((2, 1)), [0, 0]), (np.zeros(2), np.zeros(2), np.zeros(2)), np.zeros(2)])
def test_batches_that_are_no_pairs_of_arrays(batch):
    for data in (([batch], []), ([], [batch])):
        with pytest.raises(ValueError, match=r'data has a \w+ \(.*\): each batch must be a pair \(X, y\) of arrays$'):
            check_data(data, 2)


def test_probabilities_are_for_training():
    """As test labels, they would fail only in the first evaluation."""
    batch, column = (np.zeros((2, 1)), np.ones((2, 10)) / 10), (np.zeros((2, 1)), np.zeros((2, 1)))
    assert check_data(([batch], [column]), 2)
    with pytest.raises(ValueError, match=r'^the test labels have the shape \(2, 10\): must be class numbers \(n,\)'):
        check_data(([batch], [batch]), 2)


def test_the_classes_are_on_the_last_axis():
    net = gluon.nn.Dense(7, flatten=False)
    net.initialize()
    assert num_outputs(net, (1, 3, 4)) == 7  # (1, 3, 4) -> (1, 3, 7)


def test_shards_of_nothing_and_invalid_shards():
    images, labels_ = numpy.zeros((0, 28, 28), 'uint8'), numpy.zeros(0, int)
    assert list(BatchIterator(images, labels_, 4, 'mnist', shard=[1, 2])) == []
    assert BatchIterator(images, labels_, 4, 'mnist', shard=[1, 2]).shard == (1, 2)
    for shard, message in (((2, 2), 'rank 2: must be an integer from 0 to 1'), ((0, 0), 'size 0: must be'),
                           ((0, '2'), "size '2': must be")):
        with pytest.raises(ValueError, match=message):
            BatchIterator(images, labels_, 4, 'mnist', shard=shard)


def test_all_workers_know_all_classes():
    """Including classes in other shards, so that all workers reject the same dataset."""
    data_iter = BatchIterator(numpy.zeros((4, 28, 28), 'uint8'), numpy.arange(4), 2, 'mnist', shard=(0, 2))
    assert labels(data_iter) == [0, 2] and data_iter.num_classes == 4


def test_an_epoch_is_fast():
    """60,000 rows take 0.03 s; row by row they would take over a second."""
    images = numpy.zeros((60_000, 28, 28), numpy.uint8)
    data_iter = BatchIterator(images, numpy.zeros(60_000, int), 256, 'mnist', shuffle=True)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        assert sum(1 for _ in data_iter) == 235
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5
