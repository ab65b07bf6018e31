"""Tests of the declarations of settings, and of what follows from one."""
import importlib.util
import inspect
import json
import pickle
from pathlib import Path

import idx_files
import pytest
from oracle import images

from gluon_mgpu import concise, scratch
from gluon_mgpu.mxnet_setup.compat import mx, np
from gluon_mgpu.parallel.allreduce import ALGORITHMS
from gluon_mgpu.parallel.devices import Devices
from gluon_mgpu.parallel.workers import Workers
from gluon_mgpu.settings import cli, settings
from gluon_mgpu.settings.chapters import CHAPTERS
from gluon_mgpu.settings.settings import SHARED, Setting, check_settings, check_together
from gluon_mgpu.settings.setup import TrainingSetup, takes_settings
from gluon_mgpu.training.parameters import copies
from gluon_mgpu.training.run import Run

REPO = Path(__file__).parents[2]


def setup_of(chapter, *given, **settings):
    """Return the setup of a chapter's `train` with these arguments."""
    @takes_settings(chapter)
    def train(num_gpus, batch_size, lr, **settings):
        return TrainingSetup(batch_size, settings)
    return train(*given, **settings)


GIVEN = {'num_gpus': 2, 'batch_size': 256, 'lr': 0.1}


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
    values = check_settings('concise', {**GIVEN, 'momentum': 0.9})
    assert values == {**GIVEN, 'momentum': 0.9, 'devices': None, 'shares': None, 'accumulate': 1, 'num_epochs': 10,
                      'label_smoothing': 0.0, 'seed': 0, 'dtype': 'float32', 'weight_decay': 0.0,
                      'sync_batch_norm': False, 'optimizer': 'sgd', 'clip_norm': None, 'data': None, 'run': None,
                      'net': None}
    assert 'allreduce' in check_settings('scratch', GIVEN) and 'net' not in check_settings('scratch', GIVEN)
    assert setup_of('scratch', **GIVEN, devices='cpu:0,cpu:1', data=([], [])).devices == [mx.cpu(0), mx.cpu(1)]
    assert check_settings('scratch', {**GIVEN, 'lr': abs, 'allreduce': max})['allreduce'] is max
    assert check_settings('scratch', {**GIVEN, 'run': Run(3), 'lr': '0.5'})['num_epochs'] == 3


