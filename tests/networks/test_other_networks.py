"""Networks as other people write them train with batch norm over all devices as in plain Gluon on one."""
import numpy
import pytest
from trainers import trainable

from gluon_mgpu import concise
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, autograd, gluon, init, mx, np, npx
from gluon_mgpu.networks.hybridized import hybridized
from gluon_mgpu.parallel.split import split_and_load
from gluon_mgpu.parallel.sync_batch_norm.synchronized import SyncBatchNorm
from gluon_mgpu.training.parameters import by_name
from gluon_mgpu.training.run import Run

nn = gluon.nn


def sequential(*layers):
    net = nn.HybridSequential()
    net.add(*layers)
    return net


class PreActivation(HybridBlock):
    """Batch norm and relu before each convolution; the sum uses what was there before the batch norm."""

    def __init__(self):
        super().__init__()
        self.bn1, self.bn2, self.relu = nn.BatchNorm(), nn.BatchNorm(), nn.Activation('relu')
        self.conv1, self.conv2 = nn.Conv2D(4, 3, padding=1), nn.Conv2D(4, 3, padding=1)

    def forward(self, X):
        return X + self.conv2(self.relu(self.bn2(self.conv1(self.relu(self.bn1(X))))))


class Doubled(HybridBlock):
    """Uses the output of a layer twice, before and after other layers."""

    def __init__(self):
        super().__init__()
        self.bn, self.conv1, self.conv2 = nn.BatchNorm(), nn.Conv2D(4, 1), nn.Conv2D(4, 1)

    def forward(self, X):
        Y = self.conv1(self.bn(X))
        return Y * X + self.conv2(Y * X) + X


class SqueezeExcitation(HybridBlock):
    def __init__(self):
        super().__init__()
        self.scale = sequential(nn.GlobalAvgPool2D(), nn.Conv2D(2, 1, activation='relu'),
                                nn.Conv2D(4, 1, activation='sigmoid'))

    def forward(self, X):
        return X * self.scale(X)


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


def stem():
    return nn.Conv2D(4, 3, padding=1)


NETWORKS = {
    'pre-activation': lambda: [stem(), PreActivation(), nn.BatchNorm(), nn.Activation('relu'), nn.Dense(3)],
    'used twice': lambda: [stem(), Doubled(), nn.Dense(3)],
    'squeeze and excitation': lambda: [stem(), nn.BatchNorm(), nn.Activation('relu'), SqueezeExcitation(), nn.Dense(3)],
    'by mode': lambda: [stem(), nn.BatchNorm(), ByMode(), nn.Dense(3)],
    'shared': lambda: [stem(), Shared(), nn.Dense(3)],
    'faces': lambda: [stem(), nn.BatchNorm(), nn.PReLU(in_channels=4), nn.Conv2D(5, 3), nn.PReLU(), nn.BatchNorm(),
                      nn.Dense(3)],
    'generator': lambda: [nn.Conv2DTranspose(6, 4, 2, 1), nn.BatchNorm(), nn.Activation('relu'),
                          nn.Conv2DTranspose(2, 4, 2, 1, use_bias=False), nn.Activation('tanh')],
    'no batch norm': lambda: [stem(), nn.LeakyReLU(0.2), nn.Dense(3)],
    'normalized input': lambda: [nn.BatchNorm(scale=False), stem(), nn.Swish(), nn.LayerNorm(), nn.Dense(3)],
}


def make(layers, devices, seed, frozen=()):
    """Return a network with float64 parameters from a seed; those whose names are in `frozen` are not trained."""
    net = sequential(*layers())
    net.initialize(init.Xavier(), ctx=devices)
    with autograd.train_mode():  # infer all shapes
        for device in devices:
            net(np.zeros((1, 2, 6, 6), ctx=device))
    net.cast('float64')
    rng = numpy.random.default_rng(seed)
    for name, param in by_name(net).items():
        if param.grad_req != 'null':
            param.set_data(np.array(rng.normal(scale=0.5, size=param.shape), dtype='float64'))
            param.grad_req = 'null' if name in frozen else 'write'
    return net


