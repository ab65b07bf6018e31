"""Networks, Trainers and arrays in what `make` returns."""
import types
from functools import partial

import pytest
from slow import slow
from steps_to_check import LOSS, LR, ONLY_1, check_two, make_arrays, make_network, step_from_scratch, step_with_trainer

from gluon_mgpu import check_data_parallel
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, init, mx, np
from gluon_mgpu.parallel.step import params_with_gradients


def make_with_older_trainer(devices, made_for, steps=0, new=False, **options):
    """Return a network that moved to other devices after its Trainer was made."""
    before = [mx.cpu(i) for i in range(made_for)]
    net, trainer = make_network(before, **options)
    net(np.zeros((1, 6), ctx=before[0]))
    for _ in range(steps):
        step_with_trainer((net, trainer), np.ones((4, 6)), np.zeros(4), before)
    net.collect_params().reset_ctx(devices)
    if new:
        trainer = gluon.Trainer(params_with_gradients(net), 'sgd', {'learning_rate': LR})
    return net, trainer


@pytest.mark.skipif(MXNET_MAJOR > 1, reason='collect_params() returns a dict')
@pytest.mark.parametrize('made_for, options', [(1, {}), slow(1, {'update_on_kvstore': False}),
                                               (2, {'optimizer': 'adam', 'update_on_kvstore': False})])
def test_a_trainer_older_than_the_devices(made_for, options, batches):
    report = check_data_parallel(partial(make_with_older_trainer, made_for=made_for, **options), step_with_trainer,
                                 batches)
    devices = ['1 device', '2 devices'][made_for - 1]
    assert report.diagnosis[:2] == [f'WRONG: the Trainer was made for {devices}, and its parameters are on 3.',
                                    'Do: make a new Trainer after reset_ctx or another initialize.']


@pytest.mark.skipif(MXNET_MAJOR > 1, reason='collect_params() returns a dict')
def test_an_older_trainer_on_which_mxnet_would_crash(batches):
    with pytest.raises(ValueError, match='^the Trainer was made for 2 devices, and its parameters are on 3, on which '
                                         'MXNet crashes: make a new Trainer after reset_ctx or another initialize$'):
        check_data_parallel(partial(make_with_older_trainer, made_for=2, steps=1), step_with_trainer, batches)


@pytest.mark.skipif(MXNET_MAJOR > 1, reason='collect_params() returns a dict')
@pytest.mark.parametrize('options', [{'made_for': 2, 'steps': 1, 'new': True}, slow({'made_for': 3, 'steps': 1}),
                                     slow({'made_for': 4}), slow({'made_for': 4, 'steps': 1})])
def test_a_trainer_of_enough_devices_is_right(options, batches):
    """After a step in `make`, a Trainer keeps float32, so the check does not compute in float64."""
    report = check_data_parallel(partial(make_with_older_trainer, **options), step_with_trainer, batches)
    assert report.ok, report


@pytest.mark.parametrize(('pack', 'names'), [
    (lambda D, G: {'D': D, 'G': G}, ['D.0.weight', 'D.0.bias', 'G.0.weight', 'G.0.bias']),
    (lambda D, G: types.SimpleNamespace(nets={'D': D}, G=G),
     ['nets.D.0.weight', 'nets.D.0.bias', 'G.0.weight', 'G.0.bias']),
    (lambda D, G: (D, G), ['0.weight (1)', '0.bias (1)', '0.weight (2)', '0.bias (2)'])])
def test_names_of_two_networks(pack, names, batches):
    def make(devices):
        nets = [gluon.nn.HybridSequential() for _ in range(2)]
        for net in nets:
            net.add(gluon.nn.Dense(4))
            net.initialize(ctx=devices)
        state = [(net, gluon.Trainer(net.collect_params(), 'sgd')) for net in nets]
        return pack(*state), state

    def train_batch(state, X, y, devices):
        for net_and_trainer in state[1]:
            step_with_trainer(net_and_trainer, X, y, devices)
    assert [row[0] for row in check_two(make, train_batch, batches).parameters] == names


