"""Networks as other people write them, with synchronized batch norm: k devices take the steps of plain Gluon on one."""
from functools import partial

import numpy
import pytest
from equals_one import equals_one, rows, same, sequential, started, total_gradients
from norms import backward, equals_gluon, refuses, small_net, square
from semantics import KINDS, array, semantics
from slow import slow
from threads import Threads, without_rows
from trainers import on_each_device, trainable

from gluon_mgpu import concise, scratch
from gluon_mgpu.base.nested import leaves
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, autograd, gluon, np, npx
from gluon_mgpu.parallel.split import split_and_load, split_batch
from gluon_mgpu.parallel.step import prepare_idle_devices
from gluon_mgpu.parallel.sync_batch_norm.synchronized import SyncBatchNorm
from gluon_mgpu.parallel.sync_batch_norm.train_batch import train_batch_synchronized
from gluon_mgpu.training.parameters import copies, parameters_by_name
from gluon_mgpu.training.run import Run

nn = gluon.nn
of_mxnet_1 = pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no networks of mx.nd')


class ByMode(HybridBlock):
    """Another branch, with parameters of its own, in training."""

    def __init__(self):
        super().__init__()
        self.always, self.training = nn.Conv2D(4, 1, in_channels=4), nn.Conv2D(4, 1, in_channels=4)

    def forward(self, X):
        return self.always(X) * 2 + self.training(X) if autograd.is_training() else self.always(X)


class Shared(HybridBlock):
    """One layer that is used twice, with a batch norm that is used twice."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2D(4, 3, padding=1), nn.BatchNorm(momentum=0.5)

    def forward(self, X):
        return self.bn(self.conv(self.bn(self.conv(X)))) + X


class Auxiliary(HybridBlock):
    """A head and, as in FCN, an auxiliary head on an earlier layer, which is also an output."""

    def __init__(self):
        super().__init__()
        self.stem, self.body = (nn.Conv2D(4, 3, use_bias=False) for _ in range(2))
        self.bn1, self.bn2 = nn.BatchNorm(), nn.BatchNorm()
        self.head, self.auxiliary = nn.Dense(3), nn.Dense(2)

    def forward(self, X):
        Y = self.bn1(self.stem(X))
        return self.head(self.bn2(self.body(Y))), [self.auxiliary(Y), Y]


class TwoInputs(HybridBlock):
    """Two inputs of other shapes. Returns an output twice, an input, and a list."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Dense(5, use_bias=False), nn.Dense(5, use_bias=False), nn.Dense(3)
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm(), nn.BatchNorm(), nn.BatchNorm()

    def forward(self, X, Z):
        Y = self.head(self.bn1(self.first(X) + self.second(Z))) * self.bn2(self.second(Z)).sum(axis=1, keepdims=True)
        return [self.bn3(Y), Y, Z, Y]


