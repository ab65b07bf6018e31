"""The package's Trainer gives exactly the same parameters as gluon.Trainer, for any optimizer."""
import weakref
from functools import partial
from types import SimpleNamespace

import numpy
import pytest
from gluon_mgpu.networks.hybridize.block import hybridized
from gluon_mgpu.parallel.flat import flatten_gradients
from gluon_mgpu.parallel.trainer import MAX_AT_ONCE, Trainer, trainable
from movable import moving
from slow import slow

from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.distributed.horovod_workers import HorovodWorkers
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, init, mx, np
from gluon_mgpu.outputs.onnx_model.graph import semantics_of
from gluon_mgpu.parallel.allreduce import star
from gluon_mgpu.parallel.split import split_batch
from gluon_mgpu.parallel.step import prepare_idle_devices, zero_grad
from gluon_mgpu.parallel.workers import Workers

OWN_UPDATE = {'update_on_kvstore': False}  # of gluon.Trainer, as this Trainer always does
ROWS = (16, 5, 1)  # also fewer than devices


def network(devices, seed=0):
    nn = gluon.nn
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, activation='relu'), nn.BatchNorm(), nn.Dense(10))
    net.initialize(ctx=devices)
    for device in devices:
        net(np.zeros((1, 1, 6, 6), ctx=device))
    rng = numpy.random.default_rng(seed)
    for param in trainable(net):
        param.set_data(np.array(rng.normal(scale=0.1, size=param.shape), dtype='float32'))
    return net


