"""The faults of `make mutants` in a tiny package: found, survived, accepted, outdated."""
from itertools import chain, repeat

import pytest
from tool import load_tool

tool = load_tool('mutants')
MODULE = 'def bigger(a, b):\n    return a if a > b else b\n'
TEST = 'from gluon_mgpu.data.pair import bigger\ndef test_bigger():\n    assert bigger(1, 2) == bigger(2, 1) == 2\n'
EQUIVALENT = 'data/pair.py: return a if a > b else b -> return a if a >= b else b'


@pytest.fixture
def mutants(tmp_path, capsys, monkeypatch):
    """A function that plants faults of MODULE, given the accepted ones; returns exit status and lines."""
    monkeypatch.setenv('PYTEST_DISABLE_PLUGIN_AUTOLOAD', '1')  # saves half of the time
    for name, content in (('gluon_mgpu/__init__.py', ''), ('gluon_mgpu/data/__init__.py', ''),
                          ('gluon_mgpu/data/pair.py', MODULE), ('tests/data/test_pair.py', TEST)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / 'tools').mkdir()

    def run(accepted, *arguments):
        (tmp_path / 'tools/accepted_mutants.txt').write_text(accepted)
        with pytest.raises(SystemExit) as ended:
            tool.main([*arguments], tmp_path)
        assert (tmp_path / 'gluon_mgpu/data/pair.py').read_text() == MODULE
        return ended.value.code, capsys.readouterr().out.splitlines()

    return run


def test_a_fault_that_no_test_notices_is_printed(mutants):
    code, lines = mutants('', '--sample', '9')
    assert code == 1 and lines.pop() == '4 faults planted, 1 survived; 0 others are accepted'
    places = 'data/pair.py: return a if a > b else b -> return '
    assert sorted(lines) == [f'SURVIVED {EQUIVALENT}', f'found    {places}None', f'found    {places}a if False else b',
                             f'found    {places}a if True else b']


def test_an_accepted_one_is_not_planted(mutants, monkeypatch):
    passes = chain([True], repeat(False))  # without a fault, the tests pass
    monkeypatch.setattr(tool, 'passes', lambda *args: next(passes))
    code, lines = mutants(f'# comment\n\n{EQUIVALENT}\n    equal numbers\n', '--sample', '9')
    assert code == 0 and lines.pop() == '3 faults planted, 0 survived; 1 others are accepted'
    assert all(line.startswith('found') for line in lines) and len(lines) == 3


def test_an_accepted_line_matches_a_fault_and_has_a_reason(mutants, monkeypatch):
    line = EQUIVALENT.replace('a > b', 'a > c')
    assert mutants(f'{line}\n    equal numbers\n') == (
        f'tools/accepted_mutants.txt: no fault matches these lines, delete them:\n{line}', [])
    monkeypatch.setattr(tool, 'passes', lambda *args: True)
    assert f'SURVIVED {EQUIVALENT}' in mutants(f'{EQUIVALENT}\n# the next one\n', '--sample', '9')[1]


def test_tests_that_fail_without_a_fault_are_refused(mutants, tmp_path):
    (tmp_path / 'tests/data/test_pair.py').write_text(TEST.replace('== 2', '== 3'))
    message = mutants('')[0]
    assert 'FAILED tests/data/test_pair.py' in message and message.endswith('\nThe tests fail without a fault')


def test_a_sample_depends_on_the_seed(mutants, monkeypatch):
    monkeypatch.setattr(tool, 'passes', lambda *args: True)
    samples = [tuple(mutants('', '--modules', 'gluon_mgpu/data', '--sample', '2', '--seed', seed)[1])
               for seed in '00123']
    assert samples[0] == samples[1] and len(set(samples)) > 1 and len(samples[0]) == 3
    assert mutants('', '--modules', 'gluon_mgpu/training')[1] == ['0 faults planted, 0 survived; 0 others are accepted']


def test_a_hang_is_found(tmp_path):
    (tmp_path / 'test_x.py').write_text('import time\n\ndef test_x():\n    time.sleep(99)\n')
    assert not tool.passes(tmp_path, ['test_x.py'], [], 0.1)


@pytest.mark.parametrize('line, faults', [
    ('x = a + 1 if not b else -c', ['a - 1 if not b else -c', 'a + 2 if not b else -c', 'a + 1 if b else -c',
                                    'a + 1 if True else -c', 'a + 1 if False else -c', 'a + 1 if not b else c']),
    ('x = a and b', ['a or b', 'a', 'b']), ("x = f(a, key=int, dtype='float64')", [
        "f(a, dtype='float64')", 'f(a, key=int)', "f(a, key=int, dtype='float32')"]),
    ('x: tuple[1] = sorted(a) if True else f"{a + 1}"', [])])
def test_faults_of_a_line(line, faults, tmp_path):
    (tmp_path / 'x.py').write_text(f'{line}\n')
    found = tool.mutants(tmp_path / 'x.py', 'x.py')
    if faults:
        assert sorted(found) == sorted(f'x.py: {line} -> x = {fault}' for fault in faults)
        assert sorted(found.values()) == sorted(f'x = {fault}\n'.encode() for fault in faults)
    else:  # neither in an annotation nor in a text of messages
        assert not any('tuple[2]' in name or 'a - 1' in name or 'a + 2' in name for name in found)


def test_blocks_and_statements(tmp_path):
    source = 'with lock:\n    f(a)\nif a:\n    raise E(1)\nl = [\n    b for b in a if b]\n'
    (tmp_path / 'x.py').write_text(source)
    assert sorted(tool.mutants(tmp_path / 'x.py', 'x')) == sorted([
        'x: with lock: -> with __import__("contextlib").nullcontext():', 'x: f(a) -> pass', 'x: if a: -> if True:',
        'x: if a: -> if False:', 'x: b for b in a if b] -> b for b in a if True]'])
