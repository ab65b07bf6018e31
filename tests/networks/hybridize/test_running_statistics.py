"""The running statistics of batch norm in hybridized networks."""
import numpy
import pytest
from small_networks import hybrid_net

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, autograd, gluon, init, mx, np, npx
from gluon_mgpu.networks.hybridize.block import hybridized
from gluon_mgpu.outputs.onnx_model.graph import semantics_of
from gluon_mgpu.parallel.trainer import trainable


def trained(hybridize, devices, batches):
    """Train a network on the batches, split over the devices; return the losses and the network."""
    npx.random.seed(3)
    net = hybrid_net(devices)
    net(np.ones((1, 4), ctx=devices[0]))
    fast = hybridized(net) if hybridize else net
    loss, losses = gluon.loss.L2Loss(), []
    trainer = gluon.Trainer(trainable(net), 'sgd', {'learning_rate': 0.1})
    for batch in batches:
        ls = []
        with autograd.record():
            for rows, device in zip(numpy.array_split(batch, len(devices)), devices):
                X = np.array(rows, ctx=device)
                ls.append(loss(fast(X), X[:, :2]))
        autograd.backward(ls)
        trainer.step(len(batch))
        losses += [float(l.mean()) for l in ls]
    return losses, net


def test_batch_norm_trains_as_in_a_plain_network(devices, seed):
    """Scale, shift and running statistics are the same on each device, also with smaller batches."""
    rng = numpy.random.default_rng(seed)
    batches = [rng.normal(size=(n, 4)).astype('float32') for n in (8, 8, 5, 8, 6)]
    losses, net = trained(True, devices, batches)
    expected_losses, expected = trained(False, devices, batches)
    # float32, five steps of the same operations
    numpy.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for p, q in zip(net.collect_params().values(), expected.collect_params().values()):
        for a, b in zip(p.list_data(), q.list_data()):
            numpy.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=1e-4, atol=1e-5)
    means = [net[1].running_mean.data(device).asnumpy() for device in devices[:2]]
    assert abs(means[0]).max() > 0 and (means[0] != means[1]).any()  # each device uses its own rows
    X = np.array(batches[0], ctx=devices[0])
    assert abs((hybridized(net)(X) - net(X)).asnumpy()).max() < 1e-6  # uses the running statistics


def test_evaluation_after_training_sees_the_statistics_of_the_last_batch(devices):
    """MXNet's engine would let it start too early. The network is large enough to show that."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(8, 5), gluon.nn.BatchNorm(), gluon.nn.Conv2D(8, 5))
    net.initialize(init.Normal(1), ctx=devices)
    X = np.random.uniform(1, 2, size=(32, 1, 20, 20), ctx=devices[0])
    fast = hybridized(net)
    fast(X)
    for _ in range(3):
        with autograd.record():
            l = fast(X)
        l.backward()
        immediately = fast(X)
        npx.waitall()
        assert (immediately == fast(X)).all()


@pytest.mark.parametrize('order', [lambda f, g: f - g, lambda f, g: g * 2 + f, lambda f, g: f * g])
def test_a_batch_norm_that_is_used_twice(order, devices):
    """Its updates of the statistics, which do not commute, come in the same order as in plain Gluon."""
    class Tower(HybridBlock):
        def __init__(self):
            super().__init__()
            self.norm = gluon.nn.BatchNorm(in_channels=4)

        def forward(self, X, Z):
            return order(self.norm(X), self.norm(Z * 3) + self.norm(X + Z))

    net, found = Tower(), []
    X, Z = (np.random.normal(i, size=(6, 4), ctx=devices[0]) for i in (0, 9))
    for call in (net, hybridized(net)):
        net.initialize(ctx=devices, force_reinit=True)
        for _ in range(3):
            with autograd.record():
                l = call(X, Z)
            l.backward()
        found.append([statistic.data(devices[0]).asnumpy() for statistic in (net.norm.running_mean,
                                                                             net.norm.running_var)])
    numpy.testing.assert_allclose(found[0], found[1], rtol=1e-5)  # float32


class Norm(HybridBlock):
    """One batch norm, used once or on two branches."""

    def __init__(self, uses):
        super().__init__()
        self.norm, self.uses = gluon.nn.BatchNorm(in_channels=2), uses

    def forward(self, X):
        return sum(self.norm(X * (i + 1)) for i in range(self.uses))


def step(net, X):
    with autograd.record():
        out = net(X)
    out.backward()


@pytest.mark.parametrize(('uses', 'is_kept'), [(1, True), (2, False)])
def test_statistics_that_two_operators_write(uses, is_kept, devices):
    block = Norm(uses)
    block.initialize(ctx=devices)
    net = hybridized(block)
    step(net, np.ones((2, 2, 3, 3), ctx=devices[0]))
    graph, = net._graphs.graphs.values()
    assert graph.is_static and bool(graph._statistics) is is_kept


def test_a_call_without_a_backward_pass(devices):
    """Later calls are right, without static memory."""
    device = devices[0]
    X = np.array(numpy.random.default_rng(0).normal(size=(4, 2, 3, 3)), dtype='float32', ctx=device)
    found = []
    for wrap in (hybridized, lambda net: net):
        block = Norm(1)
        block.initialize(ctx=devices)
        net = wrap(block)
        with autograd.record():
            net(X * 3)
        for _ in range(3):
            step(net, X)
        found.append([block.norm.running_mean.data(device).asnumpy(), block.norm.running_var.data(device).asnumpy()])
        if wrap is hybridized:
            graph, = net._graphs.graphs.values()
            assert graph._dynamic is not None
    for ours, plain in zip(*found):
        numpy.testing.assert_allclose(ours, plain, rtol=1e-6)  # float32, the same operator


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='its layers take arrays of mx.np only')
def test_a_network_of_mx_nd(devices):
    block = gluon.nn.HybridSequential()
    block.add(gluon.nn.BatchNorm(in_channels=2))
    with semantics_of(mx.nd.ones(1)):  # as after npx.reset_np()
        block.initialize(ctx=devices)
        net = hybridized(block)
        for _ in range(2):
            step(net, mx.nd.ones((2, 2, 3, 3), ctx=devices[0]) * 5)
        mean = block[0].running_mean.data(devices[0])
    assert type(mean) is mx.nd.NDArray and mean.asnumpy().tolist() == pytest.approx([0.95, 0.95])  # 5 (1 - 0.9^2)
