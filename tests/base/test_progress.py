"""The progress bar as text on a terminal of 20 to 120 columns. It starts no process."""
import fcntl
import os
import struct
import subprocess
import sys
import termios

import pytest
from tqdm import std

from gluon_mgpu.base.progress import Progress

BAR = """
import io, multiprocessing, psutil
multiprocessing.set_start_method('forkserver')  # the default of Python 3.14 on Linux
from gluon_mgpu.base.progress import ProgressBar
with ProgressBar(total=2, file=io.StringIO()) as bar:
    bar.update(1)
    with ProgressBar.external_write_mode():
        print([child.name() for child in psutil.Process().children()])
"""


def test_a_bar_starts_no_process():
    assert subprocess.check_output([sys.executable, '-c', BAR], text=True) == '[]\n'


class Terminal:
    """A terminal; stdout and stderr write to it."""

    def __init__(self, columns, monkeypatch):
        self.columns, self.lines, self.x, self.now = columns, [''], 0, 100.0
        self.descriptor, written = os.openpty()
        fcntl.ioctl(written, termios.TIOCSWINSZ, struct.pack('4H', 24, columns, 0, 0))
        self.stream = open(written, 'w', encoding='utf-8')  # noqa: SIM115, closed by `shown`
        for name in ('stdout', 'stderr'):
            monkeypatch.setattr(sys, name, self.stream)
        monkeypatch.setattr(std, 'time', lambda: self.now)

    def screen(self):
        """Return the lines on the screen, without empty ones at the end."""
        print('\0', end='', file=self.stream, flush=True)  # the last character; it may arrive later than the others
        output = b''
        while not output.endswith(b'\0'):
            output += os.read(self.descriptor, 10_000)
        for character in output[:-1].decode():
            if character == '\r':
                self.x = 0
            elif character == '\n':
                self.lines.append('')
            else:
                if self.x == self.columns:
                    self.lines.append('')
                    self.x = 0
                line = self.lines[-1].ljust(self.x)
                self.lines[-1] = line[:self.x] + character + line[self.x + 1:]
                self.x += 1
        return '\n'.join(map(str.rstrip, self.lines)).rstrip('\n').splitlines()


@pytest.fixture
def shown(monkeypatch):
    """Return a function that returns a terminal and the progress that is shown on it."""
    opened = []

    def show(columns):
        opened.extend((Progress(quiet=False), Terminal(columns, monkeypatch)))
        return opened

    yield show
    progress, terminal = opened
    progress.close()
    terminal.stream.close()
    os.close(terminal.descriptor)


def without_bar(line):
    """Return a line and the share of its bar that is filled. Versions of tqdm differ by a column."""
    before, bar, after = line.split('|')
    assert len(bar) >= 10
    return f'{before}||{after}', (len(bar.rstrip()) - 0.5) / len(bar)


def bar_of(progress, terminal):
    """Show an epoch on a terminal; return the line."""
    progress.begin_epoch('epoch 10/10', done=35, total=235)
    terminal.now += 4
    progress.advance(100, loss=2.3026, images_per_second=7425.4)
    line, = terminal.screen()
    return line


@pytest.mark.parametrize('columns', [80, 120])
def test_a_bar_fits_on_one_line(columns, shown):
    progress, terminal = shown(columns)
    line = bar_of(progress, terminal)
    rest, share = without_bar(line)
    assert rest == 'epoch 10/10 || 135/235, loss 2.303, 7,425 images/s, 00:04 left'
    assert share == pytest.approx(135 / 235, abs=0.06) and columns - 1 <= len(line) <= columns
    terminal.stream.write('^C')  # as a terminal shows it
    progress.print('a line')
    assert terminal.screen() == ['a line', line]
    terminal.stream.write('^C')
    progress.close()
    assert terminal.screen() == ['a line']


@pytest.mark.parametrize('columns', [20, 40, 62])
def test_a_narrow_terminal(columns, shown):
    assert len(bar_of(*shown(columns))) <= columns


def test_a_bar_of_unknown_length(shown):
    progress, terminal = shown(80)
    progress.begin_epoch('epoch 1/3', done=0, total=0)
    terminal.now += 1
    progress.advance(2, loss=1, images_per_second=512)
    line, = terminal.screen()
    assert line.replace(' ', '') == 'epoch1/3||2/?,loss1.000,512images/s' and len(line) <= 80
