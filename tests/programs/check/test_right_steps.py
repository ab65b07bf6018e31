"""No mistake in steps that are right."""
import types
from dataclasses import dataclass
from functools import partial

import numpy
import pytest
from steps_to_check import (
    LOSS,
    LR,
    check_two,
    concise_step,
    copy_with_gradient,
    make_accumulating,
    make_arrays,
    make_momentum,
    make_network,
    momentum_from_scratch,
    network,
    some_slow,
    step_from_scratch,
    step_of_trainer,
    step_with_trainer,
    take_gradients,
    with_dropout_and_batch_norm,
)

import gluon_mgpu as d2l
from gluon_mgpu import check_data_parallel, scratch
from gluon_mgpu.mxnet_setup.compat import autograd, gluon, init, mx, np, npx
from gluon_mgpu.parallel.split import split_batch
from gluon_mgpu.parallel.step import params_with_gradients, prepare_idle_devices
from gluon_mgpu.parallel.sync_batch_norm.synchronized import SyncBatchNorm


def accumulate(state, X, y, devices, parts=2):
    """Add the gradients of parts of each shard before one update."""
    device_params = state['params']
    for params in device_params:
        for param in params:
            param.grad[:] = 0
    for X_shard, y_shard, params in zip(*split_batch(X, y, devices), device_params):
        for part in range(min(parts, len(X_shard))):
            with autograd.record():
                l = LOSS(network(X_shard[part::parts], params), y_shard[part::parts])
            l.backward()
    for arrays in zip(*device_params):
        scratch.allreduce([array.grad for array in arrays])
    for params in device_params:
        scratch.sgd(params, LR, len(X))


def one_list_per_parameter(devices):
    return [list(copies) for copies in zip(*make_arrays(devices))]


def step_of_one_list_per_parameter(state, X, y, devices):
    step_from_scratch([list(params) for params in zip(*state)], X, y, devices)


def interleaved(state, X, y, devices):
    """Split the rows in another order: 0, 3, 6, ... on the first device."""
    order = numpy.concatenate([numpy.arange(len(X))[i::len(devices)] for i in range(len(devices))])
    step_from_scratch(state, X[order], y[order], devices)


def same_arrays_twice(devices):
    device_params = make_arrays(devices)
    return device_params, [tuple(params) for params in device_params]


def step_of_the_same_arrays(state, X, y, devices):
    step_from_scratch(state[1], X, y, devices)


def augmented(state, X, y, devices):
    noise = [module.random.normal(size=X.shape) for module in (np, numpy)]
    step_from_scratch(state, X + noise[0].astype(X.dtype) + np.array(noise[1], dtype=X.dtype), y, devices)


def on_first_device(state, X, y, devices):
    """Update on the first device alone, as in Minerva; the others get copies."""
    step_from_scratch([state, *([copy_with_gradient(param, device) for param in state] for device in devices[1:])],
                      X, y, devices)


def make_concise(devices, **options):
    net, trainer = make_network(devices, **options)
    net.hybridize(static_alloc=True, static_shape=True)
    return net, LOSS, trainer


def make_only_a_network(devices, synchronized=False):
    """Return nothing but a network, hybridized or with batch norm over all devices."""
    layers = [gluon.nn.BatchNorm(), gluon.nn.Dense(4)] if synchronized else [gluon.nn.Dense(4)]
    net, _ = make_network(devices, layers=lambda: layers)
    net.hybridize()
    return SyncBatchNorm(net) if synchronized else net


def step_without_trainer(net, X, y, devices):
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        y_hats = net.forward(X_shards) if isinstance(net, SyncBatchNorm) else [net(X_shard) for X_shard in X_shards]
        ls = [LOSS(y_hat, y_shard) for y_hat, y_shard in zip(y_hats, y_shards)]
    (net.backward if isinstance(net, SyncBatchNorm) else autograd.backward)(ls)
    prepare_idle_devices(net, X, devices)
    for param in params_with_gradients(net):
        scratch.allreduce(param.list_grad())
        scratch.sgd(param.list_data(), LR, len(X))


def make_hidden(devices, show):
    """Return a network in an attribute of an attribute, which the check does not enter."""
    state = make_network(devices)
    return types.SimpleNamespace(shown=show(*state), hidden=types.SimpleNamespace(state=state))


def step_of_hidden(state, X, y, devices):
    step_with_trainer(state.hidden.state, X, y, devices)


@dataclass(slots=True)
class Model:
    net: gluon.Block
    trainer: gluon.Trainer
    rows: int = 0


def update_with_earlier_gradients(state, X, y, devices):
    if state.rows:
        state.trainer.step(state.rows)
    take_gradients(state.net, X, y, devices)
    state.rows = len(X)


