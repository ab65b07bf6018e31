"""The chapters as notebooks: they run, show what they say, match their scripts, name no path or host."""
import re
import sys
from pathlib import Path

import pytest
from idx_files import write

from gluon_mgpu.data import glyphs

nbformat = pytest.importorskip('nbformat', reason='nbformat is not installed')
pytest.importorskip('nbclient', reason='nbclient is not installed')
pytest.importorskip('ipykernel', reason='ipykernel is not installed')

FOLDER = Path(__file__).parents[1] / 'examples' / 'notebooks'
sys.path.insert(0, str(FOLDER))

from build import NAMES, execute, leaks, notebook  # noqa: E402

ROWS = 64


@pytest.fixture(scope='module')
def few_glyphs(tmp_path_factory):
    """The folder of a dataset that is found as Fashion-MNIST and holds a few glyphs: the test set is small too."""
    folder = tmp_path_factory.mktemp('data')
    (images, labels), (test_images, test_labels) = glyphs.load(folder)
    write(folder / 'fashion-mnist', {
        'train-images-idx3-ubyte.gz': images[:ROWS], 'train-labels-idx1-ubyte.gz': labels[:ROWS],
        't10k-images-idx3-ubyte.gz': test_images[:ROWS], 't10k-labels-idx1-ubyte.gz': test_labels[:ROWS]})
    return folder


@pytest.fixture
def executed(few_glyphs, monkeypatch):
    """A function of a notebook's name that executes it on the few glyphs and returns it."""
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
    """What a code cell has printed, and its last value."""
    return ''.join(output.get('text') or output.get('data', {}).get('text/plain', '') for output in cell.outputs
                   if output.output_type in ('stream', 'execute_result'))


def after(nb, beginning: str) -> str:
    """The text of the only code cell that begins so."""
    cell, = (c for c in nb.cells if c.cell_type == 'code' and c.source.startswith(beginning))
    return text(cell)


def pictures(cell) -> list:
    return [output.data['image/png'] for output in cell.outputs if 'image/png' in output.get('data', {})]


def check_training(nb, num_lists=(1, 2)):
    """Two cells train: each shows one curve and one line, of as many devices as it was told."""
    cells = [c for c in nb.cells if c.source.startswith('train(')]
    assert len(cells) == 2
    for cell, num_devices in zip(cells, num_lists):
        last = text(cell).splitlines()[-1]
        match = re.fullmatch(r'test acc: [01]\.\d\d, \d+\.\d sec/epoch on \[(.*)\]', last)
        assert match, last
        assert len(set(match[1].split(', '))) == num_devices
        assert len(pictures(cell)) == 1, 'the last curve, and only that, stays in the notebook'


def check_from_scratch(nb):
    # MXNet 1.9 prints 1., MXNet 2 prints 1
    vectors = re.findall(r'\[\[(\d)\.? (\d)\.?\]\]', after(nb, 'data = '))
    assert vectors == [('1', '1'), ('2', '2'), ('3', '3'), ('3', '3')]
    assert all(2.25 < float(number) < 2.35 for number in re.findall(r'\d\.\d+', after(nb, 'loss(')))
    b1, grad = after(nb, 'b1 = ').splitlines()
    assert b1.count('0.') == grad.count('0.') == 20
    batch, *shards = re.split('the shard on .*:', after(nb, 'batch = '))
    assert len(shards) == 2
    assert re.findall(r'\d+\.', batch) == re.findall(r'\d+\.', ''.join(shards)) == [f'{i}.' for i in range(24)]
    check_training(nb)


def check_concise(nb):
    assert after(nb, 'X = ').count('(2, 10)') == 2
    assert 'only initialized on [' in after(nb, 'weight = ')
    _, first, second = re.split('on .*:', after(nb, 'for device in devices'))
    assert first.strip() == second.strip() and '.' in first
    check_training(nb)


CHECKS = {'multiple_gpus': check_from_scratch, 'multiple_gpus_concise': check_concise}


def test_every_notebook_is_checked():
    assert set(CHECKS) == set(NAMES) == {path.stem for path in FOLDER.glob('*.ipynb')}


@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES)
def test_it_runs(name, executed):
    CHECKS[name](executed(name))


@pytest.mark.parametrize('name', NAMES)
def test_the_committed_notebook(name):
    nb = committed(name)
    nbformat.validate(nb)
    CHECKS[name](nb)
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


def test_leaks_are_found():
    def printed(line):
        cell = nbformat.v4.new_code_cell('', outputs=[nbformat.v4.new_output('stream', text=line)])
        return leaks(nbformat.v4.new_notebook(cells=[cell]))

    assert printed('in /home/someone/data.py') and printed("'/tmp'") and printed('/srv/x/y')
    assert not printed('1.5 sec/epoch, see https://d2l.ai/chapter/index.html')


def test_the_percent_format():
    nb = notebook('# %% [markdown]\n# # Title\n#\n# text\n\n# %%\na = 1  # %% not a cell\n\n\nb = 2\n')
    assert [(c.cell_type, c.source) for c in nb.cells] == [
        ('markdown', '# Title\n\ntext'), ('code', 'a = 1  # %% not a cell\n\n\nb = 2')]
    with pytest.raises(ValueError, match="'import os' comes before the first cell"):
        notebook('import os\n# %%\n')
