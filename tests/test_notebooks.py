"""The chapters as notebooks: they run, show the right results, match their scripts, and contain no paths."""
import re
import sys
from pathlib import Path
from types import SimpleNamespace

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
    """A folder with a few glyphs under the name of Fashion-MNIST; the test set is small as well."""
    folder = tmp_path_factory.mktemp('data')
    (images, labels), (test_images, test_labels) = glyphs.load(folder)
    write(folder / 'fashion-mnist', {
        'train-images-idx3-ubyte.gz': images[:ROWS], 'train-labels-idx1-ubyte.gz': labels[:ROWS],
        't10k-images-idx3-ubyte.gz': test_images[:ROWS], 't10k-labels-idx1-ubyte.gz': test_labels[:ROWS]})
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


def output_of(nb, beginning: str) -> str:
    """Return the text of the only code cell with this beginning."""
    cell, = (c for c in nb.cells if c.cell_type == 'code' and c.source.startswith(beginning))
    return text(cell)


def pictures(cell) -> list:
    return [output.data['image/png'] for output in cell.outputs if 'image/png' in output.get('data', {})]


def check_training(nb):
    """Check the two cells that train: each shows one curve, and one line with the right number of devices."""
    cells = [c for c in nb.cells if ' = train(num_gpus=' in c.source]
    assert len(cells) == 2
    for cell, num_devices in zip(cells, (1, 2)):
        last = text(cell).splitlines()[-1]
        match = re.fullmatch(r'test acc: [01]\.\d\d, \d+\.\d sec/epoch on \[(.*)\]', last)
        assert match, last
        assert len(set(match[1].split(', '))) == num_devices
        assert len(pictures(cell)) == 1, 'only the last curve stays in the notebook'
    on_one, on_two, speed = output_of(nb, "print('test accuracy").splitlines()
    assert len(re.findall(r' [01]\.\d{3}', on_one)) == len(re.findall(r' [01]\.\d{3}', on_two)) >= 3
    assert re.fullmatch(r'two devices are \d+\.\d\d times as fast as one', speed)


def check_one_step(nb):
    assert [re.findall(r'\d', line.split('labels ')[1]) for line in output_of(nb, 'X_shards').splitlines()] == [
        list('0123'), list('4567')]
    on_first, on_second = ([float(number) for number in re.findall(r'-?\d\.\d*', line)]
                           for line in output_of(nb, 'def show').splitlines())
    assert [i for i, value in enumerate(on_first) if value < 0] == [0, 1, 2, 3]
    assert [i for i, value in enumerate(on_second) if value < 0] == [4, 5, 6, 7]
    sums = output_of(nb, 'for i in range(len(alone))').splitlines()
    *replicas, alone = [re.findall(r'-?\d\.\d*', line) for line in sums]
    assert replicas == [alone, alone]
    between, from_one = re.findall(r'\d\S+', output_of(nb, 'def largest_difference'))
    assert float(between) == 0 <= float(from_one) < 1e-6
    numbers = {call: re.fullmatch(r'difference (\S+), loss (\S+)\n', output_of(nb, call)).groups()
               for call in ('def train', 'train(lambda')}
    assert float(numbers['def train'][0]) == 0 < float(numbers['train(lambda'][0])
    assert 10 * float(numbers['def train'][1]) < float(numbers['train(lambda'][1])


def check_from_scratch(nb):
    # MXNet 1.9 prints 1., MXNet 2 prints 1
    vectors = re.findall(r'\[\[(\d)\.? (\d)\.?\]\]', output_of(nb, 'data = '))
    assert vectors == [('1', '1'), ('2', '2'), ('3', '3'), ('3', '3')]
    numbers = re.findall(r'\d\.\d+', output_of(nb, 'loss('))
    assert len(numbers) == 4 and all(2.25 < float(number) < 2.35 for number in numbers)
    b1, grad = output_of(nb, 'b1 = ').splitlines()
    assert b1.count('0.') == grad.count('0.') == 20
    batch, *shards = re.split('the shard on .*:', output_of(nb, 'batch = '))
    assert len(shards) == 2
    assert re.findall(r'\d+\.', batch) == re.findall(r'\d+\.', ''.join(shards)) == [f'{i}.' for i in range(24)]
    check_training(nb)


def check_concise(nb):
    assert output_of(nb, 'X = ').count('(2, 10)') == 2
    assert 'only initialized on [' in output_of(nb, 'weight = ')
    _, first, second = re.split('on .*:', output_of(nb, 'for device in devices'))
    assert first.strip() == second.strip() and '.' in first
    check_training(nb)


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


CHECKS = {'one_step': check_one_step, 'multiple_gpus': check_from_scratch, 'multiple_gpus_concise': check_concise}


def test_every_notebook_is_checked():
    assert set(CHECKS) == set(NAMES) == {path.stem for path in FOLDER.glob('*.ipynb')}


@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES)
def test_the_notebook_runs(name, executed):
    CHECKS[name](executed(name))


@pytest.mark.parametrize('name', NAMES)
def test_the_committed_notebook(name, monkeypatch):
    monkeypatch.setattr('build.socket', SimpleNamespace(gethostname=lambda: 'host-of-the-test'))
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
