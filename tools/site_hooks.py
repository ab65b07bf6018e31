"""MkDocs hooks for `mkdocs.yml`: pages outside docs/, source code and the API.

- Pages outside docs/, such as the README files, become pages of the site. Links between them and docs/ are rewritten,
  so that the same link works on GitHub and on the site. Each source file that a page links to becomes a page as well.
- ``python tools/site_hooks.py`` writes the code that comments in pages name: after ``<!-- code: PATH FUNCTION -->`` a
  function without its docstring, after ``<!-- diff: PATH FUNCTION | PATH FUNCTION -->`` a diff of two.
- Flags do not break at their hyphens. On a phone, each row of a table of three or more columns is a list, so each cell
  carries the name of its column.
- The API has a page of the public names and one of the chapters, generated from the docstrings.
"""
import ast
import posixpath
import re
import textwrap
from html import unescape
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
# Pages outside docs/ -> their names on the site
READMES = {'README.md': 'index.md', '.github/CONTRIBUTING.md': 'contributing.md', '.github/SECURITY.md': 'security.md',
           'examples/README.md': 'examples/index.md', 'benchmarks/README.md': 'benchmarks/index.md',
           'benchmarks/notes.md': 'benchmarks/notes.md', 'examples/notebooks/answers.md': 'examples/answers.md'}
WITH_CODE = 'README.md', 'docs/chapters.md'  # pages with functions
LANGUAGES = {'.py': 'python', '.sh': 'bash', '.toml': 'toml', '.csv': 'text', '': 'text'}
LINK = re.compile(r'(?<=\]\()(?!\w+:|#)([^)\s#]+)')  # the path of [text](path#anchor)
# the comment, and the block that `with_code` writes after it
CODE = re.compile(r'^<!-- (code|diff): (.+) -->$(?:\n````\w+\n(?s:.*?)\n````$)?', re.MULTILINE)

UNCOLORED = re.compile(r'(<div class="highlight"><pre><span></span><code>)(.*?)(</code></pre></div>)', re.DOTALL)
PROGRAMS = 'python3?|pip|make|apt-get|dnf|docker|jupyter|horovodrun|mpirun|srun|patchelf'
COMMAND = re.compile(rf'^(?:sudo |until |\w+=\S+ )*(?:\S*/)?(?:{PROGRAMS}) ', re.MULTILINE)


def on_config(config):
    """Add the API to the navigation."""
    config.nav.append({'API': [{title: uri} for uri, (title, _) in api_pages().items()]})
    return config


