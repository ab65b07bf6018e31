"""Tests of the state of the optimizer in a checkpoint: training continues exactly."""
import inspect

import numpy
import pytest
from limits import limits
from loops import OPTIMIZERS, Loop, dense
from slow import slow
from trainers import on_each_device, trainable
from two_workers import OfTwo

from gluon_mgpu.checkpoints import checkpoint, state
from gluon_mgpu.mxnet_setup.compat import autograd, gluon, mx, np, npx
from gluon_mgpu.parallel.workers import Workers


@pytest.mark.parametrize('optimizer, settings', [*OPTIMIZERS.values(), ('lars', {'momentum': 0.9})])
@pytest.mark.parametrize('k', [slow(1), 2])
def test_loading_a_checkpoint_of_a_trainer_without_steps_into_the_same_trainer(k, optimizer, settings, device_list,
                                                                               tmp_path):
    loop = Loop(device_list(k))
    loop.trainer = on_each_device(trainable(loop.net), optimizer, settings)
    checkpoint.save(tmp_path / 'a', loop.net, loop.trainer)
    ends = []
    for _ in range(2):
        loop.num_steps = 0
        ends.append(loop.train(2).values())
        checkpoint.load(tmp_path / 'a', loop.net, loop.trainer)
    assert ends[0] == ends[1]


def train_dense(net, trainer, steps):
    for step in steps:
        mx.random.seed(step)  # SGLD adds noise
        for array in net.weight.list_data():
            with autograd.record():
                loss = (net(np.full((4, 3), 1.0 + step, ctx=array.ctx)) ** 2).mean()
            loss.backward()
        trainer.step(4)
    npx.waitall()
    return [array.asnumpy().tolist() for array in net.weight.list_data()]


def check_that_it_continues_exactly(new, path):
    """`new` returns a layer from `dense` and its Trainer."""
    whole, trainer = new()
    train_dense(whole, trainer, range(3))
    checkpoint.save(path, whole, trainer)
    resumed, other = new()
    checkpoint.load(path, resumed, other)
    assert train_dense(resumed, other, [3, 4]) == train_dense(whole, trainer, [3, 4])


class Decaying(mx.lr_scheduler.LRScheduler):
    """Schedule that sets attributes named like those of MXNet's, as GluonCV's do."""

    def __init__(self, lr):
        super().__init__(base_lr=0.01)
        self.base_lr, self.count = lr, 3

    def __call__(self, num_update):
        self.learning_rate = self.base_lr * self.count / num_update
        return self.learning_rate


@pytest.mark.parametrize('update_on_kvstore', [None, slow(False)])  # None: MXNet decides
@pytest.mark.parametrize('optimizer', sorted(mx.optimizer.Optimizer.opt_registry.keys() - {'lbsgd'}))
def test_every_optimizer_continues_exactly(optimizer, update_on_kvstore, devices, tmp_path):
    def new():
        settings = {'learning_rate': 0.01, 'lr_scheduler': Decaying(0.01)}
        known = inspect.signature(mx.optimizer.Optimizer.opt_registry[optimizer]).parameters
        if 'momentum' in known and optimizer != 'dcasgd':  # MXNet 1.9 cannot compute its momentum
            settings['momentum'] = 0.9
        return dense(devices, optimizer=optimizer, optimizer_params=settings, update_on_kvstore=update_on_kvstore)

    check_that_it_continues_exactly(new, tmp_path / 'a')


@pytest.mark.parametrize('given', [{'learning_rate': 0.1}, slow({'learning_rate': 0.3}), {}])
@pytest.mark.parametrize('name, argument', [
    ('FactorScheduler', 1), ('MultiFactorScheduler', [1, 3, 5]), ('PolyScheduler', 8), ('CosineScheduler', 8),
    ('PolyScheduler', 3), ('CosineScheduler', 3)])
@pytest.mark.parametrize('warmup_steps', [0, 2])
def test_going_back_in_a_schedule(warmup_steps, name, argument, given, devices, tmp_path):
    """Some of MXNet's schedules change themselves, or keep their last rate, which a new one does not know.

    `load_states` of MXNet restores them as well.
    """
    def new():
        factor = {'factor': 0.5} if 'Factor' in name else {}
        scheduler = getattr(mx.lr_scheduler, name)(argument, base_lr=0.1, warmup_steps=warmup_steps, **factor)
        return dense(devices, optimizer='sgd', optimizer_params={**given, 'lr_scheduler': scheduler})

    whole, resumed = new(), new()
    train_dense(*whole, range(4))
    checkpoint.save(tmp_path / 'a', *whole)
    whole[1].save_states(str(tmp_path / 'states'))
    end = train_dense(*whole, range(4, 8))
    for net, trainer in (whole, resumed):
        checkpoint.load(tmp_path / 'a', net, trainer)
        rate = trainer.learning_rate
        assert train_dense(net, trainer, range(4, 8)) == end
    trainer.load_states(str(tmp_path / 'states'))
    assert trainer.learning_rate == rate


