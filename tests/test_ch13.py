"""`train_batch_ch13` and `train_ch13` on several devices, compared with plain Gluon on one, in float64."""
import re
from functools import partial

import numpy
import pytest
from book_steps import split_batch_multi_inputs
from equals_one import equals_one, sequential, started
from refused import refused
from semantics import semantics
from trainers import on_each_device, trainable

import gluon_mgpu as d2l
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, init, mx, np
from gluon_mgpu.outputs.plot import Animator
from gluon_mgpu.training.parameters import parameters_by_name

nn = gluon.nn
loss = gluon.loss.SoftmaxCrossEntropyLoss()
SGD = {'learning_rate': 0.1, 'momentum': 0.9}
ROWS = [7, 2, 5, 1, 6]


class TwoInputs(nn.Block):
    """A network of the book's kind: a tuple of inputs, and a layer that it does not use."""

    def __init__(self):
        super().__init__()
        self.dense, self.out = nn.Dense(4, in_units=5, activation='tanh'), nn.Dense(3, in_units=4)
        self.unused = nn.Dense(2, in_units=2)

    def forward(self, X):
        A, B = X
        assert len(A)  # on shards without rows, most layers fail
        return self.out(self.dense(A) * self.dense(B))


def batches(rng, rows=ROWS):
    return [(tuple(np.array(rng.normal(size=(n, 5)), dtype='float64') for _ in range(2)),
             np.array(rng.integers(0, 3, n), dtype='int32')) for n in rows]


def prepared(devices, rng, make_trainer=gluon.Trainer):
    net = started(TwoInputs(), devices, rng)
    return net, make_trainer(trainable(net), 'sgd', SGD)


def by_gluon(net, data):
    """Train on one device; yield the sum of the losses and the number of correct rows of each batch."""
    params = [param for name, param in parameters_by_name(net).items() if 'unused' not in name]
    trainer = gluon.Trainer(params, 'sgd', SGD)
    for X, y in data:
        with autograd.record():
            y_hat = net(X)
            l = loss(y_hat, y)
        l.backward()
        trainer.step(len(y))
        yield l.sum().item(), (y_hat.asnumpy().argmax(axis=1) == y.asnumpy()).sum()


def one_by_gluon(devices, rng):
    net = started(TwoInputs(), devices, rng)
    for found in by_gluon(net, batches(rng)):
        yield net, found


@pytest.mark.parametrize('make_trainer', [gluon.Trainer, on_each_device])
@pytest.mark.parametrize('k', [1, 2, 3])
def test_batches_of_any_number_of_rows(k, make_trainer, device_list):
    def program(devices, rng):
        net, trainer = prepared(devices, rng, make_trainer)
        for X, y in batches(rng):
            yield net, d2l.train_batch_ch13(net, X, y, loss, trainer, devices)

    equals_one(program, device_list(k), one_by_gluon, tolerance=1e-6)  # MXNet 2 sums losses in float32


@pytest.mark.parametrize('make_trainer', [gluon.Trainer, on_each_device])
def test_a_layer_that_only_some_batches_use(make_trainer, devices):
    def program(devices, rng):
        net = started(TwoInputs(), devices, rng)
        trainer = make_trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})
        for i, (X, y) in enumerate(batches(rng)):
            layers = net if i % 2 else lambda X, out=net.out: out(X[0][:, :4])  # the second and the fourth use all
            d2l.train_batch_ch13(layers, X, y, loss, trainer, devices)
            yield net

    equals_one(program, devices)


