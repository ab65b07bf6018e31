"""Tests of reading files of others, and of atomic writing."""
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from limits import limits

from gluon_mgpu.base import files as module
from gluon_mgpu.base.files import open_file, write_atomically


def test_threads_write_one_file_at_the_same_time(tmp_path):
    """The file is complete, with the content of one thread, and no other files are left."""
    barrier = threading.Barrier(4, timeout=10)

    def write(number):
        for _ in range(5):
            barrier.wait()
            write_atomically(tmp_path / 'a', bytes([number]) * 2**20)

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(write, range(4))] == [None] * 4  # no errors
    content = (tmp_path / 'a').read_bytes()
    assert content == content[:1] * 2**20
    assert [path.name for path in tmp_path.iterdir()] == ['a']


@pytest.mark.parametrize('error', [OSError, KeyboardInterrupt])
def test_an_interrupted_write_leaves_the_old_file(error, tmp_path, monkeypatch):
    def interrupted(descriptor):
        raise error

    (tmp_path / 'a').write_bytes(b'old')
    monkeypatch.setattr(module.os, 'fsync', interrupted)
    with pytest.raises(error):
        write_atomically(tmp_path / 'a', b'new')
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [('a', b'old')]


def test_the_file_and_its_name_are_synced(tmp_path, monkeypatch):
    modes = []
    monkeypatch.setattr(module.os, 'fsync', lambda descriptor: modes.append(os.fstat(descriptor).st_mode))
    write_atomically(tmp_path / 'a', b'new')
    assert [stat.S_ISDIR(mode) for mode in modes] == [False, True]


def test_errors_name_the_file(tmp_path, monkeypatch, full_disk):
    monkeypatch.chdir(tmp_path)
    with full_disk(), pytest.raises(OSError) as full:
        write_atomically('a', b'new')
    assert (full.value.filename, full.value.strerror) == ('a', 'No space left on device')
    with pytest.raises(FileNotFoundError) as missing:
        write_atomically('none/a', b'new')
    assert missing.value.filename == 'none/a'
    assert list(tmp_path.iterdir()) == []


def test_only_regular_files_of_bounded_size_are_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(module, 'LARGEST', 4)
    os.mkfifo(tmp_path / 'fifo')
    (tmp_path / 'a').write_bytes(b'12345')
    for path, words in ((tmp_path / 'fifo', 'not a regular file'), ('/dev/zero', 'not a regular file'),
                        (tmp_path / 'a', 'larger than 4 bytes'), (tmp_path, 'Is a directory'),
                        (tmp_path / 'none', 'No such file or directory')):
        with limits(5), pytest.raises(OSError, match=words) as error:
            open_file(path)
        assert str(error.value.filename) == str(path)


@pytest.mark.parametrize('mode', [0o600, 0o640])
def test_a_private_file_stays_private(mode, tmp_path):
    path = tmp_path / 'a'
    path.touch(mode=mode)
    write_atomically(path, b'new')
    assert stat.S_IMODE(path.stat().st_mode) == mode and path.read_bytes() == b'new'


def test_a_fifo_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / 'a')
    with pytest.raises(OSError, match='not a regular file'):
        write_atomically(tmp_path / 'a', b'new')
    assert stat.S_ISFIFO((tmp_path / 'a').stat().st_mode)


@pytest.mark.parametrize('target', ['config.json', '../elsewhere', 'missing', 'a'])
def test_a_link_is_replaced_and_not_followed(target, tmp_path):
    folder = tmp_path / 'run'
    folder.mkdir()
    (folder / 'config.json').write_bytes(b'{}')
    (tmp_path / 'elsewhere').write_bytes(b'mine')
    (folder / 'a').symlink_to(target)
    write_atomically(folder / 'a', b'new')
    assert not (folder / 'a').is_symlink() and (folder / 'a').read_bytes() == b'new'
    assert (folder / 'a').stat().st_mode == (folder / 'config.json').stat().st_mode  # not that of the link
    assert (folder / 'config.json').read_bytes() == b'{}' and (tmp_path / 'elsewhere').read_bytes() == b'mine'
    assert not (folder / 'missing').exists()