@pytest.mark.parametrize('frozen', ['before', 'after', 'never'])
def test_layers_that_are_frozen_before_or_after_a_checkpoint(frozen, devices, tmp_path):
    """The state of a layer that was trained before stays; one that is trained later begins with a new state."""
    loop = Loop(devices)
    first = loop.net[0]
    ends = []
    for param in trainable(first):
        param.grad_req = 'null' if frozen == 'before' else 'write'
    loop.train(2)
    for param in trainable(first):
        param.grad_req = 'null' if frozen == 'after' else 'write'
    checkpoint.save(tmp_path / 'a', loop.net, loop.trainer)
    for resumed in (loop, Loop(devices)):
        if resumed is not loop:
            checkpoint.load(tmp_path / 'a', resumed.net, resumed.trainer)
            resumed.num_steps = 2
        for param in trainable(resumed.net):
            param.grad_req = 'write'
        ends.append(resumed.train(2).values())
    assert ends[0] == ends[1]


def test_the_trainer_of_another_network_is_rejected(devices, tmp_path):
    net, trainer = dense(devices, optimizer='sgd')
    checkpoint.save(tmp_path / 'a', net, trainer)
    with pytest.raises(ValueError, match=r'^the Trainer updates \S+, which is not in the network'):
        checkpoint.load(tmp_path / 'a', net, dense(devices, optimizer='sgd')[1])


@pytest.mark.skipif('lbsgd' not in mx.optimizer.Optimizer.opt_registry, reason='MXNet 2 has no LBSGD')
def test_lbsgd_is_rejected(devices, tmp_path):
    net, trainer = dense(devices, optimizer='lbsgd', optimizer_params={'batch_scale': 2})
    with pytest.raises(ValueError, match='LBSGD keeps more than arrays and numbers: checkpoints cannot hold'):
        checkpoint.save(tmp_path / 'a', net, trainer)
    assert not (tmp_path / 'a').exists()


@pytest.mark.parametrize('k', [1, 2, 3])  # devices that load; the sum over the two that save stays
@pytest.mark.parametrize('update_on_kvstore', [False, None])  # None: MXNet decides
def test_saved_while_gradients_accumulate(k, update_on_kvstore, device_list, tmp_path):
    def new(devices):
        net, trainer = dense(devices, optimizer='sgd', optimizer_params={'momentum': 0.9},
                             update_on_kvstore=update_on_kvstore)
        net.weight.grad_req = 'add'
        return net, trainer

    def train(net, trainer, at):  # a step after every third pass
        for i in at:
            for number, array in enumerate(net.weight.list_data()):
                with autograd.record():
                    loss = (net(np.full((4, 3), 1.0 + i + number, ctx=array.ctx)) ** 2).mean() / len(devices)
                loss.backward()
            if i % 3 == 2:
                trainer.step(1)
                for gradient in net.weight.list_grad():
                    gradient[:] = 0

    devices = device_list(2)
    whole, resumed = new(devices), new(device_list(k))
    train(*whole, range(5))
    checkpoint.save(tmp_path / 'a', *whole)
    checkpoint.load(tmp_path / 'a', *resumed)
    sums = [sum(array.asnumpy() for array in net.weight.list_grad()) for net, _ in (whole, resumed)]
    assert abs(sums[0]).min() > 0
    numpy.testing.assert_allclose(*sums, rtol=1e-6)
    if k == 2:
        for net, trainer in (whole, resumed):
            train(net, trainer, [5])
        for array, other in zip(whole[0].weight.list_data(), resumed[0].weight.list_data()):
            assert array.asnumpy().tobytes() == other.asnumpy().tobytes()
    checkpoint.save(tmp_path / 'b', *new(devices))
    checkpoint.load(tmp_path / 'b', *whole)  # saved without gradients
    assert not any(array.asnumpy().any() for array in whole[0].weight.list_grad())
    for gradient in whole[0].weight.list_grad():
        gradient[:] = 1
    checkpoint.save(tmp_path / 'c', *whole)
    checkpoint.load(tmp_path / 'c', *resumed)  # equal on both devices
    assert (sum(array.asnumpy() for array in resumed[0].weight.list_grad()) == 2).all()