def test_a_function_instead_of_a_network(device_list):
    """Its batch norm, which the Trainer knows, gets statistics on devices without rows as well."""
    def program(devices, rng, of):
        net = sequential(nn.BatchNorm(in_channels=5), nn.Dense(3, in_units=5))
        net.initialize(ctx=devices)
        trainer = gluon.Trainer(net.collect_params(), 'sgd', SGD)
        (X, _), y = batches(rng, [1])[0]
        data = [(X.astype('float32'), y)]
        d2l.train_batch_ch13(of(net), *data[0], loss, trainer, devices)
        yield net
        d2l.train_ch13(of(net), data, data, loss, trainer, 2, devices)
        yield net

    equals_one(partial(program, of=lambda net: net.__call__), device_list(3), one=partial(program, of=lambda net: net))


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no networks of mx.nd')
def test_a_network_of_mx_nd(devices):
    with semantics('nd'):
        net = nn.Dense(2, in_units=1)
        net.initialize(init.Zero(), ctx=devices)
        X, y = mx.nd.ones((3, 1)), mx.nd.array([0, 0, 1])
        # Each row has the loss log 2, and the prediction 0
        assert d2l.train_batch_ch13(net, X, y, loss, on_each_device(trainable(net), 'sgd', SGD), devices) == (
            pytest.approx(3 * numpy.log(2), rel=1e-5), 2)  # in float32


@pytest.mark.parametrize('options', [[], [split_batch_multi_inputs]])
@pytest.mark.parametrize('k', [1, 2, 3])
def test_train_ch13(k, options, device_list, rng, capsys):
    devices = device_list(k)
    train_iter, test_iter = batches(rng), batches(rng)
    one = started(TwoInputs(), devices[:1], numpy.random.default_rng(0))
    net, trainer = prepared(devices, numpy.random.default_rng(0))
    ls, correct = zip(*by_gluon(one, train_iter * 2))
    d2l.train_ch13(net, train_iter, test_iter, loss, trainer, 2, devices, *options)
    first, second, last, speed = capsys.readouterr().out.splitlines()
    test_acc = d2l.evaluate_accuracy_gpu(one, test_iter)
    expected = f'loss {sum(ls[5:]) / 21:.3f}, train acc {sum(correct[5:]) / 21:.3f}, test acc {test_acc:.3f}'
    assert first.startswith(f'epoch 1/2: loss {sum(ls[:5]) / 21:.3f}, test acc ') and last == expected
    assert re.sub(', train acc [^,]*', '', last) in second
    assert speed.endswith(f' examples/sec on {devices}')


def test_three_curves_and_all_devices(devices, rng, monkeypatch, capsys):
    animators, add = [], Animator.add
    monkeypatch.setattr(Animator, 'add', lambda self, x, y: animators.append(self) or add(self, x, y))
    monkeypatch.setattr('gluon_mgpu.devices.lists.try_all_gpus', lambda: devices)
    net, trainer = prepared(devices, rng)
    d2l.train_ch13(net, batches(rng), batches(rng), loss, trainer, 3)
    animator, = set(animators)
    assert animator.X == [[1, 2, 3]] * 3 and animator.Y[0][0] > animator.Y[0][2] > 0
    assert str(devices) in capsys.readouterr().out


def test_mistakes_of_the_caller(device_list, rng):
    devices = device_list(3)
    net, trainer = prepared(devices, rng)
    X, y = batches(rng)[0]
    with pytest.raises(ValueError, match=r'^the Trainer was made for .* but the step is on'):
        d2l.train_batch_ch13(net, X, y, loss, trainer, devices[:2])
    line = refused(d2l.train_ch13, net, [(X, y)], [(X, y)], lambda *args: loss(*args).mean(), trainer, 1, devices)
    assert line.startswith('the loss has 3 values for 7 rows: return one for each row')
    assert 'can be read only once' in refused(d2l.train_ch13, net, iter([(X, y)]), [(X, y)], loss, trainer, 2, devices)


@pytest.mark.parametrize('sizes', [(3,), (2, 1), (0, 2, 1)])
def test_a_split_that_leaves_out_a_device(sizes, device_list, rng):
    """Its gradient would be that of an earlier batch."""
    devices = device_list(3)
    net, trainer = prepared(devices, rng)
    ends = numpy.cumsum(sizes)

    def split_f(X, y, devices):
        return [[array[end - size:end].as_in_ctx(device) for end, size, device in zip(ends, sizes, devices)]
                for array in (X, y)]

    (X, _), y = batches(rng, [3])[0]
    line = refused(d2l.train_batch_ch13, net, X, y, loss, trainer, devices, split_f)
    assert line == 'split_f leaves a device without rows: each of the first 3 must get some'
