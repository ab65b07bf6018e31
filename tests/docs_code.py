"""The training loops and programs that pages of docs/ show."""
from __future__ import annotations

import re
import textwrap
from itertools import takewhile
from pathlib import Path

import numpy

from gluon_mgpu.data.batches import BatchIterator

OWN_PROJECT = (Path(__file__).parents[1] / 'docs' / 'own-project.md').read_text()
SEMANTICS = ['mx.nd', 'NumPy']


def loop_on_few_rows(page, first_line, num_rows, monkeypatch):
    """Return the block of code on a page from `first_line` on. It will train on noise."""
    def rows(batch_size):
        rng = numpy.random.default_rng(0)
        images, labels = rng.integers(0, 255, (num_rows, 28, 28), 'uint8'), rng.integers(0, 9, num_rows)
        size = min(batch_size, num_rows)
        return [BatchIterator(images, labels, size, 'random', shuffle) for shuffle in (True, False)]

    monkeypatch.setattr('gluon_mgpu.data.load_data_fashion_mnist', rows)
    text = (Path(__file__).parents[1] / 'docs' / page).read_text()
    lines = text.splitlines()
    block = takewhile(lambda line: not line or line.startswith('    '), lines[lines.index(f'    {first_line}'):])
    return '\n'.join(line[4:] for line in block if line)


def blocks(page: str = OWN_PROJECT) -> dict[str, str]:
    """Return the code of a page by the comments before it; blocks with the same comment are joined."""
    found: dict[str, str] = {}
    for name, block in re.findall(r'^<!-- (.*) -->\n\n((?:    .*\n|\n)+)', page, re.MULTILINE):
        found[name] = found.get(name, '') + textwrap.dedent(block)
    return found


def table(head: str) -> list[list[str]]:
    """Return the code in the two columns of the table with this head."""
    rows = OWN_PROJECT.partition(f'\n{head}\n|---|---|\n')[2].partition('\n\n')[0].splitlines()
    return [[re.findall('`(.+?)`', cell) for cell in row.strip('|').split(' | ')] for row in rows]


def program(semantics: str, *names: str) -> str:
    """Return the program of the page, with blocks that belong to it, as the page changes it for these semantics."""
    code = '\n'.join(blocks()[name] for name in ('program', *names))
    if semantics == 'NumPy':
        for (of_nd,), (of_np,) in table('| `mx.nd` | NumPy semantics |'):
            assert of_nd in code
            code = code.replace(of_nd, of_np)
    return code.replace('batch_size = 256', 'batch_size = 12')
