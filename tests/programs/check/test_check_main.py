"""The command line of the check."""
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import steps_to_check
from steps_to_check import late_error

from gluon_mgpu.programs.check import __main__ as command_line


def test_a_crash_of_mxnet_shows_the_line(tmp_path):
    """Such as the gradient of a convolution without rows, in float64."""
    (tmp_path / 'crashing.py').write_text("""
import os, signal
def make(devices):
    os.kill(os.getpid(), signal.SIGFPE)  # as a division by zero in MXNet
def train_batch(state, X, y, devices): pass
""")
    command = [sys.executable, '-m', 'gluon_mgpu', 'check', 'crashing:make', 'crashing:train_batch']
    env = {**os.environ, 'PYTHONPATH': str(Path(__file__).parents[3])}
    result = subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True)
    assert result.returncode < 0 and 'crashing.py", line 4 in make' in result.stderr


def test_command_line(capsys):
    names = [f'steps_to_check:{name}' for name in ('make_arrays', 'step_from_scratch', 'batches_of_six_numbers')]
    assert command_line.main(names) == 0
    assert '3 devices compared with one' in capsys.readouterr().out
    names[1] = 'steps_to_check:wrong_step'
    assert command_line.main([*names, '--devices', 'cpu:0-1']) == 1
    assert 'the update is 0.5 times' in capsys.readouterr().out
    names[1] = 'steps_to_check:noisy_step'
    assert command_line.main(names) == 2
    assert 'NOT CHECKED: the step draws random numbers' in capsys.readouterr().out


@pytest.mark.slow
def test_command_line_on_the_default_images(capsys):
    assert command_line.main(['steps_to_check:make_lenet', 'steps_to_check:step_of_lenet']) == 0
    assert 'over batches of 12, 10, 12, 2, 7, 1 rows' in capsys.readouterr().out


def test_a_step_for_other_inputs_than_the_default_images(capsys):
    assert command_line.main(['steps_to_check:make_arrays', 'steps_to_check:step_from_scratch']) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(
        '; X has random images, (256, 1, 28, 28): for other inputs, name MODULE:batches as well')


@pytest.mark.parametrize(('code', 'words'), [
    ("def make(devices): raise ValueError('mine')", 'ValueError: mine'),
    (r"def make(devices): raise ValueError('\x1b]0;mine')", r'ValueError: \x1b]0;mine'),
    ("def make(devices): return {}['mine']", "KeyError: 'mine'"),
    ('def make(devices): return np.dot(np.ones(2), np.ones(3))', 'MXNetError'),
    ("def batches(): return {}['mine']", "KeyError: 'mine'"), ('{}.mine', "AttributeError: 'dict' object has no"),
    ('int([])', 'TypeError: int()'), ("int('mine')", 'ValueError: invalid literal'),
    ('raise SystemExit(0)', 'SystemExit: 0'), ('def make(devices): exit()', 'SystemExit'),
    ('import mine', "ModuleNotFoundError: No module named 'mine'"), ('1 +', 'SyntaxError: invalid syntax')])
def test_an_error_in_the_users_code_keeps_its_traceback(code, words, tmp_path, monkeypatch, capsys):
    """It has the status of input that cannot be checked, not that of a wrong step."""
    before = 'from steps_to_check import *', 'make = make_arrays', 'batches = batches_of_six_numbers'
    (tmp_path / 'users.py').write_text('\n'.join([*before, code]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, 'users', raising=False)
    assert command_line.main(['users:make', 'users:step_from_scratch', 'users:batches']) == 2
    err = capsys.readouterr().err
    assert 'users.py", line 4' in err and words in err and not re.search('File .*/(mxnet|numpy)/', err)
    assert err.splitlines()[-1].startswith('check: nothing was checked because of' if 'np' not in code else
                                           'check: MXNet failed (')


def test_a_late_error_of_mxnet_is_no_verdict(batches, monkeypatch, capsys):
    """It has no line of the user's code."""
    def train_batch(state, X, y, devices):
        late_error(devices[0])

    monkeypatch.setattr(steps_to_check, 'step_from_scratch', train_batch)
    assert command_line.main(['steps_to_check:make_arrays', 'steps_to_check:step_from_scratch',
                              'steps_to_check:batches_of_six_numbers']) == 2
    assert re.fullmatch('check: MXNet failed .*: set MXNET_ENGINE_TYPE=NaiveEngine to see where\n',
                        capsys.readouterr().err)


def test_a_step_with_other_arguments(capsys):
    assert command_line.main(['steps_to_check:make_arrays', 'steps_to_check:make_arrays']) == 2
    assert capsys.readouterr().err == 'check: make_arrays() takes from 1 to 3 positional arguments but 4 were given\n'


@pytest.mark.parametrize('name', [
    'steps_to_check:nothing', 'no_such_module:make', './steps_to_check:make', 'steps_to_check.nothing:make', ':make'])
def test_a_name_that_cannot_be_loaded(name, capsys):
    assert command_line.main([name, 'steps_to_check:step_from_scratch']) == 2
    assert re.fullmatch(rf"check: '{name}' cannot be loaded \(.*\): write MODULE:NAME, .*\n", capsys.readouterr().err)


def test_a_module_that_reads_its_arguments(tmp_path, monkeypatch, capsys):
    """It sees none of this command's. An error while it is imported has nothing to do with the default images."""
    lines = ('import argparse', 'from steps_to_check import *', 'argparse.ArgumentParser().parse_args()',
             'make = make_arrays')
    (tmp_path / 'script.py').write_text('\n'.join(lines))
    (tmp_path / 'broken_script.py').write_text('\n'.join([*lines, 'int([])']))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, 'argv', ['check', '--devices', 'cpu:0-1'])
    names = ['steps_to_check:step_from_scratch', 'steps_to_check:batches_of_six_numbers']
    assert command_line.main(['script:make', *names]) == 0
    assert command_line.main(['broken_script:make', names[0]]) == 2
    assert capsys.readouterr().err.endswith('check: nothing was checked because of the error above\n')
