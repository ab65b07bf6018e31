"""Tests of the declarations of settings, and of what follows from one."""
import json

import idx_files
import pytest
from tool import load_tool

from gluon_mgpu import scratch
from gluon_mgpu.mxnet_setup.compat import mx
from gluon_mgpu.settings import cli, settings
from gluon_mgpu.settings.chapters import CHAPTERS
from gluon_mgpu.settings.settings import ALL, SETTINGS, Setting, check_together, defaults


def test_the_table_of_the_docs_is_up_to_date():
    tool = load_tool('settings_table')
    page = tool.PAGE.read_text()
    assert page == tool.with_table(page), 'a setting has changed: python tools/settings_table.py'
    assert page.count('\n| `--') == len(SETTINGS)


@pytest.mark.parametrize('chapter', CHAPTERS)
def test_defaults_are_valid(chapter):
    for setting in settings.flags_of(chapter):
        default = setting.default_of(chapter)
        assert setting.checked(setting.name, default) == default


@pytest.mark.parametrize('name, value, rule', [
    ('batch_size', 10**400, ' 10+: must be an integer from 1 to 2147483647'),
    ('lr', '0.5', " '0.5': must be a number above 0"),
    ('lr', -1, ' -1: must be a number above 0'),
    ('lr', 1e-320, ' 1e-320: must be in the range of float32, 1.2e-38 to 3.4e.38'),
    ('momentum', 1, ' 1: must be a number of at least 0 and less than 1'),
    ('dtype', 'int8', " 'int8': must be one of float32, bfloat16, float16"),
    ('sync_batch_norm', 'no', " 'no': must be True or False"),
    ('seed', None, ' None: must be an integer of at least 0'),
    ('lr', True, ' True: must be a number above 0'),
    ('optimizer', 'lamb', " 'lamb': must be one of sgd"),
    ('accumulate', True, ' True: must be an integer of at least 1'),
])
def test_invalid_values(name, value, rule):
    with pytest.raises(ValueError, match=f'^config.json: {name}{rule}'):
        ALL[name].checked(f'config.json: {name}', value)


@pytest.mark.parametrize('values, message', [
    ({'num_epochs': 3, 'warmup_epochs': 3}, '--warmup-epochs 3: must be less than --num-epochs 3'),
    ({'optimizer': 'adam', 'momentum': 0.9}, '--momentum 0.9: adam has none; leave it out'),
    ({'dtype': 'float16'}, '--dtype float16')])
def test_settings_that_do_not_fit_together(values, message):
    with pytest.raises(ValueError, match=f'^{message}'):
        check_together({**defaults('concise'), **values}, [mx.cpu(0)])
    check_together(defaults('concise'), [mx.cpu(0)])


def test_one_declaration_is_enough(tmp_path, monkeypatch, capsys):
    """A new setting has a flag and reaches config.json and `arguments_of_train`; a resumed run keeps it."""
    new = Setting('smoothing', 'a test', 0.0, kind=float, metavar='EPS', fixed=True)
    idx_files.write(tmp_path / 'mnist', idx_files.dataset(16, 16))
    out, found = tmp_path / 'run', []
    flags = ['--dataset', 'mnist', '--data-dir', str(tmp_path), '--devices', 'cpu:0', '--no-plot', '--quiet']

    def arguments_of_train(chapter, module, values, workers):
        found.append(values.get('smoothing'))
        raise ValueError('no training')

    monkeypatch.setattr(cli, 'arguments_of_train', arguments_of_train)
    cli.run('scratch', scratch, [*flags, '--out-dir', str(out)])  # recorded before the setting existed
    with monkeypatch.context() as patch:
        patch.setattr(settings, 'SETTINGS', (*SETTINGS, new))
        patch.setitem(settings.ALL, 'smoothing', new)
        cli.run('scratch', scratch, ['--resume', 'auto', '--out-dir', str(out)])
        assert found == [None, 0.0] and json.loads((out / 'config.json').read_text())['smoothing'] == 0.0
        cli.run('scratch', scratch, ['--resume', 'auto', '--out-dir', str(out), '--smoothing', '0.1'])
        assert f'--smoothing 0.1: {out} has 0.0, and a resumed run cannot change it' in capsys.readouterr().err
        cli.run('scratch', scratch, [*flags, '--smoothing', '0.1', '--out-dir', str(tmp_path / 'other')])
        cli.run('scratch', scratch, ['--resume', 'auto', '--out-dir', str(tmp_path / 'other')])
        assert found[2:] == [0.1, 0.1]
