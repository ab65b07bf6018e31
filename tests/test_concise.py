"""The concise chapter, compared with the scratch chapter; several devices, compared with one."""
import gc
import weakref
from functools import partial

import numpy
import oracle
import pytest
from batches import BATCHES, Batches, of_labels, scratch_lenet
from equals_one import equals_one, same, sequential, started
from refused import refused
from slow import slow

from gluon_mgpu import concise, scratch
from gluon_mgpu.mxnet_setup.compat import gluon, np
from gluon_mgpu.networks.loss import cross_entropy
from gluon_mgpu.networks.static_shapes import StaticSequential
from gluon_mgpu.parallel.accumulation import concise_in_parts
from gluon_mgpu.training.run import Run


def concise_lenet(devices, rng, hybridize=True, num_parts=1):
    """Train LeNet with Gluon on the batches of `scratch_lenet`; yield its parameters in that chapter's form."""
    net = oracle.gluon_lenet(oracle.lenet_params(rng, dtype='float64'), devices)
    if hybridize:
        net.hybridize(static_alloc=True, static_shape=True)
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.2})
    step = concise.train_batch if num_parts == 1 else concise_in_parts(concise.train_batch, num_parts)
    for n in BATCHES:
        X, y = oracle.to_mx(oracle.images(rng, n, dtype='float64'))
        step(X, y, net, cross_entropy, trainer, devices, n)
        yield [same(copies) for copies in zip(*(oracle.gluon_lenet_params(net, device) for device in devices))]


def test_a_worker_without_rows(device_list, rng):
    """A Horovod worker may get no rows of a batch; its own gradient is 0."""
    devices = device_list(1)
    net = started(gluon.nn.Dense(3, in_units=4), devices, rng)
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.2})
    X, y = np.ones((4, 4), dtype='float64'), np.zeros(4)
    concise.train_batch(X, y, net, cross_entropy, trainer, devices)
    before = net.weight.data().asnumpy()
    assert concise.train_batch(X[:0], y[:0], net, cross_entropy, trainer, devices, batch_size=4) == []
    assert (net.weight.data().asnumpy() == before).all()


@pytest.mark.parametrize('k, parts, hybridize', [
    (3, 1, True), (2, 3, True), *[slow(*case) for case in ((1, 1, True), (2, 1, True), (4, 1, True), (3, 1, False),
                                                          (2, 3, False), (1, 64, True), (3, 4, True))]])
def test_k_devices_equal_scratch_on_one_also_in_parts(device_list, k, parts, hybridize):
    equals_one(partial(concise_lenet, hybridize=hybridize, num_parts=parts), device_list(k), one=scratch_lenet,
               tolerance=1e-8)  # Gluon's SGD keeps the learning rate and 1 / rows in float32


@pytest.mark.parametrize('batch_norm, last', [(False, 2), (True, 3)])
def test_train_batch_does_not_wait(batch_norm, last, device_list, rng, no_waiting):
    """Unless a device without rows gets the statistics of batch norm."""
    devices = device_list(3)
    net = small_net()
    if batch_norm:
        net.add(gluon.nn.BatchNorm())
    net.initialize(ctx=devices)
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})
    net.hybridize(static_alloc=True, static_shape=True)
    batches = [(np.array(X), np.array(y)) for X, y in (oracle.images(rng, n) for n in (6, last) * 2)]
    for X, y in batches[:2]:  # initialization and the Trainer block once
        concise.train_batch(X, y, net, cross_entropy, trainer, devices)
    with no_waiting():
        for X, y in batches:
            concise_in_parts(concise.train_batch, 2)(X, y, net, cross_entropy, trainer, devices, 6)
            ls = concise.train_batch(X, y, net, cross_entropy, trainer, devices)
    assert [l.size for l in ls] == [1] * last


def train_on_one_batch(net, devices, X, y):
    batches = Batches([(X, y)])
    concise.train(None, len(X), 0.1, devices=devices, data=(batches, batches), net=net, run=Run(1, quiet=True))


def test_only_the_parameters_of_the_callers_network_change(devices, rng):
    """It can still be called, hybridized, cast and extended."""
    net = small_net()
    X, y = (np.array(a) for a in oracle.images(rng, 4))
    train_on_one_batch(net, devices, X, y)
    expected = net(X)
    net.hybridize()
    assert abs((net(X) - expected).asnumpy()).max() < 1e-5  # float32: a graph may order sums differently
    net.add(gluon.nn.Dense(3))
    net[-1].initialize(ctx=devices)
    assert net(X).shape == (4, 3)
    net.cast('float64')
    assert net(X.astype('float64')).dtype == numpy.float64


def test_a_second_training_of_a_network_with_static_shapes(devices, rng):
    """Its parameters are new arrays, for which Gluon's operator of the first training is not prepared."""
    X, y = oracle.images(rng, 8)
    batches, losses = Batches([(np.array(X), np.array(y))]), []
    for hybridize in (False, True):
        net = small_net(kind=StaticSequential)
        if hybridize:
            net.hybridize(static_alloc=True, static_shape=True)
        for _ in range(2):
            run = Run(3, quiet=True)
            concise.train(2, 8, 0.5, devices=devices, data=(batches, batches), net=net, run=run)
        losses.append([epoch.loss for epoch in run.history])
    assert losses[0][2] < losses[0][0]
    numpy.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)  # float32: a graph may order sums differently


