"""The folder of a run is new or empty, and only one program uses it."""
import errno
import json
import threading

import pytest

from gluon_mgpu.checkpoints import run_folder as module
from gluon_mgpu.checkpoints.run_folder import FolderTakenError, check_free, new_folder


def test_default_names_never_collide(tmp_path, monkeypatch):
    """Even within one second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module.time, 'strftime', lambda form: '20261121-120000')
    names = [str(new_folder(None, 'scratch')) for _ in range(3)]
    assert names == [f'runs/scratch-20261121-120000{number}' for number in ('', '-2', '-3')]
    assert all((tmp_path / name / 'config.json').read_text() == '{}\n' for name in names)


@pytest.mark.parametrize('exists', [False, True])
def test_a_given_name(tmp_path, exists):
    path = tmp_path / 'some' / 'where'
    if exists:
        path.mkdir(parents=True)
    check_free(path)
    assert new_folder(path, 'scratch', 'record.json', {'a': 1}) == path
    assert json.loads((path / 'record.json').read_text()) == {'a': 1}
    for call in (lambda: check_free(path), lambda: new_folder(path, 'scratch', 'record.json')):
        with pytest.raises(ValueError, match='where is not an empty folder, and a run overwrites nothing'):
            call()
    assert json.loads((path / 'record.json').read_text()) == {'a': 1}


def test_a_path_that_is_not_a_folder_is_rejected(tmp_path):
    (tmp_path / 'file').write_text('x')
    (tmp_path / 'broken').symlink_to('nowhere')
    for path in (tmp_path / 'file', tmp_path):
        with pytest.raises(ValueError, match='is not an empty folder'):
            new_folder(path, 'scratch')
    assert (tmp_path / 'file').read_text() == 'x'
    with pytest.raises((ValueError, OSError)):
        new_folder(tmp_path / 'broken', 'scratch')


def test_only_one_of_several_threads_gets_the_folder(tmp_path):
    """All of them find it free before any of them creates it."""
    barrier, outcomes = threading.Barrier(8), []

    def claim(number):
        barrier.wait()
        try:
            new_folder(tmp_path / 'run', 'scratch', content={'number': number})
            outcomes.append(number)
        except ValueError:
            outcomes.append(None)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winner, = [number for number in outcomes if number is not None]
    assert len(outcomes) == 8
    assert json.loads((tmp_path / 'run' / 'config.json').read_text()) == {'number': winner}


@pytest.mark.parametrize('make', [lambda path: path.write_text('x'), lambda path: path.symlink_to('nowhere')],
                         ids=['file', 'broken link'])
def test_runs_exists_but_is_not_a_folder(make, tmp_path, monkeypatch):
    """Both the default name and a given one are rejected, because no other name in runs/ would work."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, 'count', lambda start: range(start, 9))  # instead of an endless loop
    make(tmp_path / 'runs')
    for call in (lambda: check_free(None), lambda: new_folder(None, 'scratch'), lambda: check_free('runs/mine'),
                 lambda: new_folder('runs/a/b', 'scratch')):
        with pytest.raises(ValueError, match=r'runs/.* cannot be created because .*runs is not a folder: remove it'):
            call()


def test_no_other_name_is_tried_in_a_read_only_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, 'count', lambda start: range(start, 9))

    def refuse(self, **options):
        raise PermissionError(errno.EACCES, 'Permission denied', str(self))

    monkeypatch.setattr(module.Path, 'mkdir', refuse)
    with pytest.raises(PermissionError):
        new_folder(None, 'scratch')


def test_after_a_full_disk_the_folder_can_be_used(tmp_path, full_disk):
    """An empty config.json would mark the folder as that of another run."""
    with full_disk(), pytest.raises(OSError, match='No space left'):
        new_folder(tmp_path / 'run', 'scratch')
    assert list((tmp_path / 'run').iterdir()) == []
    assert new_folder(tmp_path / 'run', 'scratch') == tmp_path / 'run'


def test_unfinished_files_of_a_killed_process_are_ignored(tmp_path):
    (tmp_path / 'config.json.0123.part').write_text('{')
    check_free(tmp_path)
    assert (new_folder(tmp_path, 'scratch') / 'config.json').read_text() == '{}\n'


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    def refuse(old, new):
        raise OSError(errno.EPERM, 'Operation not permitted')

    monkeypatch.setattr(module.os, 'link', refuse)
    new_folder(tmp_path / 'run', 'scratch', content={'a': 1})
    assert [path.name for path in (tmp_path / 'run').iterdir()] == ['config.json']
    (tmp_path / 'other').mkdir()
    monkeypatch.setattr(module, 'check_free', lambda path: None)  # as if both had found it free
    (tmp_path / 'other' / 'config.json').write_text('first')
    with pytest.raises((FileExistsError, FolderTakenError)):
        new_folder(tmp_path / 'other', 'scratch')
    assert (tmp_path / 'other' / 'config.json').read_text() == 'first'
