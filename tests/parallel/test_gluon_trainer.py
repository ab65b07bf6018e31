"""Steps with gluon.Trainer: k devices take the steps of one, whichever way it updates, with any optimizer."""
from types import SimpleNamespace

import numpy
import pytest
from slow import slow
from trainers import on_each_device, trainable

from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.distributed.horovod_workers import HorovodWorkers
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, init, mx, np
from gluon_mgpu.parallel.split import split_batch
from gluon_mgpu.parallel.step import prepare_idle_devices
from gluon_mgpu.parallel.workers import Workers
from gluon_mgpu.programs.onnx.graph import semantics_of

WAYS = [gluon.Trainer, on_each_device]  # the key-value store updates, or each device does
# Settings with which each device's updates could differ: a rate that changes, and state kept from step to step
SETTINGS = {'adam': {'clip_gradient': 0.1}, 'dcasgd': {}, 'groupadagrad': {'wd': 0.0}, 'lars': {'momentum': 0.9},
            'lbsgd': {'batch_scale': 2}, 'nag': {'momentum': 0.9}, 'rmsprop': {'centered': True},
            'sgd': {'momentum': 0.9}, 'signum': {'momentum': 0.9}}
# Their updates depend on random numbers, or on how often the optimizer was called
ONLY_BY_THE_STORE = {'lars', 'lbsgd', 'nadam', 'sgld'}


