"""Gradients on several devices, also on those that get no rows; Trainers that do not fit their devices."""
from functools import partial

import numpy
import pytest
from equals_one import equals_one, sequential, started, take_gradients
from refused import refused
from semantics import KINDS, array, semantics
from trainers import on_each_device, trainable

from gluon_mgpu import concise
from gluon_mgpu.base.nested import leaves, refill
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, autograd, gluon, mx, np, npx
from gluon_mgpu.networks.loss import cross_entropy
from gluon_mgpu.parallel import step
from gluon_mgpu.parallel.split import split_and_load
from gluon_mgpu.training.parameters import unchanged_names


def test_a_batch_without_rows(device_list):
    """All devices add 0; no statistics change."""
    devices, net = device_list(2), gluon.nn.BatchNorm(in_channels=1)
    net.initialize(ctx=devices)
    for i, device in enumerate(devices):
        net.running_mean.data(device)[:] = i
        net.gamma.grad(device)[:] = 7
    step.prepare_idle_devices(net, np.zeros((0, 1)), devices)
    assert [gradient.item() for gradient in net.gamma.list_grad()] == [0, 0]
    assert [net.running_mean.data(device).item() for device in devices] == [0, 1]


@pytest.mark.parametrize('of', [lambda net: net, lambda net: net.collect_params(), trainable])
def test_parameters_instead_of_a_network(of, device_list):
    """As for a loss with parameters of its own."""
    devices, net = device_list(2), gluon.nn.Dense(2, in_units=1)
    net.initialize(ctx=devices)
    for gradient in step.gradients(of(net), devices):
        gradient[:] = 7
    step.prepare_idle_devices(of(net), np.zeros((1, 1)), devices)
    assert [gradient.sum().item() for gradient in step.gradients(of(net), devices)] == [14, 14, 0, 0]
    assert [gradient.ctx for gradient in step.gradients(of(net), devices)] == [devices[0]] * 2 + [devices[1]] * 2


def test_arrays_are_refused_in_every_batch(devices):
    """Not only in one with fewer rows than devices, after an epoch."""
    with pytest.raises(ValueError, match=r'^prepare_idle_devices needs a Gluon network .* array.grad\[:\] = 0$'):
        step.prepare_idle_devices([[np.ones(1)], [np.ones(1)]], np.ones(8), devices[:2])


def test_batch_norm_with_a_trainer_of_gluon(device_list):
    """Each device gets the same rows, so that its statistics are those of one device."""
    def program(devices, rng):
        net = started(sequential(gluon.nn.BatchNorm(in_channels=2), gluon.nn.Dense(2, in_units=2)), devices, rng)
        trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})
        for _ in range(3):  # from the second step on, the key-value store updates
            X, y = numpy.array([[0.0, 1], [2, 4]] * 2), numpy.array([0, 1] * 2)
            concise.train_batch(X, y, net, cross_entropy, trainer, devices)
            yield net

    equals_one(program, device_list(2))


def test_statistics_of_a_layer_that_is_never_used(device_list):
    devices = device_list(2)
    net = sequential(gluon.nn.Dense(2, in_units=1))
    net.unused = gluon.nn.BatchNorm()  # its shape stays unknown
    net.initialize(ctx=devices)
    step.prepare_idle_devices(net, np.zeros((1, 1)), devices)
    assert net[0].weight.grad(devices[1]).tolist() == [[0], [0]]


# Several inputs, in both semantics

class TwoInputs(HybridBlock):
    """A network of two arguments, or of a list or tuple of two arrays."""

    def __init__(self, has_norm):
        super().__init__()
        self.embedding, self.dense = gluon.nn.Embedding(4, 3), gluon.nn.Dense(2, in_units=3)
        self.norm = gluon.nn.BatchNorm(in_channels=3) if has_norm else gluon.nn.Activation('tanh')

    def forward(self, X, z=None):
        X, z = X if z is None else (X, z)
        return self.dense(self.norm(X) + self.embedding(z))


# The batch that a program makes of two inputs, and its call of the network
BATCHES = {'list': (lambda X, z: [X, z], lambda net, X: net(X)),
           'tuple': (lambda X, z: (X, z), lambda net, X: net(X)),
           'arguments': (lambda X, z: (X, z), lambda net, X: net(*X)),
           'columns': (lambda X, z: numpy.concatenate([X, z[:, None]], axis=1), lambda net, X: net(X[:, :3], X[:, 3]))}


def train_two_inputs(devices, rng, batch, all_rows):
    """Train on batches of these rows."""
    (join, call), net = BATCHES[batch], started(TwoInputs(has_norm=max(all_rows) == 1), devices, rng)
    trainer = on_each_device(trainable(net), 'sgd', {'learning_rate': 0.1})
    for rows in all_rows:
        X = join(rng.normal(size=(rows, 3)), rng.integers(0, 4, rows))
        X = refill(X, (array(part, dtype='float64') for part in leaves(X)))
        y = array(rng.normal(size=(rows, 2)), dtype='float64')
        take_gradients(lambda X, y: ((call(net, X) - y) ** 2).sum(axis=1), [net], X, y, devices)
        trainer.step(rows)
        yield net


@pytest.mark.parametrize('all_rows', [(7, 1, 5), (1, 1, 1)], ids=['', 'batch norm'])
@pytest.mark.parametrize('batch', BATCHES)
@pytest.mark.parametrize('kind', KINDS)
def test_batches_of_several_inputs(kind, batch, all_rows, device_list):
    """Some devices have no rows in some batches, and then the statistics of the first."""
    with semantics(kind):
        equals_one(partial(train_two_inputs, batch=batch, all_rows=all_rows), device_list(3))


