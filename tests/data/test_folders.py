"""Tests of the folders in which datasets are found."""
import pytest
from datasets import ARRAYS, assert_holds, error_of, fail
from idx_files import dataset, idx_bytes, write

from gluon_mgpu.data import download as download_module, load_data, load_data_fashion_mnist
from gluon_mgpu.data.folders import FILES, cache_dir

pytestmark = pytest.mark.usefixtures('no_dataset')


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


def test_a_folder_in_the_home_folder(data_dir, monkeypatch):
    monkeypatch.setenv('HOME', str(data_dir.parent))
    assert_holds(load_data('mnist', 32, data_dir='~/data'), ARRAYS['mnist'], 'mnist')


def test_the_cache_folder(tmp_path, monkeypatch):
    assert cache_dir() == tmp_path / 'cache' / 'gluon-mgpu'
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.delenv('XDG_CACHE_HOME')
    assert cache_dir() == tmp_path / '.cache' / 'gluon-mgpu'
    monkeypatch.setenv('XDG_CACHE_HOME', '')
    assert cache_dir() == tmp_path / '.cache' / 'gluon-mgpu'


@pytest.mark.parametrize('name', ['auto', 'mnist'])
def test_an_empty_folder_name(name):
    """A shell passes '' for a variable that is not set."""
    assert error_of(name, 32, data_dir='').startswith("data_dir '': must be text that is not empty")


def test_an_empty_folder_name_in_the_environment_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setenv('GLUON_MGPU_DATA', '')
    write(tmp_path / 'cache' / 'gluon-mgpu' / 'mnist', ARRAYS['mnist'])
    assert_holds(load_data('mnist', 32), ARRAYS['mnist'], 'mnist')


@pytest.mark.parametrize('asked', ['mnist', 'fashion-mnist'])
def test_no_home_folder(no_home, data_dir, asked, monkeypatch):
    with pytest.raises(RuntimeError, match='home directory'):
        load_data(asked, 32)
    assert_holds(load_data(asked, 32, data_dir=data_dir), ARRAYS[asked], asked)
    data_dir.rename(data_dir.with_name('gluon-mgpu'))
    monkeypatch.setenv('XDG_CACHE_HOME', str(data_dir.parent))
    assert_holds(load_data(asked, 32), ARRAYS[asked], asked)


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
    name = 'data_dir' if place == 'argument' else 'GLUON_MGPU_DATA'
    assert message == (f'{name} {folder}: {FILES[1]}, {FILES[2]} missing; put the four files of {needed} there, '
                       'name another folder, or train on generated images with --dataset glyphs')


def test_what_is_no_folder(tmp_path, monkeypatch):
    (tmp_path / 'file').touch()
    for name, searched in ('no', 'no/mnist'), ('file', 'file/mnist'), ('file/mnist', 'file/mnist'):
        problem = f'{tmp_path}/{searched}: {", ".join(FILES)} missing; put the four files of mnist there, '
        assert error_of('mnist', 32, data_dir=tmp_path / name).startswith(f'data_dir {problem}')
    monkeypatch.setenv('GLUON_MGPU_DATA', str(tmp_path / name))
    assert error_of('mnist', 32).startswith(f'GLUON_MGPU_DATA {problem}')


@pytest.mark.parametrize('place', ['', 'mnist'])
def test_the_error_names_the_folder_with_most_files(tmp_path, place):
    """The files may be in the named folder mnist, or in the folder mnist inside it."""
    (tmp_path / 'mnist').mkdir()
    message = error_of('mnist', 32, data_dir=tmp_path / 'mnist')
    assert message.startswith(f'data_dir {tmp_path}/mnist: {", ".join(FILES)} missing')
    folder = tmp_path / 'mnist' / place
    write(folder, ARRAYS['mnist'])
    (folder / FILES[1]).unlink()
    assert error_of('mnist', 32, data_dir=tmp_path / 'mnist').startswith(f'data_dir {folder}: {FILES[1]} missing')
