"""The documentation, held in step with the code: messages, docstrings, links and the code that pages show."""
import ast
import importlib.util
import re

import messages
import pytest
from messages import REPO

PAGES = sorted([*REPO.glob('*.md'), *REPO.glob('docs/*.md'), *REPO.glob('*/README.md')])
TROUBLESHOOTING = REPO / 'docs' / 'troubleshooting.md'


@pytest.fixture(scope='module')
def hooks():
    """tools/site_hooks.py, which needs MkDocs for its files only."""
    spec = importlib.util.spec_from_file_location('site_hooks', REPO / 'tools' / 'site_hooks.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_message_has_an_entry_and_every_entry_a_message():
    found = messages.messages()
    entries = re.findall(r'^- `(.+?)`', TROUBLESHOOTING.read_text(), re.MULTILINE)
    assert len(found) > 150
    assert sum(where.startswith('gluon_mgpu/doctor/findings.py') for where in found.values()) > 30
    missing = [f'{where}: {text}' for text, where in found.items() if text not in entries]
    hint = 'to be explained in docs/troubleshooting.md; in OUTPUT of tests/messages.py if it is no fault:'
    assert not missing, '\n'.join([hint, *missing])
    gone = [entry for entry in entries if entry not in found]
    assert not gone, 'explained in docs/troubleshooting.md, and no longer told:\n' + '\n'.join(gone)
    assert len(entries) == len(set(entries)), 'an entry twice'


def test_what_counts_as_output_is_still_there(monkeypatch):
    expected = messages.OUTPUT
    monkeypatch.setattr(messages, 'OUTPUT', set())
    assert expected - set(messages.messages()) == set()


@pytest.mark.parametrize('code, expected', [
    ("raise ValueError(f'{x!r}: two {y}')", ['…: two …']),
    ("raise problem(f'{x} is bad: mend it')", ['… is bad: mend it']),
    ("warnings.warn('late')", ['late']),
    ("return 'there is no way'", ['there is no way']),
    ("raise _DriverError('a' if x else 'b')", ['a', 'b']),
    ("yield Finding('fault', f'{x} is full', 'make room')", ['fault', '… is full', 'make room']),
    ("parser.add_argument('--x', help='four words of help')", []),
    ("def f():\n    'four words of docstring'", []),
    ("names = {'help': 'four words of help', 'x': 'four words to tell'}", ['four words to tell']),
])
def test_messages_are_found(code, expected):
    found = [messages.wording(node) for node, told in messages.texts(ast.parse(code), False)
             if told or len(messages.wording(node).split()) >= messages.WORDS]
    assert found == expected


def public_functions():
    """(where, node of the owner, node) for each public function and method."""
    for path in sorted(REPO.glob('gluon_mgpu/**/*.py')):
        tree = ast.parse(path.read_text())
        for owner in [tree, *(n for n in tree.body if isinstance(n, ast.ClassDef) and not n.name.startswith('_'))]:
            for node in owner.body:
                if isinstance(node, ast.FunctionDef) and (not node.name.startswith('_') or node.name == '__init__'):
                    yield f'{path.relative_to(REPO)}:{node.lineno} {node.name}', owner, node


def test_public_functions_say_what_each_parameter_is():
    silent = []
    for where, owner, node in public_functions():
        doc = ast.get_docstring(owner if node.name == '__init__' else node) or ''
        if node.name in ('forward', 'hybrid_forward', 'main'):  # Gluon's own, and the command line's
            continue
        if 'See `' in doc or 'as in `star`' in doc:
            continue
        if isinstance(owner, ast.ClassDef) and any(b in ('Hook', 'Parser') for b in map(ast.unparse, owner.bases)):
            continue  # what a hook takes, Hook says
        names = {a.arg for a in (*node.args.args, *node.args.kwonlyargs)} - {'self', 'cls'}
        silent += [f'{where}: {name}' for name in sorted(names) if not re.search(rf'\b{re.escape(name)}\b', doc)]
        if not doc:
            silent.append(f'{where}: no docstring')
    assert not silent, '\n'.join(silent)


def test_public_functions_that_raise_say_what():
    silent = [where for where, owner, node in public_functions()
              if any(isinstance(n, ast.Raise) and isinstance(n.exc, ast.Call) for n in ast.walk(node))
              and not re.search('Raises|ValueError|Stopped|refused|Refuse|[Ee]nd',
                                (ast.get_docstring(owner) or '') + (ast.get_docstring(node) or ''))]
    assert not silent, '\n'.join(silent)


def test_links_lead_to_files():
    dead = [f'{page.relative_to(REPO)}: {link}' for page in PAGES
            for link in re.findall(r'\]\((?!\w+:|#)([^)\s#]+)', page.read_text()) if not (page.parent / link).exists()]
    assert not dead, '\n'.join(dead)


def test_the_readme_is_two_screens():
    text = (REPO / 'README.md').read_text()
    assert len(text.splitlines()) <= 80
    assert text.count('![') <= 2


def test_code_of_the_chapters_page_is_there(hooks):
    page = (REPO / 'docs' / 'chapters.md').read_text()
    blocks = hooks.CODE.findall(page)
    assert len(blocks) == page.count('<!--') == 6
    for kind, what in blocks:
        shown = hooks.code_block(kind, what)
        assert '"""' not in shown and shown.count('````python') == (1 if kind == 'code' else 2)


def test_lines_that_differ(hooks):
    code = 'def f(x):\n    a = 1  # one\n    return a\n'
    other = 'def f(x):\n    for i in x:\n        a = 1\n    return a\n'
    assert hooks.changed_lines(code, other) == []
    assert hooks.changed_lines(other, code) == [2]


def test_a_function_that_is_not_there(hooks):
    with pytest.raises(ValueError, match='gluon_mgpu/scratch.py has no function trian: mend the comment'):
        hooks.code_of('gluon_mgpu/scratch.py', 'trian')
