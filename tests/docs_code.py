"""The training loops that pages of docs/ show."""
from itertools import takewhile
from pathlib import Path

import numpy

from gluon_mgpu.data.batches import BatchIterator


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
