"""Tests of the documentation: docstrings, links, the messages and the code that pages show."""
from __future__ import annotations

import ast
import contextlib
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image
from tool import load_tool

import gluon_mgpu
from gluon_mgpu.settings.chapters import CHAPTERS
from gluon_mgpu.training.history import EpochResult, write_history

REPO = Path(__file__).parents[1]
PAGES = sorted([*REPO.glob('*.md'), *REPO.glob('.github/*.md'), *REPO.glob('docs/*.md'), *REPO.glob('*/README.md'),
                REPO / 'benchmarks/notes.md', REPO / 'examples/notebooks/answers.md'])


@pytest.fixture(scope='module')
def hooks():
    """The module tools/site_hooks.py, loaded without MkDocs."""
    return load_tool('site_hooks')


def text_of(node):
    """Return the text of a string or an f-string, with '…' for each value; '' for other nodes."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    texts = [part.value if isinstance(part, ast.Constant) else '…' for part in parts]
    return ''.join(texts) if all(isinstance(text, str) for text in texts) else ''


def test_messages_of_the_troubleshooting_page_exist():
    """Each message that the page quotes is in the source, possibly with values at '…'."""
    page = (REPO / 'docs' / 'troubleshooting.md').read_text()
    ours = page.partition('\n## Installation\n')[2]  # before it: messages of other programs
    cells = re.findall(r'^\| (`.+?) \| ', ours, re.MULTILINE)
    quoted = [message for cell in cells for message in re.findall(r'`([^`]+)`', cell)]
    trees = [ast.parse(path.read_text()) for path in REPO.glob('gluon_mgpu/**/*.py')]
    texts = [text_of(node).replace('\n', ' ') for tree in trees for node in ast.walk(tree)
             if isinstance(node, (ast.Constant, ast.JoinedStr))]
    source = '\n'.join([*texts, *(path.read_text() for path in REPO.glob('tools/*.sh'))])
    gone = [message for message in quoted
            if not re.search('.*'.join(map(re.escape, message.strip('…').split('…'))), source)]
    assert len(quoted) > 30
    assert not gone, 'no longer in the source:\n' + '\n'.join(gone)


def test_a_history_becomes_curves_of_tensorboard(tmp_path, monkeypatch):
    """The code in docs/command-line.md; the real tensorboardX is not installed with the tests."""
    scalars = []
    writer = SimpleNamespace(add_scalar=lambda *scalar: scalars.append(scalar))
    page = (REPO / 'docs' / 'command-line.md').read_text()
    code = textwrap.dedent(re.search(r'(?:^    .*\n|^\n)*^    from tensorboardX .*\n(?:^    .*\n|^\n)*', page, re.M)[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, 'tensorboardX', SimpleNamespace(
        SummaryWriter=lambda folder: contextlib.nullcontext(writer)))
    (tmp_path / 'runs' / 'mine').mkdir(parents=True)
    history = [EpochResult(1, 8.0, 2.25, 0.125, 7500), EpochResult(2, 8, 0.5, 0.75, 7500)]
    write_history(history, tmp_path / 'runs' / 'mine' / 'history.csv')
    exec(code, {})
    assert scalars == [('loss', 2.25, 1), ('test_acc', 0.125, 1), ('loss', 0.5, 2), ('test_acc', 0.75, 2)]


def test_links_lead_to_files():
    dead = [f'{page.relative_to(REPO)}: {link}' for page in PAGES
            for link in re.findall(r'\]\((?!\w+:|#)([^)\s#]+)', page.read_text()) if not (page.parent / link).exists()]
    assert not dead, '\n'.join(dead)


def test_the_first_screen_of_the_readme():
    """It shows one command, what it prints, and the step of scratch.py; ways to install come later."""
    text = (REPO / 'README.md').read_text()
    screen, *_ = text.split('\n## ')
    assert len(screen.splitlines()) <= 46 and len(text.splitlines()) <= 96
    assert re.findall(r'^    ((?:make|python|pip|sudo) \S+)', screen, re.M) == ['make demo']
    assert '\n    test acc: ' in screen and '\n<!-- code: gluon_mgpu/scratch.py train_batch -->\n' in screen


@pytest.mark.parametrize('path', ['README.md', 'docs/chapters.md'])
def test_code_that_a_page_shows_is_that_of_the_file(hooks, path):
    """GitHub shows the page as it is in the repository, so the code is in it as well."""
    page = (REPO / path).read_text()
    assert page == hooks.with_code(page), 'a function that the page shows has changed: python tools/site_hooks.py'


def test_code_is_written_after_its_comment(hooks):
    comment = '<!-- code: gluon_mgpu/scratch.py sgd -->'
    page = hooks.with_code(f'before\n\n{comment}\n\nafter\n')
    assert page.startswith(f'before\n\n{comment}\n````python\ndef sgd(') and page.endswith('\n````\n\nafter\n')
    assert hooks.with_code(page.replace('def sgd', 'def old')) == page
    assert hooks.diff('a = 1\nb = 2', 'a = 1  # one\nc = 3') == '  a = 1  # one\n- b = 2\n+ c = 3'
    assert hooks.diff('x\na = 1\ny', 'for b in x:\n    a = 1\ny') == '- x\n+ for b in x:\n- a = 1\n+     a = 1\n  y'


def test_flags_stay_on_one_line(hooks):
    flag = '<span class="flag">--num-epochs</span>'
    assert hooks.with_flags('<td><code>--num-epochs N</code></td>') == f'<td><code>{flag} N</code></td>'
    for html in ('<pre><span></span><code>x --num-epochs 3</code></pre>', '<code>a--b</code>', '<a href="x --y">z</a>'):
        assert hooks.with_flags(html) == html  # blocks do not wrap


def test_cells_of_wide_tables_name_their_columns(hooks):
    html = '<table><tr>\n<th>flag</th><th style="x"><code>default</code></th><th></th></tr><tr>\n{}</tr></table>'
    found = hooks.with_labels(html.format('<td>--lr</td><td>1</td><td></td>'))
    assert found == html.replace('<table>', '<table data-wide>').format(
        '<td data-label="flag">--lr</td><td data-label="default">1</td><td data-label=""></td>')
    narrow = '<table><tr>\n<th>a</th><th>b</th></tr></table>'
    assert hooks.with_labels(narrow) == narrow


@pytest.mark.slow
def test_the_diagrams_can_be_drawn(tmp_path):
    subprocess.run([sys.executable, str(REPO / 'tools' / 'draw_diagrams.py'), str(tmp_path)], check=True, timeout=120)
    for name in ('data-parallel.png', 'partitions.png'):
        with Image.open(tmp_path / name) as drawn, Image.open(REPO / 'docs' / name) as shown:
            assert drawn.size == shown.size
            assert drawn.mode == shown.mode == 'RGBA', 'transparent, for dark pages'


@pytest.mark.parametrize(('code', 'language'), [
    ('python -m gluon_mgpu.scratch', 'bash'), ('sudo apt-get install -y make', 'bash'),
    ('A=b .venv/bin/pip install x', 'bash'), ('make x\nscratch: an\nerror', ''),
    ('for x in y:\n    pass', 'python'), ('    with x:\n        pass', 'python'), ('epoch 1/3: loss 2.303, 8.1 s', '')])
def test_blocks_are_colored_by_their_language(code, language, hooks):
    assert hooks.language_of(code) == language


def test_the_api_has_every_public_name(hooks):
    title, names = hooks.api_pages()['api/index.md']
    assert sorted(names) == sorted(gluon_mgpu.__all__)
    section = '## gluon_mgpu.save_checkpoint\n\n::: gluon_mgpu.checkpoints.checkpoint.save\n'
    assert section in hooks.api_page(title, names)


def private_names(text):
    """Return the names of the package in a text that are neither public nor chapters, nor commands such as -m NAME."""
    names = re.findall(r'(?<!-m )\bgluon_mgpu\.(\w+)', text)
    for imported in re.findall(r'\bfrom gluon_mgpu import ([\w, ]+)', text):
        names += [name.split()[0] for name in imported.split(',')]
    return sorted({*names} - {*gluon_mgpu.__all__, *CHAPTERS, 'git', 'NAME'})


def test_pages_and_examples_use_public_names_only():
    """Also the exercises and notebooks, because readers copy from them."""
    examples = [path for path in (REPO / 'examples').rglob('*') if path.suffix in ('.md', '.py', '.ipynb')]
    files = [*(REPO / 'docs').glob('*.md'), REPO / 'README.md', *examples]
    assert {'README.md', 'flags.py', 'common.py', 'one_step.ipynb'} < {path.name for path in files}
    private = {path.name: names for path in files if (names := private_names(path.read_text()))}
    assert private == {}
