"""Tests of the types of command-line flags."""
import argparse

import pytest

from gluon_mgpu.base.arguments import integer, positive
from gluon_mgpu.base.flags import Parser, checked_flag, path, picture, quoted, text


def test_flags():
    parser = Parser('gluon_mgpu.base.flags', None)
    parser.add_argument('--n', type=checked_flag(integer, 2, 5, kind=int))
    parser.add_argument('--x', type=checked_flag(positive, kind=float))
    parser.add_argument('--t', type=text)
    args = parser.parse_args(['--n', '3', '--x', '1e-3', '--t', ' '])
    assert (args.n, args.x, args.t) == (3, 0.001, ' ')


def test_a_flag_must_be_written_in_full(capsys):
    parser = Parser('gluon_mgpu.base.flags', None)
    parser.add_argument('--batch-size')
    with pytest.raises(SystemExit):
        parser.parse_args(['--batch-siz', '3'])
    assert capsys.readouterr().err == 'flags: unrecognized arguments: --batch-siz 3; --help shows all flags\n'


@pytest.mark.parametrize(('convert', 'value', 'message'), [
    (checked_flag(integer, 2, 5, kind=int), '6', '6: must be an integer from 2 to 5'),
    (checked_flag(integer, 1, kind=int), '٣x', 'must be an integer of at least 1'),
    (checked_flag(positive, kind=float), '-0.0', '-0.0: must be a number above 0'),
    (checked_flag(positive, kind=float), '', "'': must be a number above 0"),
    (text, '', "'': must be text that is not empty; give a value or leave the flag out")])
def test_invalid_flags(convert, value, message):
    with pytest.raises(argparse.ArgumentTypeError) as error:
        convert(value)
    assert message in str(error.value)


def test_pictures_that_cannot_be_written():
    for value, message in ('a.v1', 'a.v1: must end in .png, .pdf, .svg, .jpg'), ('', 'must be text that is not empty'):
        with pytest.raises(argparse.ArgumentTypeError, match=message):
            picture(value)


def test_a_picture_without_suffix_gets_png():
    """matplotlib adds the suffix as well, and programs print the name."""
    assert [str(picture(name)) for name in ('pic', 'a.b/pic', 'pic.svg')] == ['pic.png', 'a.b/pic.png', 'pic.svg']


def test_a_home_folder_that_the_shell_did_not_expand(monkeypatch):
    monkeypatch.setenv('HOME', '/home/me')
    assert (path('~/x'), path('x~'), str(picture('~/x'))) == ('/home/me/x', 'x~', '/home/me/x.png')


def test_paths_in_printed_commands():
    assert [quoted(name) for name in ('runs/a', 'two  spaces')] == ['runs/a', "'two  spaces'"]
