"""Tests of the setup of a run: devices, data and run made from settings."""
import idx_files
import pytest
from oracle import images
from setups import setup_of
from slow import slow

from gluon_mgpu import concise, scratch
from gluon_mgpu.mxnet_setup.compat import mx, np
from gluon_mgpu.parallel.workers import Workers
from gluon_mgpu.settings.chapters import CHAPTERS
from gluon_mgpu.training.parameters import copies
from gluon_mgpu.training.run import Run


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


def two_workers():
    workers = Workers()
    workers.size = 2
    return workers


@pytest.mark.parametrize('chapter', [scratch, slow(concise)])
def test_train_returns_its_run(chapter, devices, rng):
    X, y = images(rng, 4)
    data = [(np.array(X), np.array(y))]
    run = chapter.train(None, 4, 1e-3, devices=devices[:2], data=(data, data), num_epochs=1)
    assert repr(run) == '<Run: 1 of 1 epoch>' and len(run.history) == 1
    assert all(len(replicas) == 2 for replicas in copies(run.net).values())