def step(net, wrap, X, devices, input_gradient=True):
    """Return what a step on the devices computes: outputs, sums of gradients, running statistics, then predictions."""
    X_shards = split_and_load(np.array(X, dtype='float64'), devices)
    if input_gradient:
        for X_shard in X_shards:
            X_shard.attach_grad()
    fast = wrap(net)
    with autograd.record():
        Y_shards = fast.forward(X_shards) if wrap is SyncBatchNorm else [fast(X_shard) for X_shard in X_shards]
        ls = [(Y ** 2 + Y).sum() for Y in Y_shards]
    (fast.backward if wrap is SyncBatchNorm else autograd.backward)(ls)
    npx.waitall()
    found = {'Y': numpy.concatenate([Y.asnumpy() for Y in Y_shards])}
    if input_gradient:
        found['X'] = numpy.concatenate([X_shard.grad.asnumpy() for X_shard in X_shards])
    for name, param in by_name(net).items():
        if param.grad_req != 'null':
            found[f'gradient of {name}'] = sum(grad.asnumpy() for grad in param.list_grad()[:len(X_shards)])
        elif 'running' in name:
            found[name] = param.list_data()[0].asnumpy()
    return {**found, 'prediction': fast(X_shards[0]).asnumpy()[:1]}


def compare(found, expected):
    for name, array in expected.items():
        # float64; MXNet's batch norm has float32 momentum
        numpy.testing.assert_allclose(found[name], array, rtol=1e-6, atol=1e-8 * (1 + abs(array).max()), err_msg=name)


@pytest.mark.parametrize('name', NETWORKS)
def test_a_step_equals_plain_gluon(name, device_list, seed):
    """On one device and on three."""
    X = numpy.random.default_rng(seed).normal(size=(7, 2, 6, 6))
    expected = step(make(NETWORKS[name], device_list(1), seed), lambda net: net, X, device_list(1))
    for k in (1, 3):
        compare(step(make(NETWORKS[name], device_list(k), seed), SyncBatchNorm, X, device_list(k)), expected)


class Beside(HybridBlock):
    """The input goes through a batch norm, and through a layer beside it."""

    def __init__(self, branch):
        super().__init__()
        self.branch, self.conv, self.bn = branch, nn.Conv2D(2, 1, use_bias=False), nn.BatchNorm()

    def forward(self, X):
        return self.branch(X) + self.bn(self.conv(X))


@pytest.mark.parametrize(('branch', 'frozen'), [
    (lambda: nn.Activation('relu'), ()), (lambda: nn.Conv2D(2, 1), ('0.conv.weight', '0.bn.gamma', '0.bn.beta'))])
def test_a_branch_beside_the_first_batch_norm(branch, frozen, device_list, seed):
    """The gradient goes only through the batch norm, or only beside it, where it does not change the statistics."""
    def layers():
        return [Beside(branch()), nn.Dense(3)]
    X = numpy.random.default_rng(seed).normal(size=(7, 2, 6, 6))
    expected = step(make(layers, device_list(1), seed, frozen), lambda net: net, X,
                    device_list(1), input_gradient=False)
    for k in (1, 3):
        net = make(layers, device_list(k), seed, frozen)
        compare(step(net, SyncBatchNorm, X, device_list(k), input_gradient=False), expected)


@pytest.mark.parametrize('sync_batch_norm', [False, True])
def test_transposed_convolutions_in_float32(sync_batch_norm, device_list, seed):
    """oneDNN computes them, and cannot write their gradients into any memory."""
    def train(k):
        net = sequential(nn.Conv2DTranspose(4, 4, 2, 1, use_bias=False), nn.BatchNorm(), nn.Activation('relu'),
                         nn.Conv2DTranspose(2, 4, 2, 1), nn.Dense(3))
        run = Run(3, quiet=True)
        concise.train(k, 6, 0.1, net=net, data=(data, data), run=run, seed=seed, sync_batch_norm=sync_batch_norm,
                      devices=device_list(k))
        return [epoch.loss for epoch in run.history]
    rng = numpy.random.default_rng(seed)
    data = [(np.array(rng.normal(size=(6, 2, 4, 4)), dtype='float32'), np.array([0, 1, 2, 0, 1, 2]))] * 2
    losses = train(2)
    assert losses[-1] < losses[0]
    if sync_batch_norm:
        numpy.testing.assert_allclose(losses, train(1), rtol=1e-4)  # float32; batch norm divides by small deviations


