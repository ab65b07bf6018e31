"""Tests of atomic writing, and of detecting a replaced folder."""
import os
import pickle
import shutil
import stat
import threading

import pytest
from limits import limits

from gluon_mgpu.base import files as module
from gluon_mgpu.base.files import SameFolder, beside, check_writable, open_file, same_folder, write_atomically


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
    number = same.descriptor
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


def test_only_regular_files_of_bounded_size_are_opened(tmp_path):
    os.mkfifo(tmp_path / 'fifo')
    (tmp_path / 'a').write_bytes(b'12345')
    for path, limit, words in ((tmp_path / 'fifo', 9, 'not a regular file'), ('/dev/zero', 9, 'not a regular file'),
                               (tmp_path / 'a', 4, 'larger than 4 bytes'), (tmp_path, 9, 'Is a directory'),
                               (tmp_path / 'none', 9, 'No such file or directory')):
        with limits(5), pytest.raises(OSError, match=words) as error:
            open_file(path, limit)
        assert str(error.value.filename) == str(path)
    assert module.read_file(tmp_path / 'a', 5) == b'12345'
    assert len(module.read_file('/proc/self/status', 5)) == 5  # its size is 0


@pytest.mark.parametrize('target', ['config.json', '../elsewhere', 'missing'])
def test_a_link_in_a_folder_of_others_is_not_followed(target, tmp_path):
    folder = tmp_path / 'run'
    folder.mkdir()
    (folder / 'config.json').write_bytes(b'{}')
    (tmp_path / 'elsewhere').write_bytes(b'mine')
    (folder / 'a.png').symlink_to(target)
    for path in (SameFolder(folder) / 'a.png', beside(folder / 'trace.json', 'a.png')):
        with pytest.raises(OSError, match='a link, which is not followed'):
            write_atomically(path, b'new')
        with pytest.raises(ValueError, match=r'a.png cannot be written: it is a link; remove it, or name a file with'):
            check_writable(path)
    assert (folder / 'config.json').read_bytes() == b'{}' and (tmp_path / 'elsewhere').read_bytes() == b'mine'
    assert (folder / 'a.png').is_symlink() and not (folder / 'missing').exists()


@pytest.mark.parametrize('by', ['folder', 'link'])
def test_nothing_is_written_into_a_folder_that_has_replaced_another(by, tmp_path):
    (tmp_path / 'run').mkdir()
    (tmp_path / 'other').mkdir()
    path = SameFolder(tmp_path / 'run') / 'a'
    write_atomically(path, b'old')
    (tmp_path / 'run').rename(tmp_path / 'moved')
    if by == 'folder':
        (tmp_path / 'run').mkdir()
    else:
        (tmp_path / 'run').symlink_to('other')
    with pytest.raises(OSError, match='it was replaced by another folder'):
        write_atomically(path, b'new')
    assert [*(tmp_path / 'run').iterdir()] == [] and (tmp_path / 'moved/a').read_bytes() == b'old'


def test_a_folder_is_the_same_in_copies_and_other_processes(tmp_path):
    folder = SameFolder(tmp_path)
    assert same_folder(folder) is folder and beside(folder / 'a', 'b').folder is folder
    assert str(folder) == os.fspath(folder) == str(tmp_path)
    assert pickle.loads(pickle.dumps(folder)) == tmp_path  # another worker may not have it


@pytest.mark.parametrize('mode', [0o600, 0o640, 0o444])
def test_the_mode_of_a_file_stays(mode, tmp_path):
    for path in (tmp_path / 'a', SameFolder(tmp_path) / 'b'):
        path.write_bytes(b'old')
        path.chmod(mode)
        write_atomically(path, b'new')
        assert stat.S_IMODE(path.stat().st_mode) == mode and path.read_bytes() == b'new'


def test_a_fifo_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / 'a')
    with pytest.raises(OSError, match='not a regular file'):
        write_atomically(tmp_path / 'a', b'new')
    assert stat.S_ISFIFO((tmp_path / 'a').stat().st_mode)


def test_the_file_to_read_is_not_written(tmp_path):
    (tmp_path / 'a').touch()
    (tmp_path / 'b').symlink_to('a')
    for name in 'ab':
        with pytest.raises(ValueError, match=f'{name} cannot be written: it is the file to read; name another one'):
            check_writable(tmp_path / name, source=tmp_path / 'a')
    check_writable(tmp_path / 'c', source=tmp_path / 'a')
