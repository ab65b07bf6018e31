"""Steps with gluon.Trainer: k devices take the steps of one, whichever way it updates, with any optimizer."""
from functools import partial
from types import SimpleNamespace

import numpy
import pytest
from equals_one import equals_one, squared, started, take_gradients
from semantics import semantics
from slow import slow
from trainers import on_each_device, trainable

from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.distributed.horovod_workers import HorovodWorkers
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, gluon, init, mx, np
from gluon_mgpu.parallel.workers import Workers

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


def train(devices, rng, make, optimizer):
    """Train on batches that possibly have fewer rows than devices."""
    net = started(gluon.nn.Dense(4, in_units=6, use_bias=False), devices, rng)
    net.cast('float32')  # some optimizers take nothing else
    settings = {'learning_rate': 0.05, 'wd': 0.01, **SETTINGS.get(optimizer, {})}
    if optimizer is HalfAsOften:
        optimizer, settings = HalfAsOften(**settings), None
    else:
        settings['lr_scheduler'] = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=0.05)
    trainer = make(trainable(net), optimizer, settings)
    for rows in (12, 9, 2, 12):
        X, y = (rng.normal(size=(rows, n)).astype('float32') for n in (6, 4))
        take_gradients(squared(net), [net], X, y, devices)
        trainer.step(12)
        yield net


@pytest.mark.parametrize('make', WAYS)
@pytest.mark.parametrize('k', [slow(2), 3])
@pytest.mark.parametrize('name', [*sorted(mx.optimizer.Optimizer.opt_registry), HalfAsOften])
def test_optimizers(name, k, make, device_list):
    if make is on_each_device and (name in ONLY_BY_THE_STORE or name is HalfAsOften):
        pytest.skip('drifts apart on several devices, as own-project.md says; the check names it')
    equals_one(partial(train, make=make, optimizer=name), device_list(k), tolerance=1e-5)  # float32


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
        take_gradients(lambda X, y: nets[0](X)[:, 0] - y, nets[:1], np.ones((4, 3)), np.zeros(4), devices)
        trainer.step(4)
    # the gradient of column 0 is 1 for each weight and the bias; two steps of 0.1
    numpy.testing.assert_allclose(nets[0](X).asnumpy(), expected - [[0.8, 0]], rtol=1e-5, atol=1e-6)
    checkpoint.save(tmp_path / 'saved', nets[0])
    checkpoint.load(tmp_path / 'saved', nets[1])
    assert (nets[1](X).asnumpy() == nets[0](X).asnumpy()).all()


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no sparse gradients')
def test_sparse_gradients_on_a_device_without_rows(device_list):
    """Rows of an earlier batch, which would be moved by their momentum, are no longer in its gradient."""
    def program(devices, rng):
        net = gluon.nn.Embedding(3, 2, sparse_grad=True)
        net.initialize(init.One(), ctx=devices)
        trainer = gluon.Trainer(trainable(net), 'sgd', {'learning_rate': 0.1, 'momentum': 0.9})
        for batch in ([0, 1], [2]):
            take_gradients(lambda X, y: net(X) ** 2, [net], mx.nd.array(batch), mx.nd.array(batch), devices)
            trainer.step(1)
            yield net

    with semantics('nd'):
        equals_one(program, device_list(2))


def test_the_trainer_of_a_process_alone(devices):
    """It is Gluon's, and updates on each device, so that gradients can be clipped between sum and update."""
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize(ctx=devices)
    trainer = Workers().trainer(trainable(net), 'sgd', {'learning_rate': 0.1})
    assert type(trainer) is gluon.Trainer
    take_gradients(lambda X, y: net(X), [net], np.ones((2, 3)), np.zeros(2), devices)
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