@pytest.mark.parametrize('batch_axis', [1, -2])
@pytest.mark.parametrize('k', [1, 2, 3])
def test_time_major_batches(k, batch_axis, device_list):
    """Of 4 time steps, with 5 rows and with 1."""
    def program(devices, rng):
        net = started(gluon.rnn.GRU(2), devices, rng, (1, 3))
        trainer = gluon.Trainer(trainable(net), 'sgd', {'learning_rate': 0.1})
        for rows in (5, 1):
            X = rng.normal(size=(4, rows, 3))
            with autograd.record():
                ls = [net(X_shard).sum() for X_shard in split_and_load(X, devices, batch_axis=batch_axis)]
            autograd.backward(ls)
            step.prepare_idle_devices(net, [X], devices, batch_axis=batch_axis)
            trainer.step(rows)
            yield net

    equals_one(program, device_list(k))


# Trainers that do not fit

def small_net(devices):
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize(ctx=devices)
    return net


@pytest.mark.parametrize('make', [gluon.Trainer, on_each_device])
@pytest.mark.parametrize('again', ['reset_ctx', 'initialize'])
@pytest.mark.parametrize('before, after', [(1, 2), (3, 2)])
def test_a_trainer_that_is_older_than_the_devices(make, again, before, after, device_list):
    devices = device_list(3)
    net = small_net(devices[:before])
    trainer = make(trainable(net), 'sgd', {'learning_rate': 0.1, 'momentum': 0.9})
    step.check_trainer(trainer)
    if again == 'reset_ctx':
        net.collect_params().reset_ctx(devices[:after]) if MXNET_MAJOR < 2 else net.reset_ctx(devices[:after])
    else:
        net.initialize(ctx=devices[:after], force_reinit=True)
    with pytest.raises(ValueError, match=r'is on \[.*\], but the step is on \[.*\]: use the same devices'):
        step.check_trainer(trainer)
    with pytest.raises(ValueError, match=r'^the Trainer was made for \[.*\], but the step is on'):
        step.check_trainer(trainer, devices[:after])


def test_a_trainer_that_sums_nothing(devices):
    net = small_net(devices)
    trainer = gluon.Trainer(trainable(net), 'sgd', kvstore=None)
    line = refused(step.check_trainer, trainer, devices)
    assert line.startswith('the Trainer was made with kvstore=None and sums no gradients: leave out')
    step.check_trainer(trainer)  # a loop may sum them by hand
    net.initialize(ctx=devices[:1], force_reinit=True)
    step.check_trainer(gluon.Trainer(trainable(net), 'sgd', kvstore=None), devices[:1])


def test_an_unused_layer_on_a_device_without_rows(device_list):
    """`ignore_stale_grad` leaves a layer alone that no device has used; otherwise the step is refused."""
    def program(devices, rng):
        net = started(sequential(gluon.nn.Dense(3, in_units=3), gluon.nn.Dense(2, in_units=3)), devices, rng)
        trainer = on_each_device(trainable(net), 'sgd', {'learning_rate': 0.1})
        for used, rows in ((net, 4), (net[0], 1)):  # in the second batch, the gradients of the second layer are old
            take_gradients(lambda X, y, used=used: used(X), [net], numpy.ones((rows, 3)), np.zeros(rows), devices)
            trainer.step(rows, ignore_stale_grad=True)
            yield net

    equals_one(program, device_list(2))


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no such layer')
def test_gradients_of_row_sparse_parameters(device_list):
    with semantics('nd'):
        devices = device_list(2)
        net = gluon.contrib.nn.SparseEmbedding(5, 2)
        net.initialize(ctx=devices)
        gluon.Trainer(net.collect_params(), 'sgd')  # the layer gets its rows from it
        with autograd.record():
            l = net(mx.nd.array([1], ctx=devices[0])).sum()
        l.backward()
        step.prepare_idle_devices(net, mx.nd.ones(1), devices)
        assert [array._fresh_grad for array in net.weight._data] == [True, True]


def test_statistics_of_a_symbol_block(device_list, tmp_path, monkeypatch):
    """MXNet does not mark them; a device without rows would keep old ones."""
    monkeypatch.chdir(tmp_path)
    devices, net = device_list(2), sequential(gluon.nn.Dense(2), gluon.nn.BatchNorm())
    net.initialize(ctx=devices)
    net.hybridize()
    X = np.array([[1.0, 2.0]], ctx=devices[0])
    net(X)
    net.export('net')
    net = gluon.SymbolBlock.imports('net-symbol.json', ['data'], 'net-0000.params', ctx=devices)
    with autograd.record():
        l = net(X).sum()
    l.backward()
    step.prepare_idle_devices(net, X, devices)
    npx.waitall()
    mean, = (param for name, param in net.collect_params().items() if 'running_mean' in name)
    first, second = (array.asnumpy().tolist() for array in mean.list_data())
    assert first == second != [0, 0]
    assert unchanged_names(net) == set()


def test_adam_on_devices_of_one_number(devices, monkeypatch):
    """It counts updates by the number, so that each device would take another step. SGD counts nothing."""
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize(ctx=devices)
    monkeypatch.setattr(step, 'trainer_devices', lambda trainer: [mx.cpu(0), mx.gpu(0)])
    monkeypatch.setattr(step, 'check_same', lambda *args: None)
    for name, on_kvstore in (('sgd', False), ('adam', None)):
        step.check_trainer(gluon.Trainer(trainable(net), name, update_on_kvstore=on_kvstore))
    line = refused(step.check_trainer, on_each_device(trainable(net), 'adam'))
    assert 'cpu(0), gpu(0)]: Adam counts updates by the number of a device' in line
