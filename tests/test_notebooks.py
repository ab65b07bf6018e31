"""The chapters as notebooks: they run, show the right results, match their scripts, and contain no paths."""
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from idx_files import write

from gluon_mgpu.data import glyphs
from gluon_mgpu.data.folders import FILES
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR

nbformat = pytest.importorskip('nbformat', reason='nbformat is not installed')
pytest.importorskip('nbclient', reason='nbclient is not installed')
pytest.importorskip('ipykernel', reason='ipykernel is not installed')

FOLDER = Path(__file__).parents[1] / 'examples' / 'notebooks'
sys.path.insert(0, str(FOLDER))

from build import NAMES, execute, leaks, notebook  # noqa: E402

ROWS = 64


@pytest.fixture(scope='module')
def few_glyphs(tmp_path_factory):
    """A folder with a few glyphs under the name of Fashion-MNIST; the test set is small as well."""
    folder = tmp_path_factory.mktemp('data')
    arrays = [array[:ROWS] for part in glyphs.load(folder) for array in part]
    write(folder / 'fashion-mnist', dict(zip(FILES, arrays)))
    return folder


@pytest.fixture
def executed(few_glyphs, monkeypatch):
    """A function that executes the notebook of this name on the few glyphs and returns it."""
    monkeypatch.setenv('GLUON_MGPU_DATA', str(few_glyphs))
    monkeypatch.setenv('GLUON_MGPU_ROWS', str(ROWS))
    monkeypatch.delenv('MPLBACKEND', raising=False)  # as in a reader's notebook

    def run(name):
        nb = notebook((FOLDER / f'{name}.py').read_text(encoding='utf-8'))
        execute(nb, timeout=100)
        return nb

    return run


def committed(name):
    return nbformat.read(FOLDER / f'{name}.ipynb', as_version=4)


def text(cell) -> str:
    """Return the text that a code cell prints, with its last value. (MXNet 2 also logs on stderr, at any time.)"""
    return ''.join(output.get('text') or output.get('data', {}).get('text/plain', '') for output in cell.outputs
                   if output.get('name') == 'stdout' or output.output_type == 'execute_result')


def results(nb) -> list:
    """Return the text and the number of pictures of each code cell, with # for each fraction."""
    found = []
    for cell in nb.cells:
        if cell.cell_type == 'code':
            shown = re.sub(r'-?\d+\.\d+(e-\d+)?', '#', text(cell))
            shown = re.sub(r'(\d)\.', r'\1', shown)  # MXNet 1.9 prints 1., MXNet 2 prints 1
            found.append((re.sub(r'\s+', ' ', shown), str(cell.outputs).count('image/png')))
    return found


def test_things_to_try(capsys, monkeypatch):
    """As answers.md says."""
    monkeypatch.setattr('gluon_mgpu.devices.lists.usable_gpus', list)
    code = (FOLDER / 'one_step.py').read_text()

    def run(*change):
        assert code.count(change[0]) == 1
        exec(code.replace(*change), {'__name__': '__main__'})
        lines = capsys.readouterr().out.splitlines()
        assert 'between the replicas: 0.0' in lines
        return lines

    def from_one_device(lines):
        return float(next(line for line in lines if line.startswith('from one device:')).split()[-1])

    *as_it_is, without_allreduce = run('range(2)', 'range(2)')
    assert [line for line in run('range(2)', 'range(3)') if 'labels' in line] == [
        'cpu(0) (3, 1, 28, 28) labels [0 1 2]', 'cpu(1) (3, 1, 28, 28) labels [3 4 5]',
        'cpu(2) (2, 1, 28, 28) labels [6 7]']
    rebind = 'def rebind(data):\n    data = [sum(data)] * len(data)\n\ntrain(rebind)'
    assert run('train(lambda data: None)', rebind)[-1] == without_allreduce
    twice = run('lr=0.1, batch_size=8', 'lr=0.1, batch_size=4')
    assert from_one_device(as_it_is) < 1e-6 and from_one_device(twice) > 1e-3


def test_all_notebooks_are_tested():
    assert set(NAMES) == {path.stem for path in FOLDER.glob('*.ipynb')}


@pytest.mark.slow
@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 gives parameters other names')
@pytest.mark.parametrize('name', NAMES)
def test_the_notebook_shows_what_is_committed(name, executed):
    """Up to fractions."""
    assert results(executed(name)) == results(committed(name))


@pytest.mark.parametrize('name', NAMES)
def test_the_committed_notebook(name, monkeypatch):
    monkeypatch.setattr('build.socket', SimpleNamespace(gethostname=lambda: 'host-of-the-test'))
    nb = committed(name)
    nbformat.validate(nb)
    built = notebook((FOLDER / f'{name}.py').read_text(encoding='utf-8'))
    assert [(c.cell_type, c.source) for c in nb.cells] == [(c.cell_type, c.source) for c in built.cells], (
        'the script has changed: python examples/notebooks/build.py')
    for cell in nb.cells:
        if cell.cell_type == 'code':
            assert cell.execution_count
            assert not [o for o in cell.outputs if o.output_type == 'error' or o.get('name') == 'stderr']
    assert leaks(nb) == []
    # It has learned: well above one class of ten
    assert all(float(acc) > 0.4 for acc in re.findall('test acc: ([0-9.]+)', ''.join(
        text(c) for c in nb.cells if c.cell_type == 'code')))


def test_leaks_are_found(monkeypatch):
    monkeypatch.setattr('build.socket', SimpleNamespace(gethostname=lambda: 'host-of-the-test'))

    def printed(line):
        cell = nbformat.v4.new_code_cell('', outputs=[nbformat.v4.new_output('stream', text=line)])
        return leaks(nbformat.v4.new_notebook(cells=[cell]))

    assert printed('in /home/someone/data.py') and printed("'/tmp'") and printed('/srv/x/y')
    assert printed('on host-of-the-test')
    assert not printed('1.5 sec/epoch, see https://d2l.ai/chapter/index.html')


def test_the_percent_format():
    nb = notebook('# %% [markdown]\n# # Title\n#\n# text\n\n# %%\na = 1  # %% not a cell\n\n\nb = 2\n')
    assert [(c.cell_type, c.source) for c in nb.cells] == [
        ('markdown', '# Title\n\ntext'), ('code', 'a = 1  # %% not a cell\n\n\nb = 2')]
    with pytest.raises(ValueError, match="'import os' comes before the first cell"):
        notebook('import os\n# %%\n')
