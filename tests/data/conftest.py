"""Fixtures for the tests of data: folders with datasets, and homes."""
import pwd
import socket

import pytest
from datasets import ARRAYS
from idx_files import write

from gluon_mgpu.data import download as download_module, glyphs


@pytest.fixture
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
    """Make the built-in dataset small, so that it is generated immediately."""
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