RIGHT = {
    'from scratch': (make_arrays, step_from_scratch),
    'momentum from scratch': (make_momentum, momentum_from_scratch),
    'accumulated gradients': (make_accumulating, accumulate),
    'one list per parameter': (one_list_per_parameter, step_of_one_list_per_parameter),
    'interleaved rows': (make_arrays, interleaved),
    'random numbers': (make_arrays, augmented),
    'the same arrays twice': (same_arrays_twice, step_of_the_same_arrays),
    'one copy of the parameters': (lambda devices: make_arrays(devices)[0], on_first_device),
    'with a Trainer': (make_network, step_with_trainer),
    'weight decay and momentum': (partial(make_network, settings={'momentum': 0.9, 'wd': 0.01}), step_with_trainer),
    'Adam': (partial(make_network, optimizer='adam'), step_with_trainer),
    'layer normalization': (partial(make_network, layers=lambda: [gluon.nn.LayerNorm(), gluon.nn.Dense(4)]),
                            step_with_trainer),
    'only a hybridized network': (make_only_a_network, step_without_trainer),
    'SyncBatchNorm': (partial(make_only_a_network, synchronized=True), step_without_trainer),
    'the concise chapter': (make_concise, concise_step),
    'an attribute with a Trainer': (partial(make_hidden, show=lambda net, trainer: trainer), step_of_hidden),
    'an attribute with parameters': (partial(make_hidden, show=lambda net, trainer: net.collect_params()),
                                     step_of_hidden),
    'earlier gradients, in slots': (lambda devices: Model(*make_network(devices)), update_with_earlier_gradients),
    'updates on the devices': (partial(make_concise, update_on_kvstore=False), concise_step),
}


@pytest.mark.parametrize('case', some_slow(RIGHT, quick=(
    'from scratch', 'accumulated gradients', 'random numbers', 'Adam', 'the concise chapter',
    'an attribute with a Trainer', 'an attribute with parameters', 'earlier gradients, in slots')))
def test_no_mistake_in_steps_that_are_right(case, batches):
    report = check_data_parallel(*RIGHT[case], batches)
    assert report.ok, report
    assert 'float64' in report.title and not report.diagnosis
    numbers = {'layer normalization': 6, 'SyncBatchNorm': 6, 'momentum from scratch': 8}
    assert len(report.parameters) == numbers.get(case, 4)
    assert {(between, verdict) for _, _, between, verdict in report.parameters} == {(0, 'equal')}  # to the last bit


@pytest.mark.slow
@pytest.mark.parametrize('new', [
    lambda zoo: zoo.ResNetV1(zoo.BasicBlockV1, [2, 2, 2, 2], [8, 8, 16, 32, 64], classes=10),  # ResNet-18, narrower
    lambda zoo: zoo.mobilenet0_25(classes=10)], ids=['resnet18_v1', 'mobilenet0_25'])
def test_the_model_zoo(new, seed):
    """In small."""
    def make(devices):
        net = new(gluon.model_zoo.vision)
        net.initialize(init=init.Xavier(), ctx=devices)
        return net, gluon.Trainer(params_with_gradients(net), 'sgd', {'learning_rate': 0.01, 'momentum': 0.9})
    rng = numpy.random.default_rng(seed)
    batch = rng.normal(size=(12, 3, 16, 16)).astype('float32'), rng.integers(0, 10, 12)
    report = check_data_parallel(make, step_with_trainer, [batch], [mx.cpu(0), mx.cpu(1)])
    assert report.ok, report


@pytest.mark.parametrize('mistake', ['', 'means'])
def test_a_network_from_files(mistake, tmp_path, monkeypatch, batches):
    """A SymbolBlock has operators instead of layers; MXNet does not mark its running statistics."""
    monkeypatch.chdir(tmp_path)
    net = gluon.nn.HybridSequential()
    net.add(*with_dropout_and_batch_norm())
    net.initialize(init=init.Xavier())
    net.hybridize()
    net(np.array(batches[0][0]))
    net.export('net')

    def make(devices):
        net = gluon.SymbolBlock.imports('net-symbol.json', ['data'], 'net-0000.params', ctx=devices)
        return net, gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': LR})

    report = check_data_parallel(make, partial(step_with_trainer, mistake=mistake), batches)
    assert report.ok is not bool(mistake), report
    if report.ok:
        assert [note.partition(':')[0] for note in report.notes[:2]] == ['dropout (the network)',
                                                                         'batch norm (the network)']
    assert not any('running' in row[0] for row in report.parameters)


def books_split_batch(X, y, devices):
    assert X.shape[0] == y.shape[0]
    return (gluon.utils.split_and_load(X, devices),
            gluon.utils.split_and_load(y, devices))


def books_concise_loop(state, X, y, devices, batch_size=12):
    net, trainer = state
    X_shards, y_shards = books_split_batch(X, y, devices)
    with autograd.record():
        ls = [LOSS(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
    for l in ls:
        l.backward()
    trainer.step(batch_size)


def books_network(devices):
    """In small: with one residual block."""
    net = gluon.nn.Sequential()
    net.add(d2l.Residual(4, use_1x1conv=True, strides=2), gluon.nn.GlobalAvgPool2D(), gluon.nn.Dense(10))
    net.initialize(init=init.Normal(sigma=0.01), ctx=devices)
    return net, gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})


