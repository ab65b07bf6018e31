"""The folder of a run is new or empty, and only one program uses it."""
import contextlib
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from gluon_mgpu.checkpoints import checkpoint, run_folder as module
from gluon_mgpu.checkpoints.checkpoint import CheckpointError, DamagedError
from gluon_mgpu.checkpoints.checkpoint_callback import CheckpointCallback
from gluon_mgpu.checkpoints.run_folder import BEST, check_free, claim_folder, lock_folder, newest_checkpoint
from gluon_mgpu.mxnet_setup.compat import np
from gluon_mgpu.training.run import Run


def test_default_names_never_collide(tmp_path, monkeypatch):
    """The second of two in one second gets the name of the next one."""
    seconds = iter(['20261121-120000', '20261121-120000', '20261121-120001'])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module.time, 'strftime', lambda form: next(seconds))
    monkeypatch.setattr(module.time, 'sleep', lambda seconds: None)
    names = [str(module.new_folder(None, 'scratch')) for _ in range(2)]
    assert names == ['runs/scratch-20261121-120000', 'runs/scratch-20261121-120001']


@pytest.mark.parametrize('make', [lambda path: path.write_text('x'), lambda path: path.symlink_to('nowhere')],
                         ids=['file', 'broken link'])
def test_runs_exists_but_is_not_a_folder(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / 'runs')
    for path in (None, 'runs/mine'):
        with pytest.raises(OSError, match='runs'):
            module.new_folder(path, 'scratch')


@pytest.mark.parametrize('exists', [False, True])
def test_a_given_name(tmp_path, exists):
    path = tmp_path / 'some' / 'where'
    if exists:
        path.mkdir(parents=True)
    check_free(path)
    with ExitStack() as stack:
        assert claim_folder(path, 'scratch', {'a': 1}, stack) == path
        with pytest.raises(ValueError, match='where is in use by another run: wait until it ends'):
            claim_folder(path, 'scratch', {}, stack)  # as with a command that found it free before
    assert json.loads((path / 'config.json').read_text()) == {'a': 1}
    for call in (check_free, lambda path: claim_folder(path, 'scratch', {}, stack)):
        with ExitStack() as stack, pytest.raises(ValueError, match=(
                'where is not an empty folder, and a run overwrites nothing: give another --out-dir, or, to resume')):
            call(path)
    assert json.loads((path / 'config.json').read_text()) == {'a': 1}


def test_only_one_of_several_threads_gets_the_folder(tmp_path, monkeypatch):
    barrier = threading.Barrier(8)

    def found_free(folder, chapter):
        folder.mkdir(exist_ok=True)
        barrier.wait(10)
        return folder

    def claim(number):
        with ExitStack() as stack, contextlib.suppress(ValueError):
            claim_folder(tmp_path / 'run', 'scratch', {'number': number}, stack)
            return number

    monkeypatch.setattr(module, 'new_folder', found_free)
    with ThreadPoolExecutor(8) as pool:
        winner, = {*pool.map(claim, range(8))} - {None}
    # It has found the folder free before the winner, and tries to lock it after the winner has ended
    monkeypatch.setattr(module, 'new_folder', lambda folder, chapter: folder)
    assert claim(8) is None
    assert json.loads((tmp_path / 'run' / 'config.json').read_text()) == {'number': winner}


def test_after_a_full_disk_the_folder_can_be_used(tmp_path, full_disk):
    """An empty config.json would mark the folder as that of another run."""
    with full_disk(), ExitStack() as stack, pytest.raises(OSError, match='No space left'):
        claim_folder(tmp_path / 'run', 'scratch', {}, stack)
    assert list((tmp_path / 'run').iterdir()) == []
    with ExitStack() as stack:
        assert claim_folder(tmp_path / 'run', 'scratch', {}, stack) == tmp_path / 'run'


def test_more_steps_than_eight_digits(tmp_path):
    names = [f'checkpoint-{steps:08}.safetensors' for steps in (10**8, 10**8 - 1)]
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in module.checkpoints(tmp_path)] == names


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


@pytest.mark.parametrize('name', ['checkpoint-00000003.safetensors', 'checkpoint-00000099.safetensors'])
def test_a_checkpoint_with_the_name_of_another_step(name, tmp_path):
    checkpoint.save(tmp_path / name, [np.ones(1)], run={'num_steps': 4})
    lines = []
    assert newest_checkpoint(tmp_path, lines.append) == (None, {})
    assert lines == [f'{tmp_path / name}: renamed, its content is of step 4; skipped']
    module.check_newest(tmp_path, 0)
    checkpoint.save(tmp_path / 'checkpoint-00000004.safetensors', [np.ones(1)], run={'num_steps': 4})
    assert newest_checkpoint(tmp_path, lines.append)[0].name == 'checkpoint-00000004.safetensors'
    assert newest_checkpoint(tmp_path / name)[0].name == name  # named by the user


def test_the_best_checkpoint_is_the_last_candidate(tmp_path):
    checkpoint.save(tmp_path / BEST, [np.ones(1)])  # also that of another loop
    newest = tmp_path / 'checkpoint-00000004.safetensors'
    newest.touch()
    assert newest_checkpoint(tmp_path, lambda line: None) == (tmp_path / BEST, {})
    with pytest.raises(ValueError, match=f'{BEST} would be lost: resume from it'):
        CheckpointCallback(tmp_path).train_begin(Run(1, quiet=True))
    checkpoint.save(newest, [np.ones(1)], run={'num_steps': 4})
    assert newest_checkpoint(tmp_path)[0] == newest


def test_an_interrupted_cell_can_be_run_again(tmp_path):
    """Also while a notebook keeps its traceback: the loop has dropped, and so closed, the run's epochs."""
    kept = []
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt) as error:
            for _ in Run(2, quiet=True, callbacks=CheckpointCallback(tmp_path)).epochs([[np.ones(1)]]):
                raise KeyboardInterrupt
        kept.append(error)
    with ExitStack() as stack:
        lock_folder(tmp_path, stack)


def test_a_forked_process_does_not_keep_the_lock(tmp_path, monkeypatch):
    """Such as a worker of a DataLoader, which may live longer than the run; it has a copy of the descriptor."""
    with ExitStack() as copies:
        with ExitStack() as stack, monkeypatch.context() as patch:
            close = os.close
            patch.setattr(os, 'close', lambda file: (copies.callback(close, os.dup(file)), close(file)))
            lock_folder(tmp_path, stack)
            stack.close()
        with ExitStack() as stack:
            lock_folder(tmp_path, stack)


def test_a_checkpoint_that_cannot_be_read_is_not_damaged(tmp_path):
    """An older one, from which the run would continue, would replace it."""
    checkpoint.save(tmp_path / 'checkpoint-00000004.safetensors', [np.ones(1)], run={'num_steps': 4})
    newest = tmp_path / 'checkpoint-00000008.safetensors'
    newest.symlink_to(newest.name)  # a loop of links, which root cannot read either
    with pytest.raises(CheckpointError, match=r'00000008.safetensors: cannot be read \(Too many levels') as error:
        newest_checkpoint(tmp_path)
    assert not isinstance(error.value, DamagedError)