def step(net, trainer, devices, rows, rng):
    X = np.array(rng.normal(size=(rows, 1, 6, 6)), dtype='float32')
    y = np.array(rng.integers(0, 10, rows), dtype='int32')
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        ls = [loss(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
    for l in ls:
        l.backward()
    zero_grad(net, devices[len(X_shards):])
    trainer.step(rows)


def values(net):
    return [[array.asnumpy() for array in param.list_data()] for param in trainable(net)]


def assert_same(net, other):
    """Check that the parameters are exactly equal, on every device."""
    for mine, others in zip(values(net), values(other)):
        for array in mine:
            assert array.tobytes() == others[0].tobytes()


@pytest.mark.parametrize('num_devices', [1, slow(2), 3])
@pytest.mark.parametrize('optimizer, settings', [
    ('sgd', {'learning_rate': 0.1}),
    ('sgd', {'learning_rate': 0.1, 'wd': 0.01, 'clip_gradient': 0.02}),
    ('sgd', {'learning_rate': 0.1, 'momentum': 0.9}),
    ('sgd', {'learning_rate': 0.1, 'momentum': 0.9, 'wd': 0.01, 'clip_gradient': 0.02}),
    ('adam', {'learning_rate': 0.01})])
def test_the_same_as_gluon_trainer(optimizer, settings, num_devices, device_list):
    devices = device_list(num_devices)
    kinds = (Trainer, moving, gluon.Trainer)
    nets = [network(devices) for _ in kinds]
    trainers = [kind(trainable(net), optimizer, dict(settings)) for kind, net in zip(kinds, nets)]
    before = values(nets[0])
    for net, trainer in zip(nets, trainers):
        rng = numpy.random.default_rng(1)
        for rows in ROWS:
            step(net, trainer, devices, rows, rng)
    assert_same(nets[0], nets[2])
    assert_same(nets[1], nets[2])
    assert any((a != b).any() for a, b in zip(before[0], values(nets[0])[0]))


@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_learning_rates_per_parameter_and_a_schedule(momentum, devices):
    nets = [network(devices), network(devices)]
    for net, kind in zip(nets, (moving, gluon.Trainer)):
        trainable(net)[0].lr_mult, trainable(net)[-1].wd_mult = 0.1, 0.0
        schedule = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=0.1)
        trainer = kind(trainable(net), 'sgd', {'learning_rate': 0.1, 'wd': 0.1, 'momentum': momentum,
                                               'lr_scheduler': schedule})
        rng = numpy.random.default_rng(1)
        for rows in ROWS:
            step(net, trainer, devices, rows, rng)
    assert_same(*nets)


@pytest.mark.parametrize('as_one', [lambda net: net, hybridized])
@pytest.mark.parametrize('change', ['one layer initialized again', 'all layers initialized again', 'frozen before',
                                    'frozen', 'frozen and trained again'])
def test_parameters_that_change_during_training(change, as_one, devices):
    """Gradients in new memory are combined into one array again."""
    nets = [network(devices), network(devices)]
    # Otherwise gluon.Trainer would continue with the values in its key-value store
    for net, kind in zip(nets, (moving, partial(gluon.Trainer, **OWN_UPDATE))):
        part = {'one layer initialized again': [net[2]], 'all layers initialized again': [net]}.get(change, [])
        frozen = trainable(net)[:2] if 'frozen' in change else []
        if change == 'frozen before':
            for param in frozen:
                param.grad_req = 'null'
        fast, trainer = as_one(net), kind(trainable(net), 'sgd', {'learning_rate': 0.1})
        rng = numpy.random.default_rng(1)
        step(fast, trainer, devices, 8, rng)
        for layers in part:
            layers.initialize(ctx=devices, force_reinit=True, init=mx.init.Constant(0.05))
        for param in frozen:
            param.grad_req = 'null'
        if change == 'frozen and trained again':
            step(fast, trainer, devices, 8, rng)
            for param in frozen:
                param.grad_req = 'write'
        for rows in ROWS:
            step(fast, trainer, devices, rows, rng)
    assert_same(*nets)


@pytest.mark.parametrize('kind', [Trainer, moving])
@pytest.mark.parametrize('train_again', [False, True])
def test_the_last_parameters_frozen(train_again, kind, devices):
    """The gradients of the others stay where they are, so only the number of parameters shows the change."""
    nets = [network(devices), network(devices)]
    for net, make in zip(nets, (kind, gluon.Trainer)):
        trainer, rng = make(trainable(net), 'sgd', {'learning_rate': 0.1}), numpy.random.default_rng(1)
        for grad_req in ('write', 'null', *['write'] * train_again):
            for param in trainable(net)[-2:]:
                param.grad_req = grad_req
            for rows in ROWS:
                step(net, trainer, devices, rows, rng)
    assert_same(*nets)


@pytest.mark.parametrize('kinds', [(Trainer, gluon.Trainer), (gluon.Trainer, Trainer)])
def test_momentum_is_where_gluon_trainer_keeps_it(kinds, devices, tmp_path):
    """So either Trainer continues with the states of the other."""
    nets, path = [network(devices), network(devices)], str(tmp_path / 'states')
    settings = {'learning_rate': 0.1, 'momentum': 0.9}
    for net, in_turn in zip(nets, (kinds, [gluon.Trainer] * 2)):
        rng = numpy.random.default_rng(1)
        for number, kind in enumerate(in_turn):
            trainer = kind(trainable(net), 'sgd', dict(settings), **({} if kind is Trainer else OWN_UPDATE))
            if number:
                trainer.load_states(path)
            for rows in ROWS:
                step(net, trainer, devices, rows, rng)
            for updater, device in zip(trainer._updaters, devices):  # also those that were loaded
                assert {state.context for state in updater.states.values()} == {device}
            trainer.save_states(path)
    assert_same(*nets)


def test_all_parameters_frozen(devices):
    net = network(devices)
    for param in trainable(net):
        param.grad_req = 'null'
    params = [net[0].weight, net[2].bias]
    before = [param.data(devices[0]).asnumpy() for param in params]
    Trainer(params, 'sgd', {'learning_rate': 0.1}).step(8)
    for old, param in zip(before, params):
        assert (param.data(devices[0]).asnumpy() == old).all()


def test_a_scaled_loss_that_overflows_changes_nothing(devices):
    """``contrib.amp`` gives the Trainer a scaler that reports an overflow; then the step is skipped."""
    net = network(devices)
    trainer, before = Trainer(trainable(net), 'sgd', {'learning_rate': 0.1}), values(net)
    for overflow in (True, False):
        trainer._amp_loss_scaler = SimpleNamespace(has_overflow=lambda params, overflow=overflow: overflow)
        step(net, trainer, devices, 8, numpy.random.default_rng(1))
        assert any((a != b).any() for a, b in zip(before[0], values(net)[0])) is not overflow


@pytest.mark.parametrize('ignore_stale_grad', [False, True])
@pytest.mark.parametrize('momentum, operator', [(0.0, 'multi_sgd_update'), (0.9, 'multi_sgd_mom_update')])
def test_a_step_takes_few_calls(momentum, operator, ignore_stale_grad, devices, monkeypatch):
    """One sum, and on each device one update of the 50 weights and one of the 50 biases."""
    nn, sums, updates, update = gluon.nn, [], [], getattr(mx.nd, operator)
    net = nn.HybridSequential()
    net.add(*(nn.Dense(8, in_units=8) for _ in range(50)))
    net.initialize(ctx=devices)
    trainer = moving(trainable(net), 'sgd', {'learning_rate': 0.1, 'momentum': momentum})
    monkeypatch.setattr('gluon_mgpu.parallel.trainer.star', lambda data: (sums.append(data), star(data)))
    monkeypatch.setattr(mx.nd, operator,
                        lambda *args, **kwargs: (updates.append(kwargs['num_weights']), update(*args, **kwargs)))
    with autograd.record():
        ls = [net(np.ones((1, 8), ctx=device)).sum() for device in devices]
    for l in ls:
        l.backward()
    trainer.step(len(devices), ignore_stale_grad)
    assert len(sums) == 1
    assert updates == [50, 50] * len(devices) and MAX_AT_ONCE >= 50


@pytest.mark.parametrize('created', ['before the first pass', 'after a forward pass', 'after a backward pass'])
def test_static_shapes(created, devices):
    """Such a network writes its gradients where they were in its first backward pass, also if they have been moved."""
    nets = [network(devices), network(devices)]
    for net, kind in zip(nets, (Trainer, partial(gluon.Trainer, **OWN_UPDATE))):
        rng = numpy.random.default_rng(1)
        net.hybridize(static_alloc=True, static_shape=True)
        if created == 'after a forward pass':
            for device in devices:
                net(np.zeros((8 // len(devices), 1, 6, 6), ctx=device))
        if created == 'after a backward pass':
            step(net, SimpleNamespace(step=lambda rows: None), devices, 8, rng)
        trainer = kind(trainable(net), 'sgd', {'learning_rate': 0.1, 'momentum': 0.9})
        for _ in range(4):
            step(net, trainer, devices, 8, rng)
    assert_same(*nets)


@pytest.mark.parametrize('between', ['nothing', 'zero_grad'])
@pytest.mark.parametrize('make', [Trainer, lambda *args: Workers().trainer(*args)])
def test_a_second_trainer_of_a_network_that_has_trained(make, between, devices):
    """Neither flags nor values show then that backward passes have run."""
    nets = [network(devices), network(devices)]
    for net, kind in zip(nets, (make, partial(gluon.Trainer, **OWN_UPDATE))):
        rng = numpy.random.default_rng(1)
        net.hybridize(static_alloc=True, static_shape=True)
        for lr in (0.1, 0.2):
            trainer = kind(trainable(net), 'sgd', {'learning_rate': lr})
            for _ in range(2):
                step(net, trainer, devices, 8, rng)
            if between == 'zero_grad':
                (net if MXNET_MAJOR >= 2 else net.collect_params()).zero_grad()
    assert_same(*nets)


def test_stale_gradients_are_ignored_after_other_steps(devices):
    nets = [network(devices), network(devices)]
    for net, kind in zip(nets, (Trainer, partial(gluon.Trainer, **OWN_UPDATE))):
        trainer, rng = kind(trainable(net), 'sgd', {'learning_rate': 0.1}), numpy.random.default_rng(1)
        step(net, trainer, devices, 8, rng)
        with autograd.record():  # not through the last layer
            outputs = [net[0](np.ones((1, 1, 6, 6), ctx=device)).sum() for device in devices]
        autograd.backward(outputs)
        trainer.step(8, ignore_stale_grad=True)
    assert_same(*nets)


@pytest.mark.parametrize('grad_req', ['write', 'add'])
def test_a_layer_that_only_some_devices_have_used(grad_req, device_list):
    """With `ignore_stale_grad`, the devices stay equal to each other and to one device."""
    results = []
    for devices in (device_list(1), device_list(2)):
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Dense(2, in_units=3), gluon.nn.Dense(2, in_units=3))
        net.initialize(init.Constant(0.5), ctx=devices)
        for param in trainable(net):
            param.grad_req = grad_req
        trainer, rng = Trainer(trainable(net), 'sgd', {'learning_rate': 0.1}), numpy.random.default_rng(1)
        for layers in ([0, 1], [0, 0], [0, 1]):  # of the two halves of a batch
            with autograd.record():
                ls = [net[layer](np.array(rng.normal(size=(4, 3)), dtype='float32', ctx=device)) ** 2
                      for layer, device in zip(layers, devices * (2 // len(devices)))]
            autograd.backward(ls)
            trainer.step(8, ignore_stale_grad=True)
            if grad_req == 'add':
                for param in trainable(net):
                    for gradient in param.list_grad():
                        gradient[:] = 0
        results.append(values(net))
    for [one], [first, second] in zip(*results):
        assert first.tobytes() == second.tobytes()
        numpy.testing.assert_allclose(first, one, rtol=1e-5)  # float32 sums of 8 rows


@pytest.mark.parametrize('array', [numpy.array, np.array])
@pytest.mark.parametrize('optimizer', ['sgd', 'adam'])
def test_rates_in_arrays(optimizer, array, devices):
    results, rng = [], numpy.random.default_rng
    for kind in (float, array):
        net, lr, wd = network(devices), kind(0.25), kind(0.125)
        trainer = Trainer(trainable(net), optimizer, {'learning_rate': lr, 'wd': wd})
        step(net, trainer, devices, 8, rng(0))
        trainer.set_learning_rate(lr)
        step(net, trainer, devices, 8, rng(1))
        assert (lr, wd) == (0.25, 0.125)  # not changed
        results.append(net)
    assert_same(*results)


def test_updates_are_counted_as_gluon_trainer_counts_them(devices, device_list):
    """Also on devices that do not begin at 0, and in turns with its own way to update."""
    devices = device_list(len(devices) + 1)[1:]
    nets = [network(devices), network(devices)]
    for net, kind in zip(nets, (Trainer, partial(gluon.Trainer, **OWN_UPDATE))):
        lr = mx.lr_scheduler.FactorScheduler(1, factor=0.5, base_lr=0.1)
        trainer, rng = kind(trainable(net), 'sgd', {'lr_scheduler': lr}), numpy.random.default_rng(1)
        for number in range(4):
            trainer.optimizer.multi_precision = number % 2 == 1  # of no effect but this for float32
            step(net, trainer, devices, 8, rng)
    assert_same(*nets)


def test_memory_of_gradients_no_longer_used_is_freed(devices):
    """Layers are frozen in turn, as in a GAN. MXNet's key-value store would never free its buffers."""
    net, keys, arrays, rng = network(devices), [], [], numpy.random.default_rng(1)
    params = trainable(net)
    trainer = moving(params, 'sgd', {'learning_rate': 0.1})
    for number in range(4):
        for i, param in enumerate(params):
            param.grad_req = 'null' if number and i % 2 == number % 2 else 'write'
        step(net, trainer, devices, 8, rng)
        if number == 0:  # not before: the Trainer puts the parameters there
            trainer._kvstore.init = trainer._kvstore.pushpull = lambda key, *args, **kwargs: keys.append(key)
        arrays += [weakref.ref(array) for array in trainer._flat]
    assert keys == []
    assert [array() is None for array in arrays] == [True] * 3 * len(devices) + [False] * len(devices)


def test_parameters_of_two_dtypes(devices):
    """They do not fit in one array, so gluon.Trainer's own code updates them."""
    nn, nets = gluon.nn, []
    for kind in (Trainer, gluon.Trainer):
        net = nn.HybridSequential()
        net.add(nn.Dense(4, in_units=3), nn.Dense(4, in_units=3, dtype='float64'))
        net.initialize(ctx=devices, init=mx.init.Constant(0.5))
        trainer = kind(trainable(net), 'sgd', {'learning_rate': 0.1})
        for _ in range(2):
            with autograd.record():
                ls = [net[0](np.ones((2, 3), ctx=device)).sum() +
                      net[1](np.ones((2, 3), dtype='float64', ctx=device)).sum().astype('float32')
                      for device in devices]
            for l in ls:
                l.backward()
            trainer.step(2)
        nets.append(net)
    assert_same(*nets)


# Settings with which each device's updates could differ: a rate that changes, and state kept from step to step
SETTINGS = {'adam': {'clip_gradient': 0.1}, 'dcasgd': {}, 'groupadagrad': {'wd': 0.0}, 'lars': {'momentum': 0.9},
            'lbsgd': {'batch_scale': 2}, 'nag': {'momentum': 0.9}, 'rmsprop': {'centered': True},
            'sgd': {'momentum': 0.9}, 'signum': {'momentum': 0.9}}


@pytest.mark.parametrize('before, after', [(1, 2), (2, 3), (3, 1), (2, 2)])
@pytest.mark.parametrize('optimizer', ['adam', 'sgd'])
def test_states_on_other_devices(optimizer, before, after, device_list, tmp_path):
    """The replicas stay equal, take the steps of one device without interruption, and the schedule continues."""
    def make(devices, initial=None):
        net = gluon.nn.Dense(4, in_units=6)
        net.initialize(ctx=devices)
        for param, value in zip(trainable(net), initial or [numpy.full((4, 6), 0.5), numpy.zeros(4)]):
            param.set_data(np.array(value, dtype='float32'))
        schedule = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=0.05)
        momentum = {'momentum': 0.9} if optimizer == 'sgd' else {}
        return net, Trainer(trainable(net), optimizer, {'learning_rate': 0.05, 'lr_scheduler': schedule, **momentum})

    def train(net, trainer, devices, numbers):
        for number in numbers:
            X = numpy.random.default_rng(number).normal(size=(6, 6)).astype('float32')
            with autograd.record():
                ls = [net(X_shard) ** 2 for X_shard in split_batch(X, numpy.zeros(6), devices)[0]]
            autograd.backward(ls)
            trainer.step(6)

    devices = device_list(3)
    one = make(devices[:1])
    train(*one, devices[:1], range(4))
    first = make(devices[:before])
    train(*first, devices[:before], range(2))
    first[1].save_states(str(tmp_path / 'states'))
    then = make(devices[:after], [param.data(devices[0]).asnumpy() for param in trainable(first[0])])
    then[1].load_states(str(tmp_path / 'states'))
    train(*then, devices[:after], range(2, 4))
    assert then[1].learning_rate == one[1].learning_rate
    for (expected,), replicas in zip(values(one[0]), values(then[0])):
        assert {array.tobytes() for array in replicas} == {replicas[0].tobytes()}
        numpy.testing.assert_allclose(replicas[0], expected, rtol=1e-5, atol=1e-6)  # float32, sums in another order


@pytest.mark.parametrize('optimizer, settings', [('sgd', {'momentum': 0.9}), ('sgd', {}), ('adam', {})])
def test_a_gradient_that_no_backward_pass_has_written(optimizer, settings, devices):
    """gluon.Trainer raises as well; ignore_stale_grad leaves the layer alone."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(3, in_units=3), gluon.nn.Dense(3, in_units=3))
    net.initialize(ctx=devices)
    trainer = moving(trainable(net), optimizer, {'learning_rate': 0.1, **settings})
    for _ in range(2):
        with autograd.record():
            ls = [net(np.ones((2, 3), ctx=device)) for device in devices]
        autograd.backward(ls)
        trainer.step(4)
    before = values(net)
    with autograd.record():
        ls = [net[0](np.ones((2, 3), ctx=device)) for device in devices]
    autograd.backward(ls)
    with pytest.raises(ValueError, match=r'weight on .*: no backward pass has written its gradient since the last'):
        trainer.step(4)
    with pytest.raises(UserWarning):  # for programs that expect gluon.Trainer's
        trainer.step(4)
    assert all((a == b).all() for old, new in zip(before, values(net)) for a, b in zip(old, new))
    trainer.step(4, ignore_stale_grad=True)
    assert [(old[0] == new[0]).all() for old, new in zip(before, values(net))] == [False, False, True, True]


@pytest.mark.parametrize('num_devices', [slow(2), 3])
@pytest.mark.parametrize('optimizer', sorted(mx.optimizer.Optimizer.opt_registry))
def test_all_optimizers(optimizer, num_devices, device_list):
    """The replicas stay equal, and take the steps of one device; or the Trainer refuses the optimizer."""
    results = []
    for devices in (device_list(1), device_list(num_devices)):
        net = gluon.nn.Dense(4, in_units=6, use_bias=optimizer != 'groupadagrad')  # which is for matrices only
        net.initialize(ctx=devices)
        net.weight.set_data(np.array(numpy.random.default_rng(0).normal(size=(4, 6)), dtype='float32'))
        settings = {'learning_rate': 0.05, 'wd': 0.01, **SETTINGS.get(optimizer, {}),
                    'lr_scheduler': mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=0.05)}
        if len(devices) > 1 and optimizer in ('lars', 'lbsgd', 'nadam', 'sgld'):
            with pytest.raises(ValueError, match=rf'(?i)^{optimizer} would take another step on each device: use .*$'):
                Trainer(trainable(net), optimizer, settings)
            return
        trainer, rng = Trainer(trainable(net), optimizer, settings), numpy.random.default_rng(1)
        for rows in (12, 9, 2, 12):
            X, y = rng.normal(size=(rows, 6)).astype('float32'), rng.normal(size=(rows, 4)).astype('float32')
            X_shards, y_shards = split_batch(X, y, devices)
            with autograd.record():
                ls = [(net(X_shard) - y_shard) ** 2 for X_shard, y_shard in zip(X_shards, y_shards)]
            autograd.backward(ls)
            prepare_idle_devices(net, X, devices)
            trainer.step(12)
        results.append(values(net))
    for one, several in zip(*results):
        assert {array.tobytes() for array in several} == {several[0].tobytes()}
        numpy.testing.assert_allclose(several[0], one[0], rtol=1e-4, atol=1e-5)  # float32; some divide by small sums


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no row-sparse parameters')
@pytest.mark.parametrize('k', [1, 2])
def test_row_sparse_weights(k, device_list):
    with semantics_of(mx.nd.ones(1)):
        param = gluon.Parameter('w', shape=(5, 3), stype='row_sparse', grad_stype='row_sparse')
        param.initialize(ctx=device_list(k))
        with pytest.raises(ValueError, match='^a parameter has row-sparse weights: use gluon.Trainer, which updates'):
            Trainer([param], 'sgd', {'learning_rate': 0.1})


def test_kvstore(device_list):
    """The devices of this process, and nothing else."""
    one, two = (trainable(network(device_list(k))) for k in (1, 2))
    for params, kvstore in ((one, None), (two, 'local'), (two, 'device')):
        Trainer(params, 'sgd', {'learning_rate': 0.1}, kvstore)
    for params, kvstore in ((one, 'dist_sync'), (two, None), (two, 'bogus'), (two, mx.kv.create('device'))):
        with pytest.raises(ValueError, match=r"^kvstore .*: must be 'device' or 'local', .*use gluon.Trainer.*$"):
            Trainer(params, 'sgd', {'learning_rate': 0.1}, kvstore=kvstore)


@pytest.mark.parametrize('kind', [gluon.Trainer, moving])
def test_idle_devices_keep_the_sums_of_gradients(kind, device_list):
    """Three batches with grad_req 'add'; the second has rows for one device only. Equal to one device.

    Twice, because the first step moves the gradients.
    """
    results = []
    for make, devices in ((gluon.Trainer, device_list(1)), (kind, device_list(3))):
        net = gluon.nn.Dense(1, in_units=3)
        net.initialize(mx.init.Constant(0.5), ctx=devices)
        trainer = make(trainable(net), 'sgd', {'learning_rate': 0.1})
        for param in trainable(net):
            param.grad_req = 'add'
        rng = numpy.random.default_rng(1)
        for rows in (12, 1, 6) * 2:
            X = np.array(rng.normal(size=(rows, 3)), dtype='float32')
            X_shards, y_shards = split_batch(X, np.zeros(rows), devices)
            with autograd.record():
                ls = [(net(X_shard)[:, 0] - y_shard) ** 2 for X_shard, y_shard in zip(X_shards, y_shards)]
            autograd.backward(ls)
            prepare_idle_devices(net, X, devices)
            if rows == 6:
                trainer.step(19)
                for param in trainable(net):
                    for gradient in param.list_grad():
                        gradient[:] = 0
        results.append([replicas[0] for replicas in values(net)])
    for one, several in zip(*results):
        numpy.testing.assert_allclose(several, one, rtol=1e-5)  # float32 sums of 19 rows


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 exports in another format')
def test_a_network_from_a_file(devices, tmp_path):
    """A SymbolBlock has parameters without shapes, and mx.nd arrays."""
    net = gluon.nn.Dense(2)
    net.initialize(ctx=devices)
    net.hybridize()
    X = np.ones((4, 3), ctx=devices[0])
    expected = net(X).asnumpy()
    net.export(str(tmp_path / 'net'))
    nets = [gluon.SymbolBlock.imports(f'{tmp_path}/net-symbol.json', ['data'], f'{tmp_path}/net-0000.params',
                                      ctx=devices) for _ in range(2)]
    trainer = moving(trainable(nets[0]), 'sgd', {'learning_rate': 0.1})
    assert (nets[0](X).asnumpy() == expected).all()
    for _ in range(2):
        X_shards, y_shards = split_batch(np.ones((4, 3)), np.zeros(4), devices)
        with autograd.record():
            ls = [nets[0](X_shard)[:, 0] - y_shard for X_shard, y_shard in zip(X_shards, y_shards)]
        autograd.backward(ls)
        prepare_idle_devices(nets[0], np.ones((4, 3)), devices)
        trainer.step(4)
    # the gradient of column 0 is 1 for each weight and the bias; two steps of 0.1
    numpy.testing.assert_allclose(nets[0](X).asnumpy(), expected - [[0.8, 0]], rtol=1e-5, atol=1e-6)
    checkpoint.save(tmp_path / 'saved', nets[0])
    checkpoint.load(tmp_path / 'saved', nets[1])
    assert (nets[1](X).asnumpy() == nets[0](X).asnumpy()).all()


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no sparse gradients')
@pytest.mark.parametrize('settings', [{}, {'momentum': 0.9}, {'wd': 0.1}])
@pytest.mark.parametrize('move', [False, True])
@pytest.mark.parametrize('num_devices', [1, 2])
def test_sparse_gradients(num_devices, move, settings, device_list):
    """MXNet updates only the rows with gradients."""
    devices, results = device_list(num_devices), []
    for kind in (gluon.Trainer, moving if move else Trainer):
        with semantics_of(mx.nd.ones(1)):
            net = gluon.nn.Embedding(6, 2, sparse_grad=True)
            net.initialize(ctx=devices)
            net.weight.set_data(mx.nd.arange(12).reshape((6, 2)))
            trainer = kind(trainable(net), 'sgd', {'learning_rate': 0.1, **settings})
            for batch in ([0, 1, 1, 4], [1, 2, 2, 5], [4, 4, 1, 0], [2]):
                shards = [shard for i in range(num_devices) if (shard := batch[i::num_devices])]
                with autograd.record():
                    ls = [net(mx.nd.array(shard, ctx=device)) ** 2 for shard, device in zip(shards, devices)]
                autograd.backward(ls)
                zero_grad(net, devices[len(shards):])
                trainer.step(4)
            results.append([w.asnumpy().tolist() for w in net.weight.list_data()])
    assert results[0] == results[1]


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no sparse gradients')
def test_sparse_gradients_on_a_device_without_rows(device_list):
    """Rows of an earlier batch, which would be moved by their momentum, are no longer in its gradient."""
    results = []
    for devices in (device_list(1), device_list(2)):
        with semantics_of(mx.nd.ones(1)):
            net = gluon.nn.Embedding(3, 2, sparse_grad=True)
            net.initialize(init.One(), ctx=devices)
            trainer = Trainer(trainable(net), 'sgd', {'learning_rate': 0.1, 'momentum': 0.9})
            for batch in ([0, 1], [2]):
                shards = [batch[i::len(devices)] for i in range(min(len(devices), len(batch)))]
                with autograd.record():
                    ls = [net(mx.nd.array(shard, ctx=device)) ** 2 for shard, device in zip(shards, devices)]
                autograd.backward(ls)
                zero_grad(net, devices[len(shards):])
                trainer.step(1)
            results += [w.asnumpy().tolist() for w in net.weight.list_data()]
    assert results[0] == results[1] == results[2]


def test_devices_of_one_number(devices, monkeypatch):
    """MXNet counts updates by the number, which gpu(0) and cpu(0) share; Adam would take other steps on the second."""
    net = network(devices)
    monkeypatch.setattr('gluon_mgpu.parallel.trainer.trainer_devices', lambda trainer: [devices[0]] * len(devices))
    for optimizer, settings in (('adam', {}), ('sgd', {'lr_scheduler': mx.lr_scheduler.FactorScheduler(9)})):
        with pytest.raises(ValueError, match='have the same number, so .* would take another step on each: use other'):
            Trainer(trainable(net), optimizer, settings)
    Trainer(trainable(net), 'nag', {'momentum': 0.9})


def test_a_horovod_worker_with_several_devices(devices):
    """Only the gradients on the first device would be summed."""
    net = network(devices)
    worker = SimpleNamespace(size=2)
    with pytest.raises(ValueError, match='is on .*, but Horovod sums the gradients of one device for each worker: '):
        HorovodWorkers.trainer(worker, trainable(net), 'sgd', {})


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no networks of mx.nd')
def test_moved_gradients_of_mx_nd_stay_arrays_of_mx_nd(devices):
    with semantics_of(mx.nd.ones(1)):  # as after npx.reset_np()
        net = gluon.nn.Dense(2, in_units=3)
        net.initialize(ctx=devices)
        params = list(net.collect_params().values())
        flatten_gradients(params)
        assert {type(gradient) for param in params for gradient in param.list_grad()} == {mx.nd.NDArray}