class HalfAsOften(mx.optimizer.SGD):
    """An optimizer that a user wrote: it counts its calls, and takes half of every second step."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.calls = 0

    def update(self, index, weight, grad, state):
        self.calls += 1
        super().update(index, weight, [g * (1 + self.calls % 2) / 2 for g in grad], state)  # of several parameters

    update_multi_precision = update


def values(net):
    return [[array.asnumpy() for array in param.list_data()] for param in trainable(net)]


def train(make, devices, optimizer, settings):
    """Train a dense layer on batches that possibly have fewer rows than devices."""
    mx.random.seed(0)
    net = gluon.nn.Dense(4, in_units=6, use_bias=False)
    net.initialize(ctx=devices)
    net.weight.set_data(np.array(numpy.random.default_rng(0).normal(size=(4, 6)), dtype='float32'))
    trainer, rng = make(trainable(net), optimizer, settings), numpy.random.default_rng(1)
    for rows in (12, 9, 2, 12):
        X, y = rng.normal(size=(rows, 6)).astype('float32'), rng.normal(size=(rows, 4)).astype('float32')
        X_shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            ls = [(net(X_shard) - y_shard) ** 2 for X_shard, y_shard in zip(X_shards, y_shards)]
        autograd.backward(ls)
        prepare_idle_devices(net, X, devices)
        trainer.step(12)
    return values(net)


@pytest.mark.parametrize('make', WAYS)
@pytest.mark.parametrize('k', [slow(2), 3])
@pytest.mark.parametrize('name', [*sorted(mx.optimizer.Optimizer.opt_registry), HalfAsOften])
def test_optimizers(name, k, make, device_list):
    if make is on_each_device and (name in ONLY_BY_THE_STORE or name is HalfAsOften):
        pytest.skip('drifts apart on several devices, as own-project.md says; the check names it')
    results = []
    for devices in (device_list(1), device_list(k)):
        settings = {'learning_rate': 0.05, 'wd': 0.01, **SETTINGS.get(name, {})}
        if name is HalfAsOften:
            results.append(train(make, devices, HalfAsOften(**settings), None))
        else:
            settings['lr_scheduler'] = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=0.05)
            results.append(train(make, devices, name, settings))
    for one, several in zip(*results):
        assert {array.tobytes() for array in several} == {several[0].tobytes()}
        numpy.testing.assert_allclose(several[0], one[0], rtol=1e-4, atol=1e-5)  # float32; some divide by small sums


@pytest.mark.parametrize('make', WAYS)
def test_idle_devices_keep_the_sums_of_gradients(make, device_list):
    """Three batches with grad_req 'add'; the second has rows for one device only. Equal to one device."""
    results = []
    for devices in (device_list(1), device_list(3)):
        net = gluon.nn.Dense(1, in_units=3)
        net.initialize(init.Constant(0.5), ctx=devices)
        trainer = make(trainable(net), 'sgd', {'learning_rate': 0.1})
        for param in trainable(net):
            param.grad_req = 'add'
        rng = numpy.random.default_rng(1)
        for rows in (12, 1, 6) * 2:
            X = np.array(rng.normal(size=(rows, 3)), dtype='float32')
            X_shards, y_shards = split_batch(X, np.zeros(rows), devices)
            with autograd.record():
                ls = [(net(X_shard)[:, 0] - y_shard) ** 2 for X_shard, y_shard in zip(X_shards, y_shards)]
            autograd.backward(ls)
            prepare_idle_devices(net, X, devices)
            if rows == 6:
                trainer.step(19)
                for param in trainable(net):
                    for gradient in param.list_grad():
                        gradient[:] = 0
        results.append([replicas[0] for replicas in values(net)])
    for one, several in zip(*results):
        numpy.testing.assert_allclose(several, one, rtol=1e-5)  # float32 sums of 19 rows


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 exports in another format')
@pytest.mark.parametrize('make', WAYS)
def test_a_network_from_a_file(make, devices, tmp_path):
    """A SymbolBlock has parameters without shapes, and mx.nd arrays."""
    net = gluon.nn.Dense(2)
    net.initialize(ctx=devices)
    net.hybridize()
    X = np.ones((4, 3), ctx=devices[0])
    expected = net(X).asnumpy()
    net.export(str(tmp_path / 'net'))
    nets = [gluon.SymbolBlock.imports(f'{tmp_path}/net-symbol.json', ['data'], f'{tmp_path}/net-0000.params',
                                      ctx=devices) for _ in range(2)]
    trainer = make(trainable(nets[0]), 'sgd', {'learning_rate': 0.1})
    assert (nets[0](X).asnumpy() == expected).all()
    for _ in range(2):
        X_shards, y_shards = split_batch(np.ones((4, 3)), np.zeros(4), devices)
        with autograd.record():
            ls = [nets[0](X_shard)[:, 0] - y_shard for X_shard, y_shard in zip(X_shards, y_shards)]
        autograd.backward(ls)
        prepare_idle_devices(nets[0], np.ones((4, 3)), devices)
        trainer.step(4)
    # the gradient of column 0 is 1 for each weight and the bias; two steps of 0.1
    numpy.testing.assert_allclose(nets[0](X).asnumpy(), expected - [[0.8, 0]], rtol=1e-5, atol=1e-6)
    checkpoint.save(tmp_path / 'saved', nets[0])
    checkpoint.load(tmp_path / 'saved', nets[1])
    assert (nets[1](X).asnumpy() == nets[0](X).asnumpy()).all()


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no sparse gradients')
def test_sparse_gradients_on_a_device_without_rows(device_list):
    """Rows of an earlier batch, which would be moved by their momentum, are no longer in its gradient."""
    results = []
    for devices in (device_list(1), device_list(2)):
        with semantics_of(mx.nd.ones(1)):
            net = gluon.nn.Embedding(3, 2, sparse_grad=True)
            net.initialize(init.One(), ctx=devices)
            trainer = gluon.Trainer(trainable(net), 'sgd', {'learning_rate': 0.1, 'momentum': 0.9})
            for batch in ([0, 1], [2]):
                shards = [batch[i::len(devices)] for i in range(min(len(devices), len(batch)))]
                with autograd.record():
                    ls = [net(mx.nd.array(shard, ctx=device)) ** 2 for shard, device in zip(shards, devices)]
                autograd.backward(ls)
                prepare_idle_devices(net, mx.nd.array(batch), devices)
                trainer.step(1)
            results += [w.asnumpy().tolist() for w in net.weight.list_data()]
    assert results[0] == results[1] == results[2]


def test_the_trainer_of_a_process_alone(devices):
    """It is Gluon's, and updates on each device, so that gradients can be clipped between sum and update."""
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize(ctx=devices)
    trainer = Workers().trainer(trainable(net), 'sgd', {'learning_rate': 0.1})
    assert type(trainer) is gluon.Trainer
    with autograd.record():
        ls = [net(np.ones((1, 3), ctx=device)) for device in devices]
    autograd.backward(ls)
    trainer.allreduce_grads()  # raises an error if the key-value store updates
    trainer.update(1)


@pytest.mark.parametrize('as_dict', [False, True])
def test_a_horovod_worker_with_several_devices(as_dict, devices):
    """Only the gradients on the first device would be summed."""
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize(ctx=devices)
    params = net.collect_params() if as_dict else trainable(net)
    with pytest.raises(ValueError, match='is on .*, but Horovod sums the gradients of one device for each worker: '):
        HorovodWorkers.trainer(SimpleNamespace(size=2), params, 'sgd', {})