def test_the_books_concise_chapter(image_batches):
    """It divides by the batch size, and batch norm is per device."""
    report = check_data_parallel(books_network, books_concise_loop, [(X[..., :8, :8], y) for X, y in image_batches])
    assert report.ok, report
    *uneven, batch_norm = report.notes
    assert batch_norm.startswith('batch norm (0.bn1, 0.bn2): each device normalizes by its own rows')
    assert len(uneven) == 4


def test_a_teacher_for_each_device(batches):
    """Its networks have the same names, and shapes that wait for a first batch."""
    def make(devices):
        net, teachers = gluon.nn.Dense(4), [gluon.nn.HybridSequential() for _ in devices]
        net.initialize(init.Constant(0.1), ctx=devices)
        for teacher, device in zip(teachers, devices):
            teacher.add(gluon.nn.Dense(8), gluon.nn.Dense(4))
            teacher.initialize(init.Constant(0.1), ctx=device)
        return net, teachers, gluon.Trainer(net.collect_params(), 'sgd')

    def step(state, X, y, devices):
        net, teachers, trainer = state
        X_shards, _ = split_batch(X, y, devices)
        with autograd.record():
            ls = [((net(X_shard) - teacher(X_shard).detach()) ** 2).sum(axis=1)
                  for X_shard, teacher in zip(X_shards, teachers)]
        autograd.backward(ls)
        prepare_idle_devices(net, X, devices)
        trainer.step(len(X))

    report = check_data_parallel(make, step, batches)
    assert report.ok, report


def step_with(loss):
    def train_batch(state, X, y, devices):
        net, trainer = state
        X_shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            ls = [loss(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
        step_of_trainer(ls, net, trainer, X, devices, len(X))
    return train_batch


LOSSES = {
    'Huber': gluon.loss.HuberLoss(), 'L1': gluon.loss.L1Loss(), 'squares': gluon.loss.L2Loss(),
    'smooth L1': lambda y_hat, y: npx.smooth_l1(y_hat[:, 0] - y, scalar=1.0),
    'clipped counts': lambda y_hat, y: (y_hat[:, 0] - np.minimum(y, 3)) ** 2,
    'y > 0': lambda y_hat, y: LOSS(y_hat, (y > 0).astype('int32')),
    'left out': lambda y_hat, y: LOSS(y_hat, y) * (y < 4),
}


@pytest.mark.parametrize('loss', some_slow(LOSSES, quick=('Huber', 'clipped counts', 'y > 0')))
def test_whole_numbers_as_targets(loss, batches):
    """Such as ratings from 1 to 5, which are not classes of a network with four outputs."""
    units = 4 if loss in ('y > 0', 'left out') else 1
    report = check_two(partial(make_network, layers=lambda: [gluon.nn.Dense(units)]), step_with(LOSSES[loss]),
                       [(X, y + 1.0) for X, y in batches])
    assert report.ok, report


class WithHeads(gluon.Block):
    """A frozen first layer, and heads that `forward` never uses."""

    def __init__(self):
        super().__init__()
        self.frozen, self.out = gluon.nn.Dense(5, in_units=6), gluon.nn.Dense(4)
        self.unused, self.of_unknown_shape = gluon.nn.Dense(3, in_units=5), gluon.nn.Dense(3)
        self.frozen.weight.grad_req = self.frozen.bias.grad_req = 'null'

    def forward(self, X):
        return self.out(np.tanh(self.frozen(X)))


def test_layers_that_are_not_trained(batches):
    def make(devices):
        net = WithHeads()
        net.initialize(init.Normal(0.5), ctx=devices)
        return net, gluon.Trainer(net.out.collect_params(), 'sgd', {'learning_rate': LR})

    def step(state, X, y, devices):
        net, trainer = state
        X_shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            ls = [LOSS(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
        autograd.backward(ls)
        prepare_idle_devices(net.out, X, devices)
        trainer.step(len(X))
    report = check_two(make, step, batches)
    assert report.ok and len(report.parameters) == 5, report
    assert any('no device changes unused.weight, unused.bias' in note for note in report.notes), report


class Alternating(gluon.nn.Sequential):
    """Every second batch uses the second layer."""

    batches = 0

    def forward(self, X):
        return self[0](X) + (self[1](X) if self.batches % 2 else 0)


@pytest.mark.parametrize('zeroes', [True, False])
def test_a_layer_that_some_batches_do_not_use(zeroes, batches):
    """Otherwise the key-value store adds its old gradient. On one device, Gluon's Trainer would refuse the step."""
    def make(devices):
        net = Alternating()
        net.add(gluon.nn.Dense(4), gluon.nn.Dense(4))
        net.initialize(init.Normal(0.5), ctx=devices)
        net.batches = 1
        return net, gluon.Trainer(net.collect_params(), 'adam')

    def step(state, X, y, devices):
        for param in params_with_gradients(state[0]) if zeroes and state[0].batches > 1 else []:
            for gradient in param.list_grad():
                gradient[:] = 0
        step_with_trainer(state, X, y, devices)
        state[0].batches += 1
    report = check_two(make, step, batches)
    assert report.ok is zeroes, report
    assert zeroes or 'batch 2, of 7 rows: the gradient of the batch before is added' in report.diagnosis[0]