@pytest.mark.parametrize('chapter, changes, message', [
    ('scratch', {'momentum': 0.9}, 'momentum: scratch has no such setting; it has num_gpus, devices, shares, b'),
    ('concise', {'quiet': True}, 'quiet: concise has no such setting; it has .*, net; load images with data='),
    ('concise', {'lrs': 1}, 'lrs: concise has no such setting; it has .*, net$'),
    ('concise', {'batch_size': 10**400}, 'batch_size 10+: must be an integer from 1 to 2147483647'),
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


def test_the_default_data_has_the_seed_and_the_shard_of_the_worker(tmp_path, monkeypatch):
    idx_files.write(tmp_path / 'fashion-mnist', idx_files.dataset(num_train=40))
    monkeypatch.setenv('GLUON_MGPU_DATA', str(tmp_path))

    def labels(seed, rank=0, size=1):
        run = Run(1)
        run.workers.rank, run.workers.size = rank, size
        setup = setup_of('scratch', 1, 20, 0.1, seed=seed, run=run)
        return [y.asnumpy().tolist() for _, y in setup.data[0]]
    whole = labels(seed=1)
    assert whole != labels(seed=0)
    assert [first + second for first, second in zip(labels(1, 0, 2), labels(1, 1, 2))] == whole


@pytest.mark.parametrize('chapter', CHAPTERS)
def test_a_worker_trains_on_its_own_device(chapter):
    """Horovod sums the gradients of one device per worker."""
    data = [(np.zeros((256, 1, 28, 28), 'float32'), np.zeros(256))] * 2

    def devices_of(num_gpus, **changes):
        workers = two_workers()
        workers.device = mx.cpu(1)
        given = {'data': (data, data), 'run': Run(1, workers=workers), **changes}
        return setup_of(chapter, num_gpus, 256, 0.1, **given).devices
    assert devices_of(None) == devices_of(1) == devices_of(1, devices=[mx.cpu(1)]) == [mx.cpu(1)]
    for num_gpus, changes in ((2, {}), (None, {'devices': 'cpu:0-1'})):
        with pytest.raises(ValueError, match=r'^\[cpu\(0\), cpu\(1\)\] for one worker, whose gradients Horovod sums'):
            devices_of(num_gpus, **changes)


@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_devices_can_be_pickled(algorithm):
    devices = Devices('cpu:0-1', 256, '3,1', parts=2, allreduce=algorithm)
    assert devices == [mx.cpu(0), mx.cpu(1)]
    copy = pickle.loads(pickle.dumps(devices))
    attributes, copied = ({**vars(one), 'workers': None} for one in (devices, copy))
    assert copy == devices and copied == attributes and copy.allreduce is ALGORITHMS[algorithm]


def test_devices_keep_what_they_carry():
    devices = Devices([mx.cpu(0), mx.cpu(1)], 256, '3,1', parts=2, allreduce='ring')
    for chapter in CHAPTERS:
        check_settings(chapter, {**GIVEN, 'devices': devices, 'shares': None})
        data = [(np.zeros((256, 1, 28, 28)), np.zeros(256))]
        setup = setup_of(chapter, 2, 256, 0.1, devices=devices, data=(data, data))
        assert (setup.devices, setup.devices.shares, setup.devices.parts) == (devices, (3, 1), 2)
        assert setup.devices.allreduce is ALGORITHMS['ring'] and setup.devices.batch_size == 256


def two_workers():
    workers = Workers()
    workers.size = 2
    return workers


@pytest.mark.parametrize('changes, message', [
    ({'shares': [1, 1]}, r'shares \[1, 1\]: devices have their own'),
    ({'accumulate': 1}, 'accumulate 1: devices have their own'),
    ({'allreduce': 'tree'}, 'allreduce tree: devices have their own'),
    ({'batch_size': 128}, 'batch_size 128: must be 256, as in devices'),
    ({'num_gpus': 1}, 'num_gpus 1: must be 2, the number of devices'),
    ({'run': Run(3)}, 'run must have the workers of devices'),
    ])
def test_settings_that_contradict_devices(changes, message):
    devices = Devices([mx.cpu(0), mx.cpu(1)], 256, workers=two_workers() if 'run' in message else None)
    with pytest.raises(ValueError, match=f'^{message}'):
        setup_of('scratch', **{**GIVEN, 'devices': devices, **changes})


@pytest.mark.parametrize('values, message', [
    ({'num_epochs': 3, 'warmup_epochs': 3}, 'warmup_epochs 3: must be less than num_epochs 3'),
    ({'batch_size': 4, 'accumulate': 5}, 'accumulate 5: must be at most batch_size 4'),
    ({'shares': [3, 1]}, r'shares 3,1: must be one number for each of \[cpu\(0\)\]'),
    ({'dtype': 'float16'}, 'dtype float16')])
def test_settings_that_do_not_fit_together(values, message):
    with pytest.raises(ValueError, match=f'^{message}'):
        check_together(values, [mx.cpu(0)])
    with pytest.raises(ValueError, match=f'^--{message.partition(":")[0]}'):
        check_together(values, [mx.cpu(0)], '--{}'.format)
    check_together({}, [mx.cpu(0)])


def test_one_declaration_is_enough(tmp_path, monkeypatch, capsys):
    """A new setting has a flag, reaches `train` and config.json, and a resumed run keeps it."""
    new = Setting('smoothing', 'a test', 0.0, kind=float, metavar='EPS', on_resume='fixed')
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
        assert '--smoothing 0.1: the run to resume has 0.0; leave --smoothing out' in capsys.readouterr().err
        cli.run('scratch', [*flags, '--smoothing', '0.1', '--out-dir', str(tmp_path / 'other')])
        cli.run('scratch', ['--resume', 'auto', '--out-dir', str(tmp_path / 'other')])
        assert found[2:] == [0.1, 0.1] and check_settings('scratch', GIVEN)['smoothing'] == 0.0


@pytest.mark.parametrize('chapter', [scratch, concise])
def test_the_signature_of_train_has_all_settings(chapter):
    name = chapter.__name__.rpartition('.')[2]
    values = check_settings(name, GIVEN)
    found = inspect.signature(chapter.train).parameters
    assert [*found][:3] == ['num_gpus', 'batch_size', 'lr'] and found.keys() == values.keys()
    assert all(parameter.default == values[name] for name, parameter in found.items() if name not in GIVEN)
    assert (found['num_epochs'].annotation, found['devices'].annotation, found['run'].annotation) == (
        'int', 'Sequence[Context] | str | None', 'Run | None')


@pytest.mark.parametrize('chapter', [scratch, concise])
def test_train_returns_its_run(chapter, devices, rng):
    X, y = images(rng, 4)
    data = [(np.array(X), np.array(y))]
    run = chapter.train(None, 4, 1e-3, devices=devices[:2], data=(data, data), num_epochs=1)
    assert repr(run) == '<Run: 1 of 1 epochs>' and len(run.history) == 1
    assert all(len(replicas) == 2 for replicas in copies(run.net).values())
