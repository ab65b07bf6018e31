"""The folder of a run is new or empty, and only one program uses it."""
import contextlib
import errno
import json
import os
import platform
import subprocess
import threading
from contextlib import ExitStack

import pytest

from gluon_mgpu.checkpoints import run_folder as module
from gluon_mgpu.checkpoints.checkpoint_callback import CheckpointCallback
from gluon_mgpu.checkpoints.run_folder import (
    check_free,
    check_links,
    claim_folder,
    lock_folder,
    new_folder,
    this_process,
    write_config,
)
from gluon_mgpu.mxnet_setup.compat import np
from gluon_mgpu.training.run import Run


def test_default_names_never_collide(tmp_path, monkeypatch):
    """Even within one second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module.time, 'strftime', lambda form: '20261121-120000')
    names = [str(new_folder(None, 'scratch')) for _ in range(3)]
    assert names == [f'runs/scratch-20261121-120000{number}' for number in ('', '-2', '-3')]
    assert all((tmp_path / name).is_dir() for name in names)


@pytest.mark.parametrize('name', ['new', 'scratch'])
def test_no_run_of_the_user_is_in_the_way_of_the_default_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'runs' / name).mkdir(parents=True)
    (tmp_path / 'runs' / name / 'config.json').write_text('{}')
    check_free(None)
    assert new_folder(None, 'scratch').is_dir()


@pytest.mark.parametrize('exists', [False, True])
def test_a_given_name(tmp_path, exists):
    path = tmp_path / 'some' / 'where'
    if exists:
        path.mkdir(parents=True)
    check_free(path)
    with ExitStack() as stack:
        assert claim_folder(path, 'scratch', {'a': 1}, stack).path == path
        with pytest.raises(ValueError, match='where is in use by another run: wait until it ends'):
            lock_folder(path, stack)
    with ExitStack() as stack:
        lock_folder(path, stack)
    assert json.loads((path / 'config.json').read_text()) == {'a': 1}
    for call in (lambda: check_free(path), lambda: new_folder(path, 'scratch')):
        with pytest.raises(ValueError, match='where is not an empty folder, and a run overwrites nothing'):
            call()
    assert json.loads((path / 'config.json').read_text()) == {'a': 1}


def test_a_path_that_is_not_a_folder_is_rejected(tmp_path):
    (tmp_path / 'file').write_text('x')
    (tmp_path / 'broken').symlink_to('nowhere')
    for path in (tmp_path / 'file', tmp_path):
        with pytest.raises(ValueError, match='is not an empty folder'):
            new_folder(path, 'scratch')
    assert (tmp_path / 'file').read_text() == 'x'
    with pytest.raises((ValueError, OSError)):
        new_folder(tmp_path / 'broken', 'scratch')


def test_the_message_names_a_process_that_runs(tmp_path):
    """config.json names the first process of a run until the one that resumes it has loaded its data."""
    ended = subprocess.Popen(['true'])
    ended.wait()
    running, first = this_process(), os.getppid()
    elsewhere = {**running, 'pid': ended.pid, 'host': 'elsewhere'}  # unknown whether it runs
    with ExitStack() as stack:
        lock_folder(tmp_path, stack)
        for process, name in ((running, f'process {os.getpid()} on {platform.node()} since {running["since"]}'),
                              ({**running, 'pid': first}, f'process {first} on'),
                              (elsewhere, f'process {ended.pid} on elsewhere'),
                              ({**running, 'pid': ended.pid}, None)):
            (tmp_path / 'config.json').write_text(json.dumps({'process': process}))
            with pytest.raises(ValueError, match=f'in use by {f"the run of {name}" if name else "another run: "}'):
                lock_folder(tmp_path, stack)


def test_only_one_of_several_threads_gets_the_folder(tmp_path, monkeypatch):
    barrier, outcomes = threading.Barrier(8), []

    def found_free(folder, chapter):
        folder.mkdir(exist_ok=True)
        if not outcomes:
            barrier.wait()
        return folder

    def claim(number):
        try:
            with ExitStack() as stack:
                claim_folder(tmp_path / 'run', 'scratch', {'number': number}, stack)
            outcomes.append(number)
        except ValueError:
            outcomes.append(None)

    monkeypatch.setattr(module, 'new_folder', found_free)
    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    claim(8)  # it has found the folder free before the winner, and tries to lock it after the winner has ended
    winner, = [number for number in outcomes if number is not None]
    assert len(outcomes) == 9
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
        with pytest.raises(ValueError, match=r'^runs.* cannot be created because .*runs is not a folder: remove it'):
            call()


def test_no_other_name_is_tried_in_a_read_only_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, 'count', lambda start: range(start, 9))

    def refuse(self, **options):
        raise PermissionError(errno.EACCES, 'Permission denied', str(self))

    monkeypatch.setattr(module.Path, 'mkdir', refuse)
    with pytest.raises(PermissionError):
        new_folder(None, 'scratch')


@pytest.mark.parametrize('path', [None, 'runs/mine', 'existing'])
def test_a_folder_that_cannot_be_written(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'existing').mkdir()
    monkeypatch.setattr(module.os, 'access', lambda folder, mode: False)  # root may write in any folder
    place = tmp_path / 'existing' if path == 'existing' else tmp_path
    with pytest.raises(ValueError, match=f'^the results cannot be written in {place}: give --out-dir with a folder '):
        check_free(path)


def test_after_a_full_disk_the_folder_can_be_used(tmp_path, full_disk):
    """An empty config.json would mark the folder as that of another run."""
    with full_disk(), ExitStack() as stack, pytest.raises(OSError, match='No space left'):
        claim_folder(tmp_path / 'run', 'scratch', {}, stack)
    assert list((tmp_path / 'run').iterdir()) == []
    with ExitStack() as stack:
        assert claim_folder(tmp_path / 'run', 'scratch', {}, stack).path == tmp_path / 'run'


def test_files_that_look_unfinished_are_not_ours(tmp_path):
    """Such as those of a browser, a backup of a day, and the picture of a `predict` that is running."""
    (tmp_path / 'config.json.0123abcd.part').mkdir()
    names = ['film.mp4.part', 'backup.20240101.part', 'movie.mkv.deadbeef.part', 'predictions.png.0123abcd.part',
             'checkpoint-1.safetensors.0123abcd.part', 'my-config.json.0123abcd.part', 'config.json.0123abcd.part.gz']
    for name in names:
        (tmp_path / name).touch()
    CheckpointCallback(tmp_path).train_begin(Run(1, quiet=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(['config.json.0123abcd.part', *names])
    for name in names:
        folder = tmp_path / f'with {name}'
        folder.mkdir()
        (folder / name).touch()
        with pytest.raises(ValueError, match='is not an empty folder'):
            check_free(folder)


def test_unfinished_files_of_a_killed_process_are_ignored(tmp_path):
    for name in ('config.json', 'history.csv', 'best.safetensors', 'checkpoint-00000042.safetensors'):
        (tmp_path / f'{name}.0123abcd.part').write_text('{')
    check_free(tmp_path)
    with ExitStack() as stack:
        claim_folder(tmp_path, 'scratch', {}, stack)
    assert (tmp_path / 'config.json').read_text() == '{}\n'
    CheckpointCallback(tmp_path).train_begin(Run(1, quiet=True))
    assert [path.name for path in tmp_path.iterdir()] == ['config.json']


def test_a_link_to_a_folder_with_a_longer_name(tmp_path):
    for name in ('run', 'run-other'):
        (tmp_path / name).mkdir()
        (tmp_path / name / 'a').touch()
    (tmp_path / 'run' / 'config.json').touch()
    (tmp_path / 'run' / 'latest').symlink_to('a')
    check_links(tmp_path / 'run')
    (tmp_path / 'run' / 'history.csv').symlink_to('../run-other/a')
    with pytest.raises(ValueError, match='history.csv is a link to a file outside the folder, which could be overwrit'):
        check_links(tmp_path / 'run')


@pytest.mark.parametrize('call', [lambda folder: write_config(folder, {}), lambda folder: Run(1, folder=folder),
                                  lambda folder: CheckpointCallback(folder)])
def test_a_folder_that_is_replaced_after_it_was_locked(call, tmp_path):
    """By a link, also to a folder with files of the user."""
    (tmp_path / 'run').mkdir()
    (tmp_path / 'other').mkdir()
    part = tmp_path / 'other/config.json.0123abcd.part'
    part.touch()
    with ExitStack() as stack:
        folder = lock_folder(tmp_path / 'run', stack)
        (tmp_path / 'run').rename(tmp_path / 'moved')
        (tmp_path / 'run').symlink_to('other')
        with contextlib.suppress(OSError):
            found = call(folder)
            run = Run(1, quiet=True, folder=folder, callbacks=[CheckpointCallback(folder)])
            for _ in run.epochs([[np.zeros(1)]]):
                for _ in run.batches([0]):
                    run.record_losses([np.zeros(1)])
                run.end_epoch(0.5)
            assert isinstance(found, (Run, CheckpointCallback))
    assert [*(tmp_path / 'other').iterdir()] == [part]
