"""No mistake in steps that are right."""
import re
import types
from dataclasses import dataclass
from functools import partial

import numpy
import pytest
from equals_one import Plain, sequential, take_gradients
from steps_to_check import (
    LOSS,
    backward,
    check_two,
    concise_step,
    copy_with_gradient,
    make_arrays,
    make_momentum,
    make_network,
    momentum_from_scratch,
    set_to_zero,
    some_slow,
    step_from_scratch,
    step_of_means,
    step_of_several,
    step_with_trainer,
    take_joint_gradients,
    update,
    with_dropout_and_batch_norm,
    with_trainer,
)

import gluon_mgpu as d2l
from gluon_mgpu import check_data_parallel, scratch
from gluon_mgpu.mxnet_setup.compat import autograd, gluon, init, np
from gluon_mgpu.parallel.split import split_batch
from gluon_mgpu.parallel.step import params_with_gradients
from gluon_mgpu.parallel.sync_batch_norm.synchronized import SyncBatchNorm


def accumulate(device_params, X, y, devices):
    """Add the gradients of parts of the batch before one update."""
    set_to_zero(device_params)
    for part in range(min(2, len(X))):
        backward(device_params, X[part::2], y[part::2], devices)
    update(device_params, len(X))


def one_list_per_parameter(devices):
    return [list(copies) for copies in zip(*make_arrays(devices))]


def step_of_one_list_per_parameter(state, X, y, devices):
    step_from_scratch([list(params) for params in zip(*state)], X, y, devices)


def interleaved(X, y, devices):
    """Split the rows in another order: 0, 3, 6, ... on the first device."""
    order = numpy.concatenate([numpy.arange(len(X))[i::len(devices)] for i in range(len(devices))])
    return split_batch(X[order], y[order], devices)


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


def make_concise(devices):
    net, trainer = make_network(devices)
    net.hybridize(static_alloc=True, static_shape=True)
    return net, LOSS, trainer


def make_only_a_network(devices, synchronized=False):
    """Return nothing but a network, hybridized or with batch norm over all devices."""
    net, _ = make_network(devices, layers=lambda: [*[gluon.nn.BatchNorm()] * synchronized, gluon.nn.Dense(4)])
    net.hybridize()
    return (SyncBatchNorm if synchronized else Plain)(net)


def step_without_trainer(net, X, y, devices):
    take_joint_gradients(net, X, y, devices)
    for param in params_with_gradients(net):
        scratch.allreduce(param.list_grad())
        scratch.sgd(param.list_data(), 0.1, len(X))


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
    take_gradients(lambda X, y: LOSS(state.net(X), y), [state.net], X, y, devices)
    state.rows = len(X)


def make_teachers(devices):
    """Return a network, and a teacher for each device: of the same names, and shapes that wait for a first batch."""
    teachers = [sequential(gluon.nn.Dense(8), gluon.nn.Dense(4)) for _ in devices]
    for teacher, device in zip(teachers, devices):
        teacher.initialize(init.Constant(0.1), ctx=device)
    return *with_trainer(gluon.nn.Dense(4), devices), teachers


def step_with_teachers(state, X, y, devices):
    net, trainer, teachers = state

    def losses(X, y):
        return ((net(X) - teachers[devices.index(X.ctx)](X).detach()) ** 2).sum(axis=1)
    take_gradients(losses, [net], X, y, devices)
    trainer.step(len(X))


def make_several(devices, on_kvstore):
    return [make_network(devices, update_on_kvstore=on_kvstore, optimizer=name) for name in ('sgd', 'adam')]


RIGHT = {  # make, step, and the number of parameters if it is not 4
    'from scratch': (make_arrays, step_from_scratch),
    'momentum from scratch': (make_momentum, momentum_from_scratch, 8),
    'accumulated gradients': (partial(make_arrays, grad_req='add'), accumulate),
    'one list per parameter': (one_list_per_parameter, step_of_one_list_per_parameter),
    'interleaved rows': (make_arrays, partial(step_from_scratch, split=interleaved)),
    'random numbers': (make_arrays, augmented),
    'the same arrays twice': (same_arrays_twice, step_of_the_same_arrays),
    'one copy of the parameters': (lambda devices: make_arrays(devices)[0], on_first_device),
    'weight decay and momentum': (partial(make_network, settings={'momentum': 0.9, 'wd': 0.01}), step_with_trainer),
    'Adam': (partial(make_network, optimizer='adam'), step_with_trainer),
    'only a hybridized network': (make_only_a_network, step_without_trainer),
    'SyncBatchNorm': (partial(make_only_a_network, synchronized=True), step_without_trainer, 6),
    'the concise chapter': (make_concise, concise_step),
    'an attribute with a Trainer': (partial(make_hidden, show=lambda net, trainer: trainer), step_of_hidden),
    'an attribute with parameters': (partial(make_hidden, show=lambda net, trainer: net.collect_params()),
                                     step_of_hidden),
    'earlier gradients, in slots': (lambda devices: Model(*make_network(devices)), update_with_earlier_gradients),
    'several Trainers': (partial(make_several, on_kvstore=None), step_of_several, 8),
    'several Trainers on the devices': (partial(make_several, on_kvstore=False), step_of_several, 8),
    'several Trainers on the key-value store': (  # with which MXNet fails on a single device
        partial(make_several, on_kvstore=True), step_of_several, 8),
    'a teacher for each device': (make_teachers, step_with_teachers, 6),
}


@pytest.mark.parametrize('case', some_slow(
    RIGHT, 'momentum from scratch', 'one list per parameter', 'interleaved rows', 'the same arrays twice',
    'weight decay and momentum', 'only a hybridized network', 'SyncBatchNorm', 'several Trainers'))