def test_a_branch_for_training(devices):
    @hybridized
    def by_mode(X):
        return X * 2 if autograd.is_training() else X

    X = np.ones(1, ctx=devices[0])
    X.attach_grad()
    for _ in range(2):
        assert by_mode(X).item() == 1
        with autograd.record():
            Y = by_mode(X)
        Y.backward()
        assert (Y.item(), X.grad.item()) == (2, 2)
        with autograd.record(train_mode=False):
            assert by_mode(X).item() == 1
        with autograd.train_mode():
            assert by_mode(X).item() == 2


def test_a_dense_layer_of_which_only_the_bias_is_trained(device_list, seed):
    """Plain MXNet leaves the gradient of the bias as it was in memory; ours is the true one."""
    devices = device_list(1)
    X, layers = numpy.random.default_rng(seed).normal(size=(5, 2, 6, 6)), lambda: [stem(), nn.BatchNorm(), nn.Dense(3)]
    expected = step(make(layers, devices, seed), lambda net: net, X, devices)
    del expected['gradient of 2.weight']
    compare(step(make(layers, devices, seed, frozen=['2.weight']), SyncBatchNorm, X, devices), expected)


def test_a_function_with_a_frozen_weight(devices):
    @hybridized
    def dense(X, W, b):
        return npx.fully_connected(X, W, b, num_hidden=2)

    X, W, b = np.ones((4, 3), ctx=devices[0]), np.ones((2, 3), ctx=devices[0]), np.ones(2, ctx=devices[0])
    b.attach_grad()
    with autograd.record():
        Y = dense(X, W, b)
    Y.backward()
    assert b.grad.tolist() == [4, 4]


class AutoRec(HybridBlock):
    """Shows only the known ratings in training (D2L 21.4)."""

    def __init__(self):
        super().__init__()
        self.encoder, self.dropout, self.decoder = nn.Dense(3, activation='sigmoid'), nn.Dropout(0.0), nn.Dense(5)

    def forward(self, X):
        Y = self.decoder(self.dropout(self.encoder(X)))
        return Y * X if autograd.is_training() else Y


def test_autorec(devices, seed):
    net = AutoRec()
    net.initialize(init.Normal(1), ctx=devices)
    X = np.array(numpy.random.default_rng(seed).integers(0, 2, (4, 5)), dtype='float32', ctx=devices[1])
    synchronized, gradients = SyncBatchNorm(net), []
    for forward in (net, lambda X: synchronized.forward([X])[0]):
        with autograd.record():
            Y = forward(X)
        (Y if forward is net else synchronized).backward(*[] if forward is net else [[Y]])
        gradients.append([Y.asnumpy(), *(param.grad(devices[1]).asnumpy() for param in trainable(net))])
    for expected, found in zip(*gradients):
        numpy.testing.assert_allclose(found, expected, rtol=1e-5)  # float32
    assert abs(synchronized(X) - net(X)).max() < 1e-6


@hybridized
def mlp_with_dropout(X, params):
    """D2L's DropoutMLPScratch, with MXNet's dropout: only in training."""
    W1, W2 = params
    H = npx.relu(np.dot(X, W1))
    return np.dot(npx.dropout(H, p=0.5) if autograd.is_training() else H, W2)


def test_dropout_in_a_function(devices):
    X, *params = (np.ones(shape, ctx=devices[0]) for shape in ((1, 4), (4, 1000), (1000, 1)))
    assert mlp_with_dropout(X, params).item() == 4000
    with autograd.record():
        found = mlp_with_dropout(X, params).item()
    assert found != 4000 and abs(found - 4000) < 1500  # ten standard deviations of the binomial distribution