def on_files(files, config):
    """Add the pages that are not in docs/."""
    from mkdocs.structure.files import File, InclusionLevel
    for path, uri in READMES.items():
        files.append(File.generated(config, uri, abs_src_path=str(REPO / path)))
    for uri, (title, names) in api_pages().items():
        files.append(File.generated(config, uri, content=api_page(title, names)))
    pages = [*REPO.glob('docs/*.md'), *(REPO / path for path in READMES)]
    for path in sorted({linked for page in pages for linked in linked_sources(page)}):
        if path.suffix in LANGUAGES:
            files.append(File.generated(config, uri_of(path), content=source_page(path),
                                        inclusion=InclusionLevel.NOT_IN_NAV))
        else:
            files.append(File.generated(config, uri_of(path), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Rewrite the links, and the pipes of tables."""
    here = path_of(page.file.src_uri)
    if here is None:
        return markdown

    def rewritten(match):
        path = (here.parent / match[1]).resolve()
        if not path.is_relative_to(REPO) or not path.exists():
            return match[0]  # MkDocs reports the broken link
        return posixpath.relpath(uri_of(path), posixpath.dirname(page.file.src_uri) or '.')
    return LINK.sub(rewritten, markdown).replace(r'\|', '|')  # GitHub needs the backslash in tables


def on_page_content(html, page, config, files):
    """Color the code blocks without a language, which are indented in the Markdown; prepare flags and tables."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name

    def colored(match):
        code = unescape(match[2])
        language = language_of(code)
        if not language:
            return match[0]
        return match[1] + highlight(code, get_lexer_by_name(language), HtmlFormatter(nowrap=True)) + match[3]
    return with_flags(with_labels(UNCOLORED.sub(colored, html)))


def with_flags(html: str) -> str:
    """Return a page whose flags, except in blocks of code, the browser keeps on one line."""
    return re.sub(r'<pre\b.*?</pre>|<[^>]*>|(?<![\w-])--[a-z][\w-]*', lambda part: (
        part[0] if part[0].startswith('<') else f'<span class="flag">{part[0]}</span>'), html, flags=re.DOTALL)


def with_labels(html: str) -> str:
    """Return a page in which the cells of wide tables have the names of their columns."""
    def labelled(table):
        names = [re.sub('<.*?>', '', name) for name in re.findall(r'<th\b[^>]*>(.*?)</th>', table[0])]
        if len(names) < 3:
            return table[0]
        rows = re.split('(?=<tr>)', table[0].replace('<table>', '<table data-wide>'))
        return ''.join(with_names(row, names) for row in rows)

    def with_names(row, names):
        cells = row.split('<td')
        return cells[0] + ''.join(f'<td data-label="{name}"{cell}' for name, cell in zip(names, cells[1:]))

    return re.sub('<table>.*?</table>', labelled, html, flags=re.DOTALL)


def language_of(code: str) -> str:
    """Return 'python', 'bash' or, for anything else, such as mostly output, ''."""
    code = textwrap.dedent(code)
    lines = [line for line in code.splitlines() if line[:1].strip('# ')]
    if 2 * len(COMMAND.findall(code)) >= len(lines):
        return 'bash'
    try:
        ast.parse(code)
    except SyntaxError:
        return ''
    return 'python'


def path_of(uri: str) -> Path | None:
    """Return the file in the repository that a page is made from; None for a generated page."""
    path = {uri: REPO / path for path, uri in READMES.items()}.get(uri, REPO / 'docs' / uri)
    return path if path.exists() else None


def uri_of(path: Path) -> str:
    """Return the name of a repository file on the site."""
    name = path.relative_to(REPO).as_posix()
    if name in READMES:
        return READMES[name]
    if name.startswith('docs/'):
        return name[len('docs/'):]
    return f'source/{name}.md' if path.suffix in LANGUAGES else f'source/{name}'


def linked_sources(page: Path) -> set[Path]:
    """Return the files outside docs/ that a page links to, except READMEs."""
    paths = {(page.parent / link).resolve() for link in LINK.findall(page.read_text())}
    return {path for path in paths if path.exists() and path.is_relative_to(REPO)
            and not path.is_relative_to(REPO / 'docs') and path.relative_to(REPO).as_posix() not in READMES}


def source_page(path: Path) -> str:
    """Return a Markdown page, left out of the search, that shows a file, or the Python or CSV files of a folder."""
    shown = (sorted(path.glob('*.py')) or sorted(path.rglob('*.csv'))) if path.is_dir() else [path]
    blocks = [f'`{file.relative_to(REPO)}`\n\n{fenced(file.read_text(), LANGUAGES[file.suffix])}' for file in shown]
    return f'---\nsearch: {{exclude: true}}\n---\n\n# {path.name}\n\n' + '\n'.join(blocks)


def code_of(path: str, name: str) -> str:
    """Return the source of a function without its docstring; raise ValueError if it does not exist."""
    source = (REPO / path).read_text()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            lines = source.splitlines()
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            body = node.body[1:] if ast.get_docstring(node) else node.body
            return '\n'.join(lines[first - 1:node.body[0].lineno - 1] + lines[body[0].lineno - 1:node.end_lineno])
    raise ValueError(f'{path} has no function {name}: correct the comment that names it')


def with_code(markdown: str) -> str:
    """Return a page with the code, or the diff, after each comment that names it; an older one is replaced."""
    def after_comment(match):
        kind, what = match.groups()
        codes = [code_of(*place.split()) for place in what.split('|')]
        shown = fenced(codes[0], 'python') if kind == 'code' else fenced(diff(*codes), 'diff')
        return f'<!-- {kind}: {what} -->\n{shown.rstrip()}'
    return CODE.sub(after_comment, markdown)


def diff(code: str, other: str) -> str:
    """Return all lines of two pieces of code; '-' marks those of the first only, '+' those of the second only."""
    lines, others = code.splitlines(), other.splitlines()
    shown, i, j = [], 0, 0
    for next_i, next_j in [*common_lines(code, other), (len(lines), len(others))]:
        shown += [f'- {line}' for line in lines[i:next_i]] + [f'+ {line}' for line in others[j:next_j]]
        i, j = next_i + 1, next_j + 1
        for line, other in zip(lines[next_i:i], others[next_j:j]):
            if line.startswith(other.split('#')[0].rstrip()):  # or another comment
                shown.append(f'  {other}')
            else:  # another indentation
                shown += [f'- {line}', f'+ {other}']
    return '\n'.join(map(str.rstrip, shown))


def common_lines(code: str, other: str) -> list[tuple[int, int]]:
    """Return the longest sequence of lines that both have, as pairs of indices; ignore comments and indentation.

    The result of difflib would depend on the version of Python.
    """
    a, b = ([re.sub(r' *(#.*)?$', '', line).strip() for line in text.splitlines()] for text in (code, other))
    longest = {(i, j): 0 for i in range(len(a) + 1) for j in range(len(b) + 1)}  # in a[i:] and b[j:]
    for i in reversed(range(len(a))):
        for j in reversed(range(len(b))):
            longest[i, j] = longest[i + 1, j + 1] + 1 if a[i] == b[j] else max(longest[i + 1, j], longest[i, j + 1])
    pairs, i, j = [], 0, 0
    while longest[i, j]:
        if a[i] == b[j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif longest[i + 1, j] == longest[i, j]:
            i += 1
        else:
            j += 1
    return pairs


def fenced(code: str, language: str) -> str:
    """Return a Markdown code block."""
    return f'````{language}\n{code.rstrip()}\n````\n'


def api_pages() -> dict[str, tuple[str, dict[str, str]]]:
    """Return the API pages: uri -> (title, the public names and where they are)."""
    from gluon_mgpu import PLACES
    from gluon_mgpu.settings.chapters import CHAPTERS
    names = {name: '.'.join(place) for name, place in sorted(PLACES.items())}
    return {'api/index.md': ('gluon_mgpu', names),
            'api/chapters.md': ('the chapters', {name: name for name in CHAPTERS})}


def api_page(title: str, names: dict[str, str]) -> str:
    """Return the Markdown of an API page."""
    sections = [f'## gluon_mgpu.{name}\n\n::: gluon_mgpu.{place}\n' for name, place in names.items()]
    return f'# API: {title}\n\n' + '\n'.join(sections)


if __name__ == '__main__':
    for path in WITH_CODE:
        (REPO / path).write_text(with_code((REPO / path).read_text()))