def test_no_mistake_in_steps_that_are_right(case, batches):
    make, step, *number = RIGHT[case]
    report = check_data_parallel(make, step, batches)
    assert report.ok, report
    assert 'float64' in report.title and not report.diagnosis
    assert len(report.parameters) == (number or [4])[0]
    assert {(between, verdict) for _, _, between, verdict in report.parameters} == {(0, 'equal')}  # to the last bit


@pytest.mark.slow
@pytest.mark.parametrize('new', [
    lambda zoo: zoo.ResNetV1(zoo.BasicBlockV1, [2, 2, 2, 2], [8, 8, 16, 32, 64], classes=10),  # ResNet-18, narrower
    lambda zoo: zoo.mobilenet0_25(classes=10)], ids=['resnet18_v1', 'mobilenet0_25'])
def test_the_model_zoo(new, rng):
    """In small."""
    batch = rng.normal(size=(12, 3, 16, 16)).astype('float32'), rng.integers(0, 10, 12)

    def make(devices):
        return with_trainer(new(gluon.model_zoo.vision), devices, initializer=init.Xavier(),
                            settings={'learning_rate': 0.01, 'momentum': 0.9})
    report = check_two(make, step_with_trainer, [batch])
    assert report.ok, report


@pytest.mark.parametrize('step', [step_with_trainer, step_of_means])
def test_a_network_from_files(step, tmp_path, monkeypatch, batches):
    """A SymbolBlock has operators instead of layers; MXNet does not mark its running statistics."""
    monkeypatch.chdir(tmp_path)
    net = sequential(*with_dropout_and_batch_norm())
    net.initialize(init.Xavier())
    net.hybridize()
    net(np.array(batches[0][0]))
    net.export('net')

    def make(devices):
        net = gluon.SymbolBlock.imports('net-symbol.json', ['data'], 'net-0000.params', ctx=devices)
        return net, gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})

    report = check_data_parallel(make, step, batches)
    assert report.ok is (step is step_with_trainer), report
    if report.ok:
        assert [note.partition(':')[0] for note in report.notes[:2]] == ['dropout (the network)',
                                                                         'batch norm (the network)']
    assert not any('running' in row[0] for row in report.parameters)


def books_network(devices):
    """In small: with one residual block."""
    net = sequential(d2l.Residual(4, use_1x1conv=True, strides=2), gluon.nn.GlobalAvgPool2D(), gluon.nn.Dense(10))
    return with_trainer(net, devices, initializer=init.Normal(0.01))


def books_concise_loop(state, X, y, devices, batch_size=12):
    net, trainer = state
    X_shards, y_shards = (gluon.utils.split_and_load(array, devices) for array in (X, y))
    with autograd.record():
        ls = [LOSS(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
    for l in ls:
        l.backward()
    trainer.step(batch_size)


def test_the_books_concise_chapter(image_batches):
    """It divides by the batch size, batch norm is per device, and Gluon refuses batches that do not divide evenly."""
    report = check_data_parallel(books_network, books_concise_loop, [(X[..., :8, :8], y) for X, y in image_batches])
    assert report.ok and 'over batches of 12, 12 rows' in report.title, report
    *uneven, batch_norm = report.notes
    assert batch_norm.startswith('batch norm (0.bn1, 0.bn2): each device normalizes by its own rows')
    assert re.match('batches of 10 rows are not checked, because the step raises ValueError', uneven[0])
    assert len(uneven) == 4


@pytest.mark.parametrize('units, losses', [
    (1, gluon.loss.HuberLoss()), (1, lambda y_hat, y: (y_hat[:, 0] - np.minimum(y, 3)) ** 2),
    (4, lambda y_hat, y: LOSS(y_hat, (y > 0).astype('int32')))], ids=['Huber', 'clipped counts', 'y > 0'])
def test_whole_numbers_as_targets(units, losses, batches):
    """Such as ratings from 1 to 5, which are not classes of a network with four outputs."""
    report = check_two(partial(make_network, layers=lambda: [gluon.nn.Dense(units)]),
                       partial(step_with_trainer, losses=losses), [(X, y + 1.0) for X, y in batches])
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
        return net, gluon.Trainer(net.out.collect_params(), 'sgd', {'learning_rate': 0.1})
    report = check_two(make, partial(step_with_trainer, prepared=lambda net: [net.out]), batches)
    assert report.ok and len(report.parameters) == 5, report
    assert any('no device changes unused.weight, unused.bias' in note for note in report.notes), report


class Alternating(gluon.nn.Sequential):
    """Every second batch uses the second layer."""

    batches = 1

    def forward(self, X):
        return self[0](X) + (self[1](X) if self.batches % 2 else 0)


@pytest.mark.parametrize('zeroes', [True, False])
def test_a_layer_that_some_batches_do_not_use(zeroes, batches):
    """Otherwise the key-value store adds its old gradient. On one device, Gluon's Trainer would refuse the step."""
    def make(devices):
        return with_trainer(sequential(gluon.nn.Dense(4), gluon.nn.Dense(4), kind=Alternating), devices, 'adam')

    def step(state, X, y, devices):
        for param in params_with_gradients(state[0]) if zeroes and state[0].batches > 1 else []:
            for gradient in param.list_grad():
                gradient[:] = 0
        step_with_trainer(state, X, y, devices)
        state[0].batches += 1
    report = check_two(make, step, batches)
    assert report.ok is zeroes, report
    assert zeroes or 'batch 2, of 7 rows: the gradient of the batch before is added' in report.diagnosis[0]
