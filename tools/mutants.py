"""Plant one-line faults in the modules that train, and print those that no test notices: python tools/mutants.py

A module's tests are its own file under tests/, those that import it, those of its folder, and WHOLE; slow ones only
with --all. Faults are planted in a copy of the repository. tools/accepted_mutants.txt lists those that need not be
noticed: a line as this script prints it, and below it the reason, indented. The exit status is not 0 if another
survives, or if a line in the file matches no fault any more.
"""
import argparse
import ast
import contextlib
import copy
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
FOLDERS = ('parallel', 'training', 'checkpoints', 'networks', 'data')
WHOLE = ('tests/test_training_programs.py', 'tests/test_concise.py', 'tests/test_scratch.py')
PAIRS = ((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn),
         (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or))
SWAPS: dict[type, type] = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])} | {ast.FloorDiv: ast.Mult}
NAMES = {'min': 'max', 'max': 'min', 'any': 'all', 'all': 'any', 'set': 'list'}
TEXTS = {'float64': 'float32', 'float32': 'float16'}


def replacements(node: Any) -> Iterator[tuple[Any, str]]:
    """Yield faults of one node: the part to replace and its new text."""
    def changed(**fields) -> tuple[Any, str]:
        new = copy.copy(node)
        for name, value in fields.items():
            setattr(new, name, value)
        return node, ast.unparse(new)

    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
        yield changed(ops=[SWAPS[type(node.ops[0])]()])
    elif isinstance(node, (ast.BinOp, ast.AugAssign, ast.BoolOp)) and type(node.op) in SWAPS:
        yield changed(op=SWAPS[type(node.op)]())
        if isinstance(node, ast.BoolOp) and len(node.values) == 2:
            yield from ((node, ast.unparse(value)) for value in node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node, ast.unparse(node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield node, str(not node.value if isinstance(node.value, bool) else node.value + 1)
    elif isinstance(node, ast.Constant) and node.value in TEXTS:
        yield node, repr(TEXTS[node.value])
    elif isinstance(node, ast.Call):
        name = getattr(node.func, 'id', '')
        if name in NAMES and node.args:
            yield node.func, NAMES[name]
        elif name == 'sorted':
            yield node, f'list({ast.unparse(node.args[0])})'
        yield from (changed(keywords=[other for other in node.keywords if other is not keyword])
                    for keyword in node.keywords if keyword.arg)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, 'pass'
    elif isinstance(node, ast.Return) and node.value and not isinstance(node.value, ast.Constant):
        yield node.value, 'None'
    elif isinstance(node, ast.With):
        yield from ((item.context_expr, '__import__("contextlib").nullcontext()') for item in node.items
                    if not item.optional_vars)
    elif isinstance(node, (ast.If, ast.IfExp)):
        yield from ((node.test, text) for text in ('True', 'False'))
    elif isinstance(node, ast.comprehension):
        yield from ((test, 'True') for test in node.ifs)


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a tree's nodes, but no annotations and no texts of messages."""
    yield tree
    for name, value in ast.iter_fields(tree):
        if name not in ('annotation', 'returns'):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, (ast.JoinedStr, ast.Raise)):
                    yield from nodes(child)


def mutants(path: Path, name: str) -> dict[str, bytes]:
    """Return the faulty contents of a module, each by the line that names it."""
    lines = path.read_bytes().splitlines(keepends=True)
    found = {}
    for node in nodes(ast.parse(b''.join(lines))):
        for part, text in replacements(node):
            first, last = part.lineno - 1, part.end_lineno - 1
            line = lines[first][:part.col_offset] + text.encode() + lines[last][part.end_col_offset:]
            key = f'{name}: {lines[first].decode().strip()} -> {line.decode().strip()}'
            found[key] = b''.join([*lines[:first], line, *lines[last + 1:]])
    return found


def tests_of(root: Path, module: Path) -> tuple[str, ...]:
    """Return a module's test files, the closest first."""
    folder, *_ = parts = module.relative_to(root / 'gluon_mgpu').with_suffix('').parts
    own = root.joinpath('tests', *parts[:-1], f'test_{module.stem}.py')
    imports = re.compile(rf'\b{".".join(parts[:-1])}(\.| import .*\b){module.stem}\b')
    ranks = {file: (file != own, not imports.search(file.read_text()), folder not in file.relative_to(root).parts,
                    file.parent != own.parent)
             for place in FOLDERS for file in root.joinpath('tests', place).rglob('test_*.py')}
    files = sorted((file for file in ranks if not all(ranks[file][:3])), key=lambda file: (ranks[file], file))
    return tuple(str(file.relative_to(root)) for file in (*files, *map(root.joinpath, WHOLE)) if file.exists())


def passes(tree: Path, tests: Iterable[str], options: list[str], limit: float | None = None) -> bool:
    """Return whether the tests pass within `limit` seconds. Their output goes to a file beside the tree."""
    command = [sys.executable, '-m', 'pytest', '-x', '-q', '-p', 'no:cacheprovider', *options, *tests]
    with tree.with_suffix('.txt').open('wb') as output:
        process = subprocess.Popen(command, cwd=tree, env={**os.environ, 'PYTHONPATH': str(tree)}, stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            return process.wait(limit) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:  # end also the processes that a test has started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def survivors(tree: Path, chosen: dict[Path, dict[str, bytes]], options: list[str]) -> Iterator[str]:
    """Plant each fault in a copy of the repository, and yield the names of those that pass the tests."""
    tests = {path: tests_of(tree, tree / path) for path, faults in chosen.items() if faults}
    start = time.monotonic()
    if tests and not passes(tree, dict.fromkeys(chain(*tests.values())), options):
        sys.exit(f'{tree.with_suffix(".txt").read_text()}\nThe tests fail without a fault')
    limit, count = 60 + time.monotonic() - start, 0
    for path, faults in chosen.items():
        original = (tree / path).read_bytes()
        for name, content in faults.items():
            (tree / path).write_bytes(content)
            os.utime(tree / path, (count := count + 1,) * 2)  # Python's cache compares times in seconds
            if survived := passes(tree, tests[path], options, limit):
                yield name
            print('SURVIVED' if survived else 'found   ', name, flush=True)
        (tree / path).write_bytes(original)


def main(argv: list[str] | None = None, root: Path = REPO) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(':')[0])
    parser.add_argument('--modules', nargs='+', default=['.'], metavar='PATH', help='only these modules or folders')
    parser.add_argument('--sample', type=int, default=3, metavar='N', help='faults per module (default: %(default)s)')
    parser.add_argument('--seed', type=int, default=0, help='another number: other faults')
    parser.add_argument('--all', action='store_true', help='run the slow tests as well')
    args = parser.parse_args(argv)
    lines = (root / 'tools/accepted_mutants.txt').read_text().splitlines()
    accepted = {line for line, reason in pairwise(lines) if line[:1].strip('# ') and reason[:1] == ' '}
    faults = {path.relative_to(root): mutants(path, str(path.relative_to(root / 'gluon_mgpu')))
              for folder in FOLDERS for path in sorted((root / 'gluon_mgpu' / folder).rglob('*.py'))}
    if outdated := accepted.difference(*faults.values()):
        sys.exit('\n'.join(['tools/accepted_mutants.txt: no fault matches these lines, delete them:', *outdated]))
    chosen = {}
    for path, found in faults.items():
        # In random order, which a change of the module hardly changes
        names = sorted(found.keys() - accepted, key=lambda name:
                       hashlib.sha256(f'{args.seed} {name}'.encode()).digest())
        if any((root / path).is_relative_to((root / place).resolve()) for place in args.modules):
            chosen[path] = {name: found[name] for name in names[:args.sample]}
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / 'tree'
        shutil.copytree(root, tree, ignore=shutil.ignore_patterns('.*', '__pycache__', 'runs', 'site'))
        left = [*survivors(tree, chosen, ['--all'] * args.all)]
    print(f'{sum(map(len, chosen.values()))} faults planted, {len(left)} survived; {len(accepted)} others are accepted')
    sys.exit(1 if left else 0)


if __name__ == '__main__':
    main()