def test_a_gan_pair(device_list, seed):
    """The generator, with synchronized batch norm, is trained through a plain discriminator."""
    layers = NETWORKS['generator']
    found = []
    for wrap, k in ((lambda net: net, 1), (SyncBatchNorm, 2)):
        devices = device_list(k)
        generator, discriminator = make(layers, devices, seed), sequential(nn.Conv2D(3, 5), nn.Dense(1))
        discriminator.initialize(init.Constant(0.01), ctx=devices)
        discriminator.cast('float64')
        Z = split_and_load(np.array(numpy.random.default_rng(seed).normal(size=(5, 2, 6, 6)), dtype='float64'), devices)
        fast = wrap(generator)
        with autograd.record():
            images = fast.forward(Z) if k > 1 else [fast(Z[0])]
            ls = [(discriminator(image) ** 2).sum() for image in images]
        (fast.backward if k > 1 else autograd.backward)(ls)
        found.append({f'{i} {name}': sum(grad.asnumpy() for grad in param.list_grad())
                      for i, net in enumerate((generator, discriminator))
                      for name, param in by_name(net).items() if param.grad_req != 'null'})
    compare(found[1], found[0])


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no prefixes')
def test_names_that_are_not_ascii(devices):
    """On MXNet 1.9, those of parameters begin with the `prefix` of the user's layers."""
    net = sequential(nn.Dense(3, in_units=2, prefix='größe_'), nn.BatchNorm(in_channels=3, prefix='統計_'))
    net.initialize(init.Normal(1), ctx=devices)
    X = np.array([[1, 2], [3, 5]], ctx=devices[0])
    with autograd.record():
        expected, [Y] = net(X), SyncBatchNorm(net).forward([X])
    assert abs(Y - expected).max() < 1e-5  # float32


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='other messages')
@pytest.mark.filterwarnings('ignore:.*unregistered container')
def test_what_cannot_be_traced_is_refused_in_one_line(devices):
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
        with autograd.record(), pytest.raises(ValueError, match=message) as error:
            SyncBatchNorm(net).forward([np.ones((5, 2, 2), ctx=devices[0])])
        assert len(str(error.value).splitlines()) == 1


def layer(block, shape=(2, 3, 8, 8)):
    block.initialize()
    return block(np.ones(shape))


def cell(kind):
    block = kind(4)
    block.initialize()
    return block(np.ones((2, 3)), block.begin_state(2))


def model(name):
    return layer(gluon.model_zoo.vision.get_model(name), (1, 3, 299, 299))


def metric(kind):
    kind.update([np.zeros(4)], [np.ones((4, 3))])


def concurrent():
    block = gluon.contrib.nn.HybridConcurrent()
    block.add(nn.Dense(2), nn.Dense(3))
    return layer(block)


ROWS = np.ones((4, 3))


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='of MXNet 1.9')
@pytest.mark.parametrize('call', [
    lambda: layer(nn.GroupNorm(1)), lambda: layer(nn.InstanceNorm()), lambda: layer(nn.ReflectionPad2D(1)), concurrent,
    lambda: layer(gluon.contrib.nn.PixelShuffle2D(2), (1, 4, 3, 3)),
    lambda: layer(nn.Embedding(5, 3, sparse_grad=True), (2,)), lambda: cell(gluon.rnn.LSTMCell),
    lambda: gluon.loss.KLDivLoss()(ROWS, ROWS), lambda: gluon.loss.HuberLoss()(ROWS, ROWS),
    lambda: gluon.loss.HingeLoss()(ROWS, ROWS), lambda: gluon.loss.SquaredHingeLoss()(ROWS, ROWS),
    lambda: gluon.loss.LogisticLoss()(ROWS, ROWS), lambda: gluon.loss.TripletLoss()(ROWS, ROWS, ROWS),
    lambda: gluon.loss.CTCLoss()(np.ones((2, 6, 5)), np.ones((2, 3))),
    lambda: gluon.loss.CosineEmbeddingLoss()(ROWS, ROWS, np.ones(4)), lambda: gluon.loss.PoissonNLLLoss()(ROWS, ROWS),
    lambda: gluon.loss.SDMLLoss()(ROWS, ROWS), lambda: model('squeezenet1.0'), lambda: model('densenet121'),
    lambda: model('mobilenetv2_0.25'), lambda: model('inceptionv3'), lambda: metric(mx.metric.Accuracy()),
    lambda: metric(mx.metric.Loss()), lambda: metric(mx.metric.Perplexity(None)),
    lambda: gluon.utils.clip_global_norm([ROWS], 1.0)])
def test_what_docs_notebooks_says_does_not_run_with_numpy_semantics(call):
    with pytest.raises((TypeError, ValueError, AttributeError)):
        call()
