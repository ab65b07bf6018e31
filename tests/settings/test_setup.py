"""Tests of what the settings of a command are for `train`: devices, functions, a network and a Trainer."""
import pytest
from oracle import images
from slow import slow

from gluon_mgpu import concise, scratch
from gluon_mgpu.mxnet_setup.compat import gluon, mx, np
from gluon_mgpu.parallel.allreduce import ring
from gluon_mgpu.parallel.clipping import ClippingTrainer
from gluon_mgpu.parallel.step import params_with_gradients
from gluon_mgpu.parallel.sync_batch_norm.synchronized import SyncBatchNorm
from gluon_mgpu.parallel.sync_batch_norm.train_batch import train_batch_synchronized
from gluon_mgpu.parallel.workers import Workers
from gluon_mgpu.settings import setup
from gluon_mgpu.settings.chapters import CHAPTERS
from gluon_mgpu.settings.settings import defaults
from gluon_mgpu.settings.setup import arguments_of_train, find_devices
from gluon_mgpu.training.parameters import copies


def arguments(name, module, **changes):
    return arguments_of_train(CHAPTERS[name], module, {**defaults(name), **changes}, Workers())


def test_the_default_data_has_the_seed(monkeypatch):
    asked = []
    monkeypatch.setattr(scratch, 'load_data', lambda *args, **settings: asked.append((args, settings)) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        scratch.train(1, 20, 0.1, seed=3)
    assert asked == [(('fashion-mnist', 20), {'seed': 3})]


@pytest.mark.parametrize('chapter', CHAPTERS)
def test_a_worker_trains_on_its_own_device(chapter):
    """Horovod sums the gradients of one device per worker."""
    workers = Workers()
    workers.size, workers.device = 2, mx.cpu(1)
    assert find_devices(defaults(chapter), workers, print) == [mx.cpu(1)]


@pytest.mark.parametrize('num_gpus, available, expected', [(None, 0, 2), (3, 0, 3), (None, 1, 1), (None, 8, 2)])
def test_the_number_of_devices(num_gpus, available, expected, monkeypatch):
    """By default 2, or 1 on a machine with one GPU."""
    lines = []
    monkeypatch.setattr(setup, 'num_mxnet_gpus', lambda: available)
    monkeypatch.setattr(setup, 'why_no_gpus', lambda: 'there is none')
    monkeypatch.setattr(setup, 'devices_from', lambda n: [mx.cpu(i) for i in range(n)])
    settings = {**defaults('scratch'), 'num_gpus': num_gpus}
    assert len(find_devices(settings, Workers(), lines.append)) == expected
    assert lines == ([] if available else ['there is none; training on CPU contexts'])


def test_the_functions_of_the_chapter_from_scratch():
    assert arguments('scratch', scratch) == {'train_batch': scratch.train_batch, 'allreduce': scratch.allreduce}
    assert arguments('scratch', scratch, allreduce='star')['allreduce'] is scratch.allreduce
    found = arguments('scratch', scratch, allreduce='ring', accumulate=2)
    assert found['allreduce'] is ring and found['train_batch'] is not scratch.train_batch


def test_the_network_and_the_trainer_of_the_concise_chapter(devices):
    found = arguments('concise', concise, weight_decay=0.5)
    assert found['optimizer_params'] == {'wd': 0.5, 'momentum': 0.0} and found['train_batch'] is concise.train_batch
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize(ctx=devices)
    params = net.collect_params()
    assert type(found['Trainer'](params, 'sgd', {}, update_on_kvstore=False)) is gluon.Trainer
    found = arguments('concise', concise, optimizer='adam', clip_norm=0.5, sync_batch_norm=True)
    assert found['optimizer_params'] == {'wd': 0.0} and found['train_batch'] is train_batch_synchronized
    assert isinstance(found['net'], SyncBatchNorm) and params_with_gradients(found['net'])
    trainer = found['Trainer'](params, 'sgd', {}, update_on_kvstore=False)
    assert isinstance(trainer, ClippingTrainer) and trainer.clip_norm == 0.5


@pytest.mark.parametrize('chapter', [scratch, slow(concise)])
def test_train_returns_its_run(chapter, devices, rng):
    X, y = images(rng, 4)
    data = [(np.array(X), np.array(y))]
    run = chapter.train(None, 4, 1e-3, 1, devices=devices[:2], data=(data, data))
    assert len(run.history) == 1
    assert all(len(replicas) == 2 for replicas in copies(run.net).values())