def test_running_statistics_of_several_workers(devices):
    """Each device of each worker gets its own; another number of devices gets the mean."""
    net, k = gluon.nn.BatchNorm(in_channels=1), len(devices)
    net.initialize(ctx=devices)

    def loaded(number, workers):
        """Return the running mean on each device from those of a number of devices: 0, 1, 2, ..."""
        kept = {'running_mean': [numpy.array([i], 'float32') for i in range(number)]}
        return state.set_network(net, kept, workers), [mean.item() for mean in net.running_mean.list_data()]

    assert loaded(2 * k, OfTwo(0)) == ([], [*range(k)])
    assert loaded(2 * k, OfTwo(1)) == ([], [*range(k, 2 * k)])
    assert loaded(2 * k + 1, OfTwo(1)) == (['running_mean'], [k] * k)


def test_gradients_of_several_workers(devices, tmp_path):
    def of_other(value):
        return {key: [array + 1 for array in arrays] for key, arrays in value.items()}

    net = dense(devices, optimizer='sgd')[0]
    net.weight.grad_req = 'add'
    for number, gradient in enumerate(net.weight.list_grad()):
        gradient[:] = 10 * number
    kept = state.collect_network(net, OfTwo(0, of_other))
    for rank in (0, 1):
        state.set_gradients(net, kept, OfTwo(rank))
        found = [gradient.asnumpy().ravel()[0] for gradient in net.weight.list_grad()]
        assert found == [10 * number + rank for number in range(len(devices))]
    state.set_gradients(net, kept, Workers())  # one process continues
    first, *others = (gradient.asnumpy() for gradient in net.weight.list_grad())
    assert (first == 2 * sum(10 * number for number in range(len(devices))) + len(devices)).all()
    assert not any(other.any() for other in others)


@pytest.mark.parametrize('k', [1, 2, 3])
def test_weights_that_are_loaded_without_the_trainer_stay(k, device_list, tmp_path):
    """The key-value store of the Trainer does not give its own copies back. Reference: Gluon's `set_data`."""
    ends = []
    first = np.arange(6.0).reshape(2, 3) / 10
    for load in lambda net: checkpoint.load(tmp_path / 'a', net), lambda net: net.weight.set_data(first):
        net, trainer = dense(device_list(k), optimizer='sgd')
        net.weight.set_data(first)
        checkpoint.save(tmp_path / 'a', net)
        used = train_dense(net, trainer, range(2))
        load(net)
        ends.append(train_dense(net, trainer, [5]))
    assert ends[0] == ends[1] != used


@pytest.mark.parametrize('k', [1, 2, 3])
@pytest.mark.parametrize('used', [False, True])
def test_a_schedule_of_ones_own_gets_the_number_of_the_update_and_nothing_else(used, k, device_list, tmp_path):
    net, trainer = dense(device_list(k), optimizer='sgd', optimizer_params={'lr_scheduler': Decaying(0.5)})
    trainer.optimizer.lr_scheduler.base_lr = 0.5  # MXNet sets it to another rate
    train_dense(net, trainer, range(4))
    checkpoint.save(tmp_path / 'a', net, trainer)
    if not used:
        net, trainer = dense(device_list(k), optimizer='sgd', optimizer_params={'lr_scheduler': Decaying(0.5)})
        trainer.optimizer.lr_scheduler.base_lr = 0.5
    checkpoint.load(tmp_path / 'a', net, trainer)
    train_dense(net, trainer, [4])
    assert trainer.learning_rate == 0.5 * 3 / 5


@pytest.mark.parametrize('schedule', [mx.lr_scheduler.CosineScheduler(10, base_lr=0.1),
                                      mx.lr_scheduler.FactorScheduler(10**6, base_lr=0.1), None])
def test_a_forged_number_of_updates_takes_no_time(schedule, devices, tmp_path):
    net, trainer = dense(devices, optimizer='sgd', optimizer_params={'lr_scheduler': schedule})
    train_dense(net, trainer, range(2))
    checkpoint.save(tmp_path / 'a', net, trainer)
    record, arrays = checkpoint.read(tmp_path / 'a')
    record['optimizer']['num_update'] = 2 * 10**9
    checkpoint.write(tmp_path / 'a', checkpoint.Snapshot(arrays, {'optimizer': record['optimizer']}), {})
    with limits(10):
        checkpoint.load(tmp_path / 'a', net, trainer)
