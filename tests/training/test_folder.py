"""The folder of a run: new, or empty, and one program's alone."""
import json
import threading

import pytest

from gluon_mgpu.training import folder as module
from gluon_mgpu.training.folder import check_free, new_folder


def test_default_names_never_collide(tmp_path, monkeypatch):
    """Also within one second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module.time, 'strftime', lambda form: '20261121-120000')
    names = [str(new_folder(None, 'scratch')) for _ in range(3)]
    assert names == [f'runs/scratch-20261121-120000{number}' for number in ('', '-2', '-3')]
    assert all((tmp_path / name / 'config.json').read_text() == '{}\n' for name in names)


@pytest.mark.parametrize('there', [False, True])
def test_a_given_name(tmp_path, there):
    path = tmp_path / 'some' / 'where'
    if there:
        path.mkdir(parents=True)
    check_free(path)
    assert new_folder(path, 'scratch', 'record.json', {'a': 1}) == path
    assert json.loads((path / 'record.json').read_text()) == {'a': 1}
    for refuse in (lambda: check_free(path), lambda: new_folder(path, 'scratch', 'record.json')):
        with pytest.raises(ValueError, match='where is not an empty folder, and a run overwrites nothing'):
            refuse()
    assert json.loads((path / 'record.json').read_text()) == {'a': 1}


def test_what_is_no_folder_is_refused(tmp_path):
    (tmp_path / 'file').write_text('x')
    (tmp_path / 'broken').symlink_to('nowhere')
    for path in (tmp_path / 'file', tmp_path):
        with pytest.raises(ValueError, match='is not an empty folder'):
            new_folder(path, 'scratch')
    assert (tmp_path / 'file').read_text() == 'x'
    with pytest.raises((ValueError, OSError)):
        new_folder(tmp_path / 'broken', 'scratch')


def test_of_many_at_once_one_gets_the_folder(tmp_path):
    """They all find it free, and then make it."""
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


def test_threads_that_write_one_file_at_the_same_time(tmp_path):
    """Each writes a file of its own first: the one that is renamed last is there, complete, and nothing else."""
    barrier, problems = threading.Barrier(4), []

    def pieces(number):
        for _ in range(3):
            barrier.wait()
            yield bytes([number]) * 2**16

    def write(number):
        try:
            module.write_whole(tmp_path / 'a', pieces(number))
        except Exception as error:
            problems.append(error)
            barrier.abort()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    content = (tmp_path / 'a').read_bytes()
    assert problems == [] and content == content[:1] * 3 * 2**16
    assert [path.name for path in tmp_path.iterdir()] == ['a']


def test_what_a_killed_process_has_left_is_used_again(tmp_path):
    (tmp_path / 'a.part').write_bytes(b'x' * 100)
    module.write_whole(tmp_path / 'a', [b'new'])
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [('a', b'new')]


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def none(*args):
        raise OSError(95, 'Operation not supported')

    monkeypatch.setattr(module.fcntl, 'flock', none)
    for content in (b'1', b'2'):
        module.write_whole(tmp_path / 'a', [content])
        assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [('a', content)]


@pytest.mark.parametrize('there', [True, False])
def test_a_symbolic_link_stays_one(there, tmp_path):
    target = tmp_path / 'elsewhere' / 'b'
    target.parent.mkdir()
    if there:
        target.write_bytes(b'old')
    (tmp_path / 'a').symlink_to('elsewhere/b')
    module.write_whole(tmp_path / 'a', [b'new'])
    assert (tmp_path / 'a').is_symlink() and target.read_bytes() == b'new'
    assert [path.name for path in target.parent.iterdir()] == ['b']


@pytest.mark.parametrize('error', [OSError, KeyboardInterrupt])
def test_nothing_is_left_of_what_was_interrupted(error, tmp_path):
    def pieces():
        yield b'new'
        raise error

    (tmp_path / 'a').write_bytes(b'old')
    with pytest.raises(error):
        module.write_whole(tmp_path / 'a', pieces())
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [('a', b'old')]