class Legacy(gluon.HybridBlock):
    """A network of ``mx.nd``, with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.dense = nn.Conv2D(4, 3, use_bias=False), nn.BatchNorm(), nn.Dense(3)
        if MXNET_MAJOR < 2:
            self.weight = self.params.get('weight', shape=(4, 4, 3, 3))

    def hybrid_forward(self, F, X, weight):
        Y = self.bn(self.conv(X))
        Z = F.Convolution(Y, weight, kernel=(3, 3), num_filter=4, no_bias=True)
        return self.dense(F.concat(Z, F.relu(Z), dim=1))


class LegacyResidual(gluon.HybridBlock):
    """The sum of what the layers return and their input."""

    def __init__(self):
        super().__init__()
        self.layers = sequential(nn.Dense(4, in_units=3), nn.BatchNorm(in_channels=4), nn.Dense(3, in_units=4))

    def hybrid_forward(self, F, X):
        return 0.1 * self.layers(X) + X


def legacy_layers():
    return sequential(nn.Conv2D(4, 3, use_bias=False), nn.BatchNorm(), nn.Activation('relu'), nn.MaxPool2D(),
                      nn.Dense(3))


def prefixed():
    """The prefixes become parts of the names of parameters."""
    return sequential(nn.Dense(3, prefix='größe_'), nn.BatchNorm(prefix='統計_'))


def stem():
    return nn.Conv2D(4, 3, padding=1)


LAYERS = {
    'by mode': lambda: [stem(), nn.BatchNorm(), ByMode(), nn.Dense(3)],
    'shared': lambda: [stem(), Shared(), nn.Dense(3)],
    'faces': lambda: [stem(), nn.BatchNorm(), nn.PReLU(in_channels=4), nn.Conv2D(5, 3), nn.PReLU(), nn.BatchNorm(),
                      nn.Dense(3)],
    'generator': lambda: [nn.Conv2DTranspose(6, 4, 2, 1), nn.BatchNorm(), nn.Activation('relu'),
                          nn.Conv2DTranspose(2, 4, 2, 1, use_bias=False), nn.Activation('tanh')],
    'no batch norm': lambda: [stem(), nn.LeakyReLU(0.2), nn.Dense(3)],
    'normalized input': lambda: [nn.BatchNorm(scale=False), stem(), nn.Swish(), nn.LayerNorm(), nn.Dense(3)],
}
NETWORKS = {'auxiliary head': (Auxiliary, [(2, 6, 6)]), 'two inputs': (TwoInputs, [(4,), (3,)]),
            **{name: (lambda layers=layers: sequential(*layers()), [(2, 6, 6)]) for name, layers in LAYERS.items()}}
LEGACY = {'operators of mx.nd': (Legacy, [(2, 8, 8)]), 'layers': (legacy_layers, [(2, 8, 8)]),
          'residual': (LegacyResidual, [(3,)]), 'names that are not ASCII': (prefixed, [(2,)])}


def steps(devices, rng, wrap, network, shapes, losses_of=slice(None), frozen=(), input_gradient=True):
    """Train for three steps on 7, 2 and 5 rows; yield parameters, outputs, gradients of the inputs, and predictions."""
    net = started(network(), devices, rng, *shapes)
    for name, param in parameters_by_name(net).items():
        if name in frozen:
            param.grad_req = 'null'
    trainer, fast = on_each_device(trainable(net), 'sgd', {'learning_rate': 1e-5}), wrap(net)
    for n in (7, 2, 5):
        inputs = [array(rng.normal(size=(n, *shape)), dtype='float64') for shape in shapes]
        shards = [split_and_load(X, devices) for X in inputs]
        for X in leaves(shards) if input_gradient else ():
            X.attach_grad()
        with autograd.record():
            y_hats = fast.forward(*shards)
            ls = [sum((y_hat ** 2 + y_hat).sum() for y_hat in leaves(y_hat)[losses_of]) for y_hat in y_hats]
        fast.backward(ls)
        assert all(type(y_hat) is type(X) for y_hat, X in zip(leaves(y_hats), leaves(shards)))
        prepare_idle_devices(net, inputs, devices)
        trainer.step(1, ignore_stale_grad=True)
        yield [net, *map(rows, zip(*map(leaves, y_hats))),
               *[rows([X.grad for X in on]) for on in shards if input_gradient],
               *[y_hat[:1] for y_hat in leaves(fast(*[on[0] for on in shards]))]]


def check_steps(network, shapes, device_list, **options):
    for k in (1, 3):
        equals_gluon(partial(steps, network=network, shapes=shapes, **options), device_list(k))


@pytest.mark.parametrize('losses_of', [slice(None), slow(slice(1))], ids=['all outputs', 'the first output'])
@pytest.mark.parametrize('name', NETWORKS)
def test_steps_equal_plain_gluon(name, losses_of, device_list):
    check_steps(*NETWORKS[name], device_list, losses_of=losses_of)


class Beside(HybridBlock):
    """The input goes through a batch norm, and through a layer beside it."""

    def __init__(self, branch):
        super().__init__()
        self.branch, self.conv, self.bn = branch, nn.Conv2D(2, 1, use_bias=False), nn.BatchNorm()

    def forward(self, X):
        return self.branch(X) + self.bn(self.conv(X))


@pytest.mark.parametrize(('branch', 'frozen'), [
    (lambda: nn.Activation('relu'), ()), (lambda: nn.Conv2D(2, 1), ('0.conv.weight', '0.bn.gamma', '0.bn.beta'))])
def test_a_branch_beside_the_first_batch_norm(branch, frozen, device_list):
    """The gradient goes only through the batch norm, or only beside it, where it does not change the statistics."""
    check_steps(lambda: sequential(Beside(branch()), nn.Dense(3)), [(2, 6, 6)], device_list, frozen=frozen,
                input_gradient=False)


@pytest.mark.parametrize('num_frozen', [1, 3, 5])  # before the first batch norm, between two, before the last layer
def test_frozen_layers(num_frozen, device_list):
    frozen = [f'{i}.{name}' for i in range(num_frozen) for name in ('weight', 'bias', 'gamma', 'beta')]
    check_steps(small_net, [(1, 12, 12)], device_list, frozen=frozen, input_gradient=False)


def test_a_dense_layer_of_which_only_the_bias_is_trained(device_list, rng):
    """Plain MXNet leaves its gradient as it was in memory. That of sum(y) is the number of rows."""
    device, = device_list(1)
    net = started(sequential(nn.BatchNorm(), nn.Dense(3)), [device], rng, (2,))
    net[1].weight.grad_req = 'null'
    backward(SyncBatchNorm(net), [np.ones((5, 2), dtype='float64', ctx=device)])
    assert net[1].bias.grad(device).tolist() == [5, 5, 5]


def test_transposed_convolutions_in_float32(device_list, rng):
    """oneDNN computes them, and cannot write their gradients into any memory."""
    def train(k):
        net = sequential(nn.Conv2DTranspose(4, 4, 2, 1, use_bias=False), nn.BatchNorm(), nn.Activation('relu'),
                         nn.Conv2DTranspose(2, 4, 2, 1), nn.Dense(3))
        run = Run(3, quiet=True)
        concise.train(k, 6, 0.1, data=(data, data), run=run, devices=device_list(k), net=SyncBatchNorm(net),
                      train_batch=train_batch_synchronized)
        return [epoch.loss for epoch in run.history]

    data = [(np.array(rng.normal(size=(6, 2, 4, 4)), dtype='float32'), np.array([0, 1, 2, 0, 1, 2]))] * 2
    losses = train(2)
    assert losses[-1] < losses[0]
    numpy.testing.assert_allclose(losses, train(1), rtol=1e-4)  # float32; batch norm divides by small deviations


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='other messages')
@pytest.mark.filterwarnings('ignore:.*unregistered container')
def test_what_cannot_be_traced(devices):
    class PlainList(HybridBlock):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Dense(3, in_units=2)]
            self.layers[0].initialize(ctx=devices)

        def forward(self, X):
            return self.layers[0](X)

    class Recurrent(HybridBlock):
        def __init__(self):
            super().__init__()
            self.rnn = gluon.rnn.LSTM(4)

        def forward(self, X):
            return self.rnn(X)

    for net, message in ((PlainList(), 'which is not among its parameters: make each layer an attribute'),
                         (Recurrent(), r'^Recurrent cannot be traced \(Error in operator')):
        net.initialize(ctx=devices)
        refuses(SyncBatchNorm(net), message, [np.ones((5, 2, 2), ctx=devices[0])])


@of_mxnet_1
@pytest.mark.parametrize('input_gradient', [True, False])
@pytest.mark.parametrize('name', LEGACY)
def test_networks_of_mx_nd(name, input_gradient, device_list):
    with semantics('nd'):
        check_steps(*LEGACY[name], device_list, input_gradient=input_gradient)


def of_mxnet():
    return sequential(nn.Conv2D(4, 3), gluon.contrib.nn.SyncBatchNorm(num_devices=1), nn.Dense(3))


@of_mxnet_1
@pytest.mark.parametrize(('net', 'kind', 'message'), [
    (Legacy, 'np', '^Legacy mixes mx.np and mx.nd: rewrite it with mx.np; or, in your own training loop, call '
                   r'npx.reset_np\(\) before you create it, and pass X.as_nd_ndarray\(\)$'),
    (of_mxnet, 'nd', r'use nn.BatchNorm inside SyncBatchNorm\(net\)')])
def test_networks_and_arrays_that_do_not_fit(net, kind, message, devices):
    """One line, with a remedy that the user has."""
    with semantics(kind):
        net = net()
        net.initialize(ctx=devices)
        refuses(SyncBatchNorm(net), message, [array(numpy.ones((2, 2, 8, 8)), ctx=devices[0])])


def test_shards_of_inputs_on_other_devices(device_list, rng):
    net = started(TwoInputs(), device_list(2), rng, (4,), (3,))
    X, Z = (split_and_load(np.ones((4, n), dtype='float64'), device_list(2)) for n in (4, 3))
    for shards in ((X, Z[::-1]), (X, Z[:1]), ([X[0], X[0]], Z), (X, 3), (X, [Z[0], None]), ([(X[0], X[1])],), ([()],)):
        refuses(SyncBatchNorm(net), 'pass one array per device, and those of other inputs', *shards)


class OptionalInputs(HybridBlock):
    """Takes a list or tuple of two arrays, and a mask or None, as BERT does."""

    def __init__(self):
        super().__init__()
        self.dense, self.norm = nn.Dense(3, in_units=4), nn.BatchNorm(in_channels=3)

    def forward(self, X, mask=None):
        Y = self.norm(self.dense(X[0]) + X[1])
        return Y if mask is None else Y * mask


@pytest.mark.parametrize('kind', [list, tuple])
def test_lists_as_arguments_and_none(kind, device_list):
    """Steps with a mask and with None, in turns."""
    def program(devices, rng, wrap):
        net = started(OptionalInputs(), devices, rng)
        fast = wrap(net)
        for n, has_mask in ((7, True), (7, False), (2, False), (5, True), (7, False)):
            X, b, mask = (np.array(rng.normal(size=(n, size)), dtype='float64') for size in (4, 3, 3))
            X_shards, masks = split_batch(kind([X, b]), mask, devices)
            with autograd.record():
                y_hats = fast.forward(X_shards, masks if has_mask else None)
                ls = [(y_hat ** 2 + y_hat).sum() for y_hat in y_hats]
            fast.backward(ls)
            prepare_idle_devices(net, X, devices)
            yield total_gradients(net), fast((X.as_in_ctx(devices[0]), b.as_in_ctx(devices[0])), None)

    for k in (1, 3):
        equals_gluon(program, device_list(k))


@of_mxnet_1
@pytest.mark.parametrize('trained', [True, False])
def test_row_sparse_gradients(trained, device_list, rng):
    """Synchronized batch norm takes them only of frozen parameters."""
    def program(devices, rng, wrap):
        net = started(sequential(nn.Embedding(5, 3, sparse_grad=True), nn.Dense(2, activation='relu', in_units=3)),
                      devices, rng)
        net[0].weight.grad_req = 'write' if trained else 'null'
        fast, trainer = wrap(net), gluon.Trainer(trainable(net), 'sgd', {'learning_rate': 0.1, 'momentum': 0.9})
        for _ in range(3):
            backward(fast, split_and_load(array([[0], [1], [1], [2]]), devices))
            trainer.step(1)
            yield net

    with semantics('nd'):
        if trained:
            with pytest.raises(ValueError, match='_weight has row_sparse gradients, which cannot be passed through'):
                next(program(device_list(2), rng, SyncBatchNorm))
        else:
            equals_gluon(program, device_list(2))


def train_workers(devices, rng, num_devices, network, shapes):
    """Yield the statistics and gradients of two batches on workers with so many devices; without any, with no rows."""
    ends = numpy.cumsum(num_devices)
    devices_on = [devices[end - n:end] for end, n in zip(ends, num_devices)]
    nets = [started(network(), used or devices[:1], numpy.random.default_rng(0), *shapes) for used in devices_on]
    batches = [[rng.normal(50, 1, size=(n, *shape)) for shape in shapes] for n in (7, 3)]

    def train_worker(workers):
        net, used = SyncBatchNorm(nets[workers.rank], workers), devices_on[workers.rank]
        for batch in batches:
            shards = [[shard for shard in split_and_load(X, devices) if shard.ctx in used] for X in batch]
            backward(net, *shards, loss=lambda y_hats: sum(map(square, leaves(y_hats))))
        npx.waitall()

    Threads.run(len(nets), train_worker)
    yield [same([array for net in nets for array in copies(net)[name]], name) for name in copies(nets[0])]
    yield [sum(gradients) for gradients in zip(*map(total_gradients, nets))]


@pytest.mark.parametrize('num_devices', [[1, 1], pytest.param([2, 0, 1], marks=without_rows)])
@pytest.mark.parametrize('network, shapes', [(small_net, [(1, 12, 12)]), NETWORKS['two inputs']])
def test_workers_equal_one_device(network, shapes, num_devices, device_list):
    program = partial(train_workers, network=network, shapes=shapes)
    equals_one(partial(program, num_devices=num_devices), device_list(sum(num_devices)),
               one=partial(program, num_devices=[1]))


@of_mxnet_1
def test_chapters_after_reset_np(devices):
    """The network of `scratch` is written with mx.np; `concise` takes one of mx.nd."""
    X, y = numpy.random.default_rng(0).random((8, 1, 28, 28)).astype('float32'), numpy.arange(8) % 3
    histories, batches = [], [(X[:4], y[:4]), (X[4:], y[4:])]
    for kind in KINDS[::-1]:
        with semantics(kind):
            net = legacy_layers()
            for chapter, settings in ((scratch, {}), (concise, {'net': net})):
                run = Run(2, quiet=True)
                chapter.train(2, 4, 0.1, devices=devices[:2], data=(batches, batches), run=run, seed=1, **settings)
                histories += [[result.loss for result in run.history]]
    numpy.testing.assert_allclose(histories[2], histories[0], rtol=1e-5)  # float32
    assert numpy.isfinite(histories).all() and histories[1][0] != histories[1][1]  # it starts with other random numbers
