"""Tests of the declarations of settings, and of what follows from one."""
import importlib.util
import inspect
import json
from pathlib import Path

import idx_files
import pytest
from setups import GIVEN, setup_of

from gluon_mgpu import concise, scratch
from gluon_mgpu.mxnet_setup.compat import mx, np
from gluon_mgpu.settings import cli, settings
from gluon_mgpu.settings.chapters import CHAPTERS
from gluon_mgpu.settings.settings import SHARED, Setting, check_together, checked_settings
from gluon_mgpu.training.run import Run

REPO = Path(__file__).parents[2]


def test_the_table_of_the_docs_is_up_to_date():
    spec = importlib.util.spec_from_file_location('settings_table', REPO / 'tools' / 'settings_table.py')
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = tool.PAGE.read_text()
    assert page == tool.with_table(page), 'a setting has changed: python tools/settings_table.py'
    assert page.count('\n| `--') == len(SHARED) + len(settings.FLAGS)


@pytest.mark.parametrize('chapter', CHAPTERS)
def test_defaults_are_valid(chapter):
    for setting in settings.flags_of(chapter):
        default = setting.default_of(chapter)
        assert setting.checked(setting.name, default) == default


def test_the_arguments_of_train():
    values = checked_settings('concise', {**GIVEN, 'momentum': 0.9})
    assert values.keys() == {setting.name for setting in settings.arguments_of('concise')}
    expected = {**GIVEN, 'momentum': 0.9, 'devices': None, 'accumulate': 1, 'num_epochs': 10,
                'seed': 0, 'dtype': 'float32', 'weight_decay': 0.0, 'sync_batch_norm': False,
                'optimizer': 'sgd', 'clip_norm': None, 'data': None, 'run': None, 'net': None}
    assert {name: values[name] for name in expected} == expected
    assert 'allreduce' in checked_settings('scratch', GIVEN) and 'net' not in checked_settings('scratch', GIVEN)
    batches = [(np.zeros((1, 1, 28, 28)), np.zeros(1))]
    setup = setup_of('scratch', **GIVEN, devices='cpu:0,cpu:1', data=(batches, batches))
    assert setup.devices == [mx.cpu(0), mx.cpu(1)]
    assert checked_settings('scratch', {**GIVEN, 'lr': abs, 'allreduce': max})['allreduce'] is max
    assert checked_settings('scratch', {**GIVEN, 'run': Run(3), 'lr': 0.5})['num_epochs'] == 3


@pytest.mark.parametrize('chapter, changes, message', [
    ('scratch', {'momentum': 0.9}, 'momentum: scratch has no such setting; it has num_gpus, devices, b'),
    ('concise', {'quiet': True}, 'quiet: concise has no such setting; it has .*, net$'),
    ('concise', {'lrs': 1}, 'lrs: concise has no such setting; it has .*, net$'),
    ('concise', {'batch_size': 10**400}, 'batch_size 10+: must be an integer from 1 to 2147483647'),
    ('concise', {'lr': '0.5'}, "lr '0.5': must be a number above 0"),
    ('concise', {'lr': -1}, 'lr -1: must be a number above 0'),
    ('concise', {'lr': 1e-320}, 'lr 1e-320: must be in the range of float32, 1.2e-38 to 3.4e.38'),
    ('concise', {'momentum': 1}, 'momentum 1: must be a number of at least 0 and less than 1'),
    ('concise', {'dtype': 'int8'}, "dtype 'int8': must be one of float32, bfloat16, float16"),
    ('concise', {'sync_batch_norm': 'no'}, "sync_batch_norm 'no': must be True or False"),
    ('scratch', {'seed': None}, 'seed None: must be an integer of at least 0'),
    ('scratch', {'lr': True}, 'lr True: must be a number above 0'),
    ('concise', {'optimizer': dict}, "optimizer <class 'dict'>: must be one of sgd"),
    ('concise', {'dtype': print}, 'dtype <built-in function print>: must be one of float32'),
    ('scratch', {'run': 5}, 'run 5: must be a Run, such as'),
    ('scratch', {'accumulate': True}, 'accumulate True: must be an integer of at least 1'),
    ('scratch', {'devices': [mx.cpu(0)]}, 'num_gpus 2: must be 1, the number of devices'),
    ('scratch', {'run': Run(3), 'num_epochs': 2}, 'num_epochs 2: must be 3, as in run; leave it out'),
])
def test_invalid_settings(chapter, changes, message):
    with pytest.raises(ValueError, match=f'^{message}'):
        setup_of(chapter, **{**GIVEN, **changes})


