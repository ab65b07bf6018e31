"""Networks that Gluon's own `hybridize` gets wrong, on one device as on several."""
from functools import partial

import pytest
from slow import slow
from steps_to_check import LOSS, ONLY_1, check_two, make_network, step_with_trainer

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, autograd, gluon, init, mx, np
from gluon_mgpu.networks.static_shapes import StaticSequential
from gluon_mgpu.parallel.split import split_batch
from gluon_mgpu.parallel.step import params_with_gradients, zero_grad

STATIC = {'static_alloc': True, 'static_shape': True}
nn = gluon.nn


class Layer(HybridBlock):
    total = 0  # of all layers

    def __init__(self):
        super().__init__()
        self.dense, self.scale, self.calls = nn.Dense(4), 1.0, 0

    def forward(self, X):
        return self.dense(X) * self.scale  # which a step may set


class Counts(Layer):
    def forward(self, X):
        self.calls += 1
        return self.dense(X)


class ReadsItsCalls(Counts):
    def forward(self, X):
        return super().forward(X) * self.calls


class ReadsItsClass(Layer):
    def forward(self, X):
        Layer.total += 1
        return self.dense(X) * (1 + Layer.total % 3)


class Keeps(Layer):
    def forward(self, X):
        self.kept = self.dense(X)
        return self.kept


class Prints(Layer):
    def forward(self, X):
        print('in forward')
        return self.dense(X)


class Slope(gluon.HybridBlock):
    """PReLU, as the check advises to write it."""

    def __init__(self):
        super().__init__()
        self.alpha = self.params.get('alpha', shape=(1,), init=init.Constant(0.25))

    def hybrid_forward(self, F, X, alpha):
        return F.npx.relu(X) - alpha * F.npx.relu(-X)


def dense(**settings):
    """Return a layer, with settings of its weight."""
    layer = nn.Dense(4)
    for name, value in settings.items():
        setattr(layer.weight, name, value)
    return layer


def hybridized(devices, *layers, flags=STATIC, **options):
    net, trainer = make_network(devices, layers=lambda: [layer() for layer in layers], **options)
    net.hybridize(**flags)
    return net, trainer


def step_that_sets(state, X, y, devices):
    state[0][1].scale *= 0.5
    step_with_trainer(state, X, y, devices)


