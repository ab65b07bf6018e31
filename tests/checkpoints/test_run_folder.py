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
    check_metadata,
    claim_folder,
    lock_folder,
    new_folder,
    this_process,
    write_config,
)
from gluon_mgpu.mxnet_setup.compat import np
from gluon_mgpu.training.history import checked_history
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


VALID = {'config': {'chapter': 'scratch', 'dataset': 'glyphs', 'devices': ['cpu(0)', 'gpu(1)'], 'batch_size': 8,
                    'num_epochs': 2},
         'run': {'history': [[1, 2.0, 1.5, 0.5, 10.0, 0.1], [2, 2, 1, 1, 10, None], [3, 2.0, 1.5, 0.5, 10.0]],
                 'num_steps': 9, 'num_batches': 2, 'epoch_length': 3, 'loss': -1.0, 'rows': 5, 'seconds': 0.0}}
WRONG = (None, 'a', [], {}, [[]], True, float('nan'), float('inf'), 10**400)  # as no number; most entries are numbers
COUNT = (*WRONG, -1, 0.5, 2**31)
TEXT = (None, [], {}, True, 0.5, -1, 10**400)
FORGED = {
    'chapter': TEXT, 'dataset': TEXT, 'data_dir': TEXT[1:], 'shares': TEXT[1:], 'dtype': TEXT[1:],
    'devices': (*WRONG, ['cpu:0'], ['cpu(0)\x1b'], [None], ['cpu(0)'] * (10**4 + 1)), 'batch_size': (*COUNT, 0),
    'num_epochs': (*COUNT, 0), 'history': (*WRONG[:2], {}, True, 0.5), 'num_steps': COUNT, 'num_batches': (*COUNT, 4),
    'epoch_length': (*COUNT, 1), 'loss': WRONG, 'rows': COUNT, 'seconds': (*WRONG, -1)}


@pytest.mark.parametrize('name', FORGED)
def test_forged_metadata(name):
    """No other error than the ValueError, and no endless loop."""
    check_metadata(VALID)
    check_metadata({**VALID, 'config': {**VALID['config'], 'shares': '3,1', 'data_dir': 'a', 'dtype': 'float32',
                                        'devices': ['cpu(0)'] * 10**4}})
    part = 'run' if name in VALID['run'] else 'config'
    for value in FORGED[name]:
        with pytest.raises(ValueError, match=r'(is|are) (missing or )?malformed|is not a list'):
            check_metadata({**VALID, part: {**VALID[part], name: value}})
    if name in VALID[part]:
        with pytest.raises(ValueError, match='is missing or malformed|is not a list|is malformed'):
            check_metadata({**VALID, part: {key: value for key, value in VALID[part].items() if key != name}})


@pytest.mark.parametrize('part', VALID)
@pytest.mark.parametrize('value', WRONG)
def test_metadata_of_another_kind(part, value):
    with pytest.raises(ValueError, match='missing|malformed'):
        check_metadata({**VALID, part: value})


@pytest.mark.parametrize('place, wrong', [
    (0, (*WRONG, 0, 2, 1.5)), (1, (*WRONG, -1)), (2, WRONG), (3, (*WRONG, -0.1, 1.1)), (4, (*WRONG, -1)),
    (5, WRONG[1:])])
def test_a_forged_history(place, wrong):
    row = [1, 2.0, 1.5, 0.5, 10.0, 0.1]
    assert checked_history([row, [2, *row[1:5]], [3, *row[1:5], None]])[0] == tuple(row)
    for value in wrong:
        with pytest.raises(ValueError, match='epoch 1 of its history is malformed'):
            checked_history([[*row[:place], value, *row[place + 1:]]])
    for rows in ([row[:4]], [[*row, 1]], [[2, *row[1:]]], [row, row], [1], ['abcdef'], 'a'):
        with pytest.raises(ValueError, match='history is'):
            checked_history(rows)