def test_arrays_in_attributes_of_a_block(batches):
    """As in the models that D2L writes from scratch. They are parameters as well."""
    class Net(gluon.Block):
        def __init__(self, params):
            super().__init__()
            self.W, self.b, self._V, self.c = params

    def make(devices):
        return [Net(params) for params in make_arrays(devices)]

    def train_batch(nets, X, y, devices, mistake=''):
        step_from_scratch([[net.W, net.b, net._V, net.c] for net in nets], X, y, devices, mistake)
    report = check_data_parallel(make, train_batch, batches)
    assert report.ok and [row[0] for row in report.parameters] == ['W', 'b', '_V', 'c'], report
    assert 'in float64' in report.title
    report = check_two(make, partial(train_batch, mistake='misses the last device'), batches)
    assert 'the gradient of cpu(1) counts 0 times' in report.diagnosis[0]


def step_with_sparse_gradients(state, X, y, devices, mistake=False):
    """Take a step with a network or lists of arrays, whose first parameter has a sparse gradient."""
    X = mx.nd.abs(X * 4).floor()  # words from 0 to 9
    shards = [gluon.utils.split_and_load(a, devices, even_split=False) for a in (X, y)]
    with autograd.record():
        ls = [LOSS(params(X_shard) if callable(params) else mx.nd.Embedding(
            X_shard, params[0], input_dim=40, output_dim=4, sparse_grad=True).sum(axis=1), y_shard)
            for X_shard, y_shard, params in zip(*shards, state if isinstance(state, list) else [state[0]] * 3)]
    for l in ls:
        l.backward()
    divisor = len(X) * (len(devices) if mistake else 1)
    if not isinstance(state, list):
        state[1].step(divisor)
        return
    total = sum(W.grad.tostype('default').as_in_context(devices[0]) for W, in state[:len(ls)])
    for W, in state:
        W[:] = W - LR / divisor * total.as_in_context(W.context)


@ONLY_1
@pytest.mark.parametrize('kind', ['network', slow('arrays')])
def test_sparse_gradients(kind, batches):
    def make(devices):
        if kind == 'network':
            net = gluon.nn.HybridSequential()
            net.add(gluon.nn.Embedding(40, 4, sparse_grad=True), gluon.nn.Dense(4))
            net.initialize(init.Normal(0.5), ctx=devices)
            return net, gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': LR})
        W = mx.nd.random.normal(shape=(40, 4))
        state = [[W.copyto(device)] for device in devices]
        for W, in state:
            W.attach_grad(stype='row_sparse')
        return state

    assert check_data_parallel(make, step_with_sparse_gradients, batches).ok
    report = check_two(make, partial(step_with_sparse_gradients, mistake=True), batches)
    assert 'the update is 0.5 times that of one device' in report.diagnosis[0]


@pytest.mark.parametrize('on_kvstore', [None, True, False])
def test_several_trainers(on_kvstore, batches):
    """Also with ``update_on_kvstore=True``, with which MXNet fails on a single device."""
    def make(devices):
        return [make_network(devices, update_on_kvstore=on_kvstore, optimizer=name) for name in ('sgd', 'adam')]

    def train_batch(state, X, y, devices):
        for net_and_trainer in state:
            step_with_trainer(net_and_trainer, X, y, devices)
    report = check_two(make, train_batch, batches)
    assert report.ok and len(report.parameters) == 8 and 'in float64' in report.title, report


class Slots:
    __slots__ = ('net', 'trainer')

    def __init__(self, net, trainer):
        self.net, self.trainer = net, trainer


def test_attributes_in_slots(batches):
    """Also of a dataclass with ``slots=True``."""
    report = check_data_parallel(lambda devices: Slots(*make_network(devices)), lambda state, *args: step_with_trainer(
        (state.net, state.trainer), *args), batches)
    assert report.ok, report