@pytest.mark.parametrize('values, message', [
    ({'num_epochs': 3, 'warmup_epochs': 3}, 'warmup_epochs 3: must be less than num_epochs 3'),
    ({'batch_size': 4, 'accumulate': 5}, 'accumulate 5: must be at most batch_size 4'),
    ({'dtype': 'float16'}, 'dtype float16')])
def test_settings_that_do_not_fit_together(values, message):
    with pytest.raises(ValueError, match=f'^{message}'):
        check_together(values, [mx.cpu(0)])
    with pytest.raises(ValueError, match=f'^--{message.partition(":")[0]}'):
        check_together(values, [mx.cpu(0)], '--{}'.format)
    check_together({}, [mx.cpu(0)])


def test_one_declaration_is_enough(tmp_path, monkeypatch, capsys):
    """A new setting has a flag, reaches `train` and config.json, and a resumed run keeps it."""
    new = Setting('smoothing', 'a test', 0.0, kind=float, metavar='EPS', fixed=True)
    idx_files.write(tmp_path / 'mnist', idx_files.dataset(16, 16))
    out, found = tmp_path / 'run', []
    flags = ['--dataset', 'mnist', '--data-dir', str(tmp_path), '--devices', 'cpu:0', '--no-plot', '--quiet']

    def train(num_gpus, batch_size, lr, run, smoothing=None, **others):
        found.append(smoothing)
        raise ValueError('no summary')

    monkeypatch.setattr(scratch, 'train', train)
    cli.run('scratch', [*flags, '--out-dir', str(out)])  # recorded before the setting existed
    with monkeypatch.context() as patch:
        patch.setattr(settings, 'SHARED', (*SHARED, new))
        patch.setitem(settings.ALL, 'smoothing', new)
        cli.run('scratch', ['--resume', 'auto', '--out-dir', str(out)])
        assert found == [None, 0.0] and json.loads((out / 'config.json').read_text())['smoothing'] == 0.0
        cli.run('scratch', ['--resume', 'auto', '--out-dir', str(out), '--smoothing', '0.1'])
        assert f'--smoothing 0.1: {out} has 0.0, and a resumed run cannot change it' in capsys.readouterr().err
        cli.run('scratch', [*flags, '--smoothing', '0.1', '--out-dir', str(tmp_path / 'other')])
        cli.run('scratch', ['--resume', 'auto', '--out-dir', str(tmp_path / 'other')])
        assert found[2:] == [0.1, 0.1] and checked_settings('scratch', GIVEN)['smoothing'] == 0.0


@pytest.mark.parametrize('chapter', [scratch, concise])
def test_the_signature_of_train_has_all_settings(chapter):
    name = chapter.__name__.rpartition('.')[2]
    values = checked_settings(name, GIVEN)
    found = inspect.signature(chapter.train).parameters
    assert [*found][:3] == ['num_gpus', 'batch_size', 'lr'] and found.keys() == values.keys()
    assert all(parameter.default == values[name] for name, parameter in found.items() if name not in GIVEN)


def test_adam_on_devices_of_one_number():
    """Its Trainer counts updates by the number, so that each would take another step. SGD counts nothing."""
    check_together({'optimizer': 'sgd'}, [mx.cpu(0), mx.gpu(0)])
    check_together({'optimizer': 'adam'}, [mx.cpu(1), mx.gpu(0)])
    with pytest.raises(ValueError, match='^--devices cpu:0,gpu:0: adam counts updates by the number of a device'):
        check_together({'optimizer': 'adam'}, [mx.cpu(0), mx.gpu(0)], lambda name: f'--{name}')