def step_with_penalty(state, X, y, devices):
    """Add a penalty on all parameters to every second loss."""
    net, trainer = state
    net.batches = getattr(net, 'batches', 0) + 1
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        ls = [LOSS(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
        if net.batches % 2:
            ls = [l + sum((param.data(l.ctx) ** 2).sum() for param in params_with_gradients(net)) for l in ls]
    for l in ls:
        l.backward()
    zero_grad(net, devices[len(ls):])
    trainer.step(len(X))


IMPURE = ('0.weight, 0.bias, 1.dense.weight and 1 more differ from those with hybridize(False), because the forward of '
          '1 ({}) is not pure: it uses what it read when traced{}.', 'let forward depend on its arguments only')
EFFECT = 'change attributes in the step instead, or hybridize the other layers only.'


@pytest.mark.parametrize('layers, step, fault, remedy', [
    ([nn.PReLU, dense], step_with_trainer, 'the gradient of the slope of PReLU (1.alpha) is wrong.',
     'write the layer as F.relu(x) - alpha * F.relu(-x), or hybridize the other layers only.'),
    ([Counts], step_with_trainer,
     '1.calls is 1, and 5 with hybridize(False), because forward runs while it is traced, not in each call.', EFFECT),
    pytest.param([Keeps], step_with_trainer, '1.kept is _Symbol, and ndarray with hybridize(False)', EFFECT, marks=[
        pytest.mark.slow, pytest.mark.skipif(MXNET_MAJOR > 1, reason='it traces with arrays')]),
    ([ReadsItsCalls], step_with_trainer, IMPURE[0].format('ReadsItsCalls', ', such as 1.calls'), IMPURE[1]),
    ([Layer], step_that_sets, IMPURE[0].format('Layer', ', such as 1.scale'), IMPURE[1]),
    slow([ReadsItsClass], step_with_trainer, IMPURE[0].format('ReadsItsClass', ''), IMPURE[1]),
    ([dense], step_with_penalty, 'static_shape=True makes the gradients of 0.weight, 0.bias, 1.weight and 1 more wrong',
     'call net.hybridize(static_alloc=True) without static_shape.'),
])
def test_what_hybridize_gets_wrong(layers, step, fault, remedy, batches):
    report = check_two(lambda devices: hybridized(devices, *layers), step, batches)
    assert not report.ok and len(report.diagnosis) == 2 and 'one device alone, in float64' in report.title
    assert report.diagnosis[0].startswith(f'WRONG if hybridized: {fault}'), report
    assert report.diagnosis[1].startswith(f'Do: {remedy}')
    assert 'WRONG if hybridized' in str(report) and 'from one device' not in str(report)  # no table


@pytest.mark.parametrize('layers, step, flags', [
    ([nn.PReLU, dense], step_with_trainer, None), ([Layer], step_that_sets, None), ([Counts], step_with_trainer, None),
    ([dense], step_with_penalty, {'static_alloc': True}), ([partial(dense, lr_mult=0)], step_with_trainer, STATIC),
    pytest.param([Slope, dense], step_with_trainer, STATIC, marks=ONLY_1), ([Layer], step_with_trainer, STATIC)])
def test_the_remedies(layers, step, flags, batches):
    """Without `hybridize`, for example; a layer that is traced and pure is right."""
    report = check_two(lambda devices: hybridized(devices, *layers, flags=flags or {'active': False}), step, batches)
    assert report.ok and len(report.parameters) >= 4, report


@pytest.mark.parametrize('active', [True, False])
def test_the_bias_of_a_frozen_weight(active, batches):
    """MXNet itself is wrong, with and without `hybridize`, in float32 only."""
    report = check_two(lambda devices: hybridized(devices, partial(dense, grad_req='null'), flags={'active': active}),
                       step_with_trainer, batches)
    assert report.diagnosis == [
        'WRONG on one device as well: MXNet computes no gradient for the bias of a dense layer with a frozen weight '
        '(1.bias).', "Do: to freeze the weight, set weight.lr_mult = 0 instead of weight.grad_req = 'null'."], report


def test_a_forward_that_prints(batches):
    """That is no mistake."""
    note = 'forward prints only while it is traced, because the network is hybridized.'
    report = check_two(lambda devices: hybridized(devices, Prints), step_with_trainer, batches)
    assert report.ok and report.notes[0] == note, report
    report = check_two(lambda devices: hybridized(devices, Prints, flags={'active': False}), step_with_trainer, batches)
    assert report.ok and note not in report.notes, report


def test_a_hybridized_network_stays_hybridized(batches):
    """On several devices, in float64, with batch norm, which MXNet casts with a method of its own."""
    active = set()

    def train_batch(state, X, y, devices):
        active.update((len(devices), layer._active) for layer in [state[0], *state[0]])
        step_with_trainer(state, X, y, devices)
    report = check_two(lambda devices: hybridized(devices, nn.BatchNorm, dense), train_batch, batches)
    assert report.ok and 'in float64' in report.title, report
    assert active == {(2, True), (1, True), (1, False)}


def test_a_network_with_an_operator_for_each_shape(batches):
    """Its own attributes are no effects of `forward`."""
    def make(devices):
        net = StaticSequential()
        net.add(nn.Dense(5), nn.BatchNorm(), nn.Dense(4))
        net.initialize(init.Normal(0.5), ctx=devices)
        net.hybridize(**STATIC)
        return net, gluon.Trainer(params_with_gradients(net), 'sgd', {'learning_rate': 0.1})
    assert check_two(make, step_with_trainer, batches).ok


def test_a_network_that_only_runs_hybridized(batches):
    def train_batch(state, X, y, devices):
        if not state[0]._active:
            raise KeyError('not hybridized')
        step_with_trainer(state, X, y, devices)
    report = check_two(lambda devices: hybridized(devices, dense), train_batch, batches)
    note = "the network is not compared with hybridize(False), because of KeyError ('not hybridized')"
    assert report.ok and report.notes[0] == note, report


@pytest.mark.slow
def test_random_numbers_in_a_hybridized_network(batches):
    """MXNet draws the same in both ways."""
    class Noise(Layer):
        def forward(self, X):
            random = (mx.sym.np if isinstance(X, mx.sym.Symbol) else np).random
            return self.dense(X) + random.normal(size=(1, 4))
    report = check_two(lambda devices: hybridized(devices, Noise), step_with_trainer, batches)
    assert 'hybridize' not in str(report), report