def small_net(num_outputs=10, kind=gluon.nn.HybridSequential):
    return sequential(gluon.nn.Conv2D(4, 5, strides=3, activation='relu'), gluon.nn.Dense(num_outputs), kind=kind)


@pytest.mark.parametrize('chapter, num_epochs', [slow(scratch, 15), (concise, 6)])
def test_train_learns_and_ends_with_the_books_line(chapter, num_epochs, devices, rng, capsys):
    """To distinguish images that are bright at the top or at the bottom."""
    X, y = oracle.bright_halves(rng, 96)
    batches = Batches((np.array(X[i:i + 16]), np.array(y[i:i + 16])) for i in range(0, 96, 16))
    run, net = Run(num_epochs), small_net()
    chapter.train(len(devices), 16, 0.5, devices=devices, data=(batches, batches), run=run,
                  **{'net': net} if chapter is concise else {})
    assert len(run.history) == num_epochs
    assert run.history[-1].loss < run.history[0].loss / 2
    assert run.history[-1].accuracy == 1
    line = capsys.readouterr().out.splitlines()[-1]
    seconds = sum(epoch.seconds for epoch in run.history) / num_epochs
    assert line == f'test acc: 1.00, {seconds:.1f} sec/epoch on {devices}'
    assert chapter is scratch or net[1].weight.list_ctx() == devices  # the caller's network was trained


def test_the_network_of_an_earlier_call_is_freed(devices, rng):
    """`train` does not rely on Python's garbage collector, which counts objects, not megabytes."""
    X, y = (np.array(a) for a in oracle.images(rng, 4))
    networks = []
    gc.disable()
    try:
        for _ in range(2):
            net = small_net()
            networks.append(weakref.ref(net))
            train_on_one_batch(net, devices, X, y)
            del net
    finally:
        gc.enable()
    assert networks[0]() is None


def test_momentum_by_hand(devices):
    """The gradient of the biases is the same in each step, but for the second decimal: one row, tiny rate."""
    batch = np.zeros((1, 1, 28, 28)), np.zeros(1)  # zeros: only the biases learn
    for momentum, steps in ((0, 2), (0.5, 2.5)):
        net = sequential(gluon.nn.Flatten(), gluon.nn.Dense(10))
        concise.train(2, 1, 1e-3, devices=devices, data=(Batches([batch] * 2), Batches([batch])), net=net,
                      run=Run(1, quiet=True), optimizer_params={'momentum': momentum})
        # The rate times the gradient of the first bias: 1 - softmax(0) = 0.9
        assert net[1].bias.data(devices[1])[0].item() == pytest.approx(steps * 0.9e-3, rel=1e-2)


def frozen(net):
    for param in net.collect_params().values():
        param.grad_req = 'null'
    return net


def accumulating(net):
    net[0].weight.grad_req = 'add'
    return net


@pytest.mark.parametrize('make, more, message', [
    (lambda: small_net(kind=gluon.nn.Sequential), {}, 'net is a Sequential: must be a gluon.HybridBlock'),
    (gluon.nn.HybridSequential, {}, 'net has no parameter to train'),
    (lambda: frozen(small_net()), {}, 'net has no parameter to train'),
    (lambda: accumulating(small_net()), {}, "net has parameters with grad_req 'add'"),
    (small_net, {'optimizer_params': {'learning_rate': 0.3}}, 'optimizer_params has a learning_rate, which lr would'),
    (small_net, {'batch_size': 8}, 'batch_size 8, but the training data has batches of 4 rows'),
    (lambda: small_net(9), {}, 'training labels are from 0 to 9, but the network has 9 outputs: ')])
def test_an_invalid_network_keeps_its_weights(devices, make, more, message):
    net = make()
    net.initialize(ctx=devices[0])
    net(np.zeros((1, 1, 28, 28), ctx=devices[0]))
    before = {name: p.data(devices[0]).asnumpy() for name, p in net.collect_params().items()}
    arguments = {'batch_size': 4, 'data': (of_labels(0, 9), of_labels(0)), 'devices': devices, **more}
    assert message in refused(concise.train, 2, lr=0.1, net=net, run=Run(1, quiet=True), **arguments)
    for name, value in before.items():
        assert (net.collect_params()[name].data(devices[0]).asnumpy() == value).all()


def test_train_starts_alike_on_any_number_of_devices(device_list):
    """The same seed gives the same initial parameters."""
    def program(devices, rng):
        net, batches = small_net(), Batches([(np.ones((4, 1, 28, 28)), np.zeros(4))])
        concise.train(None, 4, 1e-30, devices=devices, data=(batches, batches), net=net, run=Run(1, quiet=True), seed=5)
        yield net

    equals_one(program, device_list(3), tolerance=0)
