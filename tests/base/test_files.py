"""Tests of atomic writing, and of detecting a replaced folder."""
import os
import shutil
import stat
import threading

import pytest

from gluon_mgpu.base import files as module
from gluon_mgpu.base.files import SameFolder, write_atomically


def test_threads_write_one_file_at_the_same_time(tmp_path):
    """The file is complete, with the content of one thread, and no other files are left."""
    barrier, problems = threading.Barrier(4), []

    def write(number):
        try:
            for _ in range(5):
                barrier.wait()
                write_atomically(tmp_path / 'a', bytes([number]) * 2**20)
        except Exception as error:
            problems.append(error)
            barrier.abort()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    content = (tmp_path / 'a').read_bytes()
    assert problems == [] and content == content[:1] * 2**20
    assert [path.name for path in tmp_path.iterdir()] == ['a']


@pytest.mark.parametrize('target_exists', [True, False])
def test_a_symbolic_link_is_kept(target_exists, tmp_path):
    target = tmp_path / 'elsewhere' / 'b'
    target.parent.mkdir()
    if target_exists:
        target.write_bytes(b'old')
    (tmp_path / 'a').symlink_to('elsewhere/b')
    write_atomically(tmp_path / 'a', b'new')
    assert (tmp_path / 'a').is_symlink() and target.read_bytes() == b'new'
    assert [path.name for path in target.parent.iterdir()] == ['b']


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


def test_a_folder_that_was_replaced(tmp_path):
    folder = tmp_path / 'run'
    folder.mkdir()
    same = SameFolder(folder)
    same.check()
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError):
        same.check()
    folder.mkdir()
    with pytest.raises(OSError, match='it was replaced by another folder'):
        same.check()
    number = same._descriptor
    del same
    with pytest.raises(OSError, match='Bad file descriptor'):
        os.fstat(number)


def test_errors_name_the_file(tmp_path, monkeypatch, full_disk):
    monkeypatch.chdir(tmp_path)
    with full_disk(), pytest.raises(OSError) as full:
        write_atomically('a', b'new')
    assert (full.value.filename, full.value.strerror) == ('a', 'No space left on device')
    with pytest.raises(FileNotFoundError) as missing:
        write_atomically('none/a', b'new')
    assert missing.value.filename == 'none/a'
    assert list(tmp_path.iterdir()) == []
