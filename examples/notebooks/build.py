"""Builder of the notebooks: executes each script as a notebook and keeps the outputs.

    python examples/notebooks/build.py                     # all
    python examples/notebooks/build.py multiple_gpus       # one of them

The scripts are in the percent format: a line ``# %%`` begins a code cell, ``# %% [markdown]`` a text cell, whose lines
are comments. Edit the scripts, never the notebooks. Requires nbformat, nbclient and ipykernel.
"""
from __future__ import annotations

import json
import os
import re
import socket
import sys
from pathlib import Path

import nbformat

FOLDER = Path(__file__).resolve().parent
NAMES = ('one_step', 'multiple_gpus', 'multiple_gpus_concise')


def notebook(script: str) -> nbformat.NotebookNode:
    """Return the notebook of a script in the percent format, not executed."""
    start, *parts = re.split(r'^# %%(.*)\n', script, flags=re.MULTILINE)
    if start.strip():
        raise ValueError(f'{start.splitlines()[0]!r} comes before the first cell: begin with a line # %%')
    cells = []
    for number, (kind, text) in enumerate(zip(parts[::2], parts[1::2])):
        if kind.strip() == '[markdown]':
            lines = [re.sub('^# ?', '', line) for line in text.strip().splitlines()]
            cell = nbformat.v4.new_markdown_cell('\n'.join(lines))
        else:
            cell = nbformat.v4.new_code_cell(text.strip())
        cell.id = f'cell-{number}'  # always the same; nbformat's own are random
        cells.append(cell)
    kernel = {'kernelspec': {'name': 'python3', 'display_name': 'Python 3', 'language': 'python'}}
    return nbformat.v4.new_notebook(cells=cells, metadata=kernel)


def execute(nb: nbformat.NotebookNode, timeout: float = 600) -> None:
    """Run all cells in place, each for at most `timeout` seconds; raise CellExecutionError if one fails."""
    from nbclient import NotebookClient
    # hide a warning of tqdm about ipywidgets, which would show paths of this machine
    env = {**os.environ, 'PYTHONWARNINGS': 'ignore:IProgress not found'}
    NotebookClient(nb, kernel_name='python3', timeout=timeout, record_timing=False).execute(env=env)
    nb.metadata['language_info'] = {'name': 'python', 'file_extension': '.py', 'mimetype': 'text/x-python'}


def leaks(nb: nbformat.NotebookNode) -> list[str]:
    """Return details of the machine in outputs and metadata: absolute paths and the host name."""
    texts = [json.dumps(nb.metadata)]
    for cell in nb.cells:
        texts.append(json.dumps(cell.metadata))
        for output in cell.get('outputs', []):
            texts += [str(value) for key, value in output.items() if key != 'data']
            texts += [str(value) for kind, value in output.get('data', {}).items()
                      if not kind.startswith('image/')]
    path = re.compile(r'(?<![\w.:/\\])(?:/[\w.+-]+){2,}|\b[A-Za-z]:\\\w+|/(?:home|root|tmp|Users)\b')
    host = re.compile(rf'\b{re.escape(socket.gethostname())}\b')
    return [match.group() for text in texts for pattern in (path, host) for match in pattern.finditer(text)]


def main(names: list[str]) -> None:
    """Build the named notebooks, by default all."""
    for name in names or NAMES:
        nb = notebook((FOLDER / f'{name}.py').read_text(encoding='utf-8'))
        execute(nb)
        if leaks(nb):
            raise ValueError(f'{name}: the outputs contain details of this machine: {leaks(nb)}')
        nbformat.write(nb, FOLDER / f'{name}.ipynb')
        print(f'{name}.ipynb: {len(nb.cells)} cells')


if __name__ == '__main__':
    main(sys.argv[1:])
