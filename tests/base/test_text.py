"""Text of others is printed without what a terminal obeys."""
import io
import sys

import numpy
import pytest

from gluon_mgpu.base.flags import Parser
from gluon_mgpu.base.pictures import in_lines
from gluon_mgpu.base.program import run_program, show, warn
from gluon_mgpu.base.progress import Progress
from gluon_mgpu.base.text import counted, described, print_text, printable

EVIL = 'a\n\u061c\x1b]0;title\x07\x9b31m\r\b\x7f\u202eb\u2028c'
ESCAPED = r'a\n\u061c\x1b]0;title\x07\x9b31m\r\x08\x7f\u202eb\u2028c'


def test_control_characters_become_escapes():
    assert printable(EVIL) == ESCAPED and printable('a\nb\tc') == r'a\nb\tc'
    assert printable('a\udcff') == r'a\udcff'  # the name of a file need not be UTF-8
    for text in ('Größe, данные, 重み', 'a b', "'two  spaces'", '\xa0\u202f', '👟'):
        assert printable(text) == text


def test_all_that_prints_escapes_them(capsys):
    def error():
        raise ValueError(f'{EVIL}: no file')

    print_text(EVIL, 2)
    show(EVIL, 'second line')
    Progress(quiet=False).print(EVIL)
    print_text('', stream=sys.stderr)
    warn(EVIL)
    Progress(quiet=True).warn(EVIL)
    assert run_program('program', error) == 2
    with pytest.raises(SystemExit):
        Parser('program', '').error(EVIL)
    out, err = capsys.readouterr()
    assert out == f'{ESCAPED}\n2\n{ESCAPED}\nsecond line\n{ESCAPED}\n'
    lines = [line for line in err.splitlines() if line]
    assert lines == [ESCAPED, ESCAPED, f'program: {ESCAPED}: no file', f'program: {ESCAPED}; --help shows all flags']


def test_pictures_too():
    assert in_lines(EVIL) == ESCAPED


def test_counted():
    assert [counted(1, 'batch'), counted(2, 'batch'), counted(0, 'step'), counted(2, 'epoch')] == [
        '1 batch', '2 batches', '0 steps', '2 epochs']


def test_described():
    X = numpy.ones((2, 3))
    assert [described(value) for value in (X, 3, None, (X, [1]), [1] * 9, ())] == [
        'array (2, 3)', 'int', 'NoneType', 'tuple (array (2, 3), list (int))', 'list (int, int, int, ...)', 'tuple ()']


def test_a_terminal_that_is_not_utf_8(monkeypatch):
    """Other characters are escaped; nothing after them is lost."""
    bytes_written = io.BytesIO()
    monkeypatch.setattr(sys, 'stdout', io.TextIOWrapper(bytes_written, encoding='ascii'))
    show('runs/übung')
    show('test acc: 0.9')
    assert bytes_written.getvalue() == b'runs/\\xfcbung\ntest acc: 0.9\n'
