"""Training programs of all kinds, written as own-project.md teaches: k devices equal one, however the network runs.

Each program trains with the package's functions for the step, and yields the values that it reads, which must equal
those of the same program in plain Gluon on one device. In float64 only the order of sums differs.
"""
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
from slow import slow
from trainers import on_each_device, trainable

from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, autograd, gluon, init, mx, np, npx
from gluon_mgpu.networks.static_shapes import StaticSequential
from gluon_mgpu.parallel.split import split_batch
from gluon_mgpu.parallel.step import prepare_idle_devices
from gluon_mgpu.parallel.sync_batch_norm.synchronized import SyncBatchNorm
from gluon_mgpu.training.evaluate import evaluate_accuracy_gpus

nn = gluon.nn
ROWS = (12, 7, 2, 9)  # also fewer than devices
# How the owner of a network lets it run; the program decides
HYBRIDIZE = {'eager': None, 'hybridize': {}, 'static_alloc': {'static_alloc': True},
             'static_shape': {'static_alloc': True, 'static_shape': True}}


def dense(*units):
    net = StaticSequential()
    for size, following in itertools.pairwise(units):
        net.add(nn.Dense(following, in_units=size, activation='tanh'))
    return net


def make(net, devices, how='eager'):
    """Initialize a network in float64, and hybridize it."""
    net.initialize(init.Normal(0.5), ctx=devices)
    net.cast('float64')
    if HYBRIDIZE[how] is not None:
        net.hybridize(**HYBRIDIZE[how])
    return net


def take_gradients(losses_of, nets, X, y, devices):
    """Compute the gradients as own-project.md does; ``losses_of(X_shard, y_shard)`` is the loss of each row."""
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        ls = [losses_of(X_shard, y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
    autograd.backward(ls)
    for net in nets:
        prepare_idle_devices(net, y, devices)


def step(losses_of, nets, trainer, X, y, devices, batch_size=12):
    """Take the step of own-project.md."""
    take_gradients(losses_of, nets, X, y, devices)
    trainer.step(batch_size)


def batches(rng, units=4, outputs=3):
    for rows in ROWS:
        yield rng.normal(size=(rows, units)), rng.normal(size=(rows, outputs))


def values(*nets) -> list:
    """Return the parameters on each device, as one array for each parameter: all must be equal."""
    npx.waitall()
    found = []
    for net in nets:
        for param in trainable(net):
            first, *others = [array.asnumpy() for array in param.list_data()]
            assert all((other == first).all() for other in others), param.name
            found.append(first)
    return found


def squared(net):
    return lambda X, y: ((net(X) - y) ** 2).sum(axis=1)


# --- programs: generators of what they read ---

def plain(trainer_of, devices, rng, how) -> Iterator:
    net = make(dense(4, 5, 3), devices, how)
    trainer = trainer_of(trainable(net), 'sgd', {'learning_rate': 0.1, 'momentum': 0.9})
    for X, y in batches(rng):
        step(squared(net), [net], trainer, X, y, devices)
        yield values(net)


def frozen_and_unfrozen(trainer_of, devices, rng, how) -> Iterator:
    net = make(dense(4, 5, 3), devices, how)
    trainer = trainer_of(trainable(net), 'sgd', {'learning_rate': 0.1})
    for grad_req in ('null', 'write', 'null', 'write'):
        for param in trainable(net[0]):
            param.grad_req = grad_req
        for X, y in batches(rng):
            step(squared(net), [net], trainer, X, y, devices)
        yield values(net)


def penalty_in_every_second_step(trainer_of, devices, rng, how) -> Iterator:
    if how == 'static_shape':
        return  # wrong in Gluon itself, as own-project.md says
    net = make(dense(4, 5, 3), devices, how)
    trainer = trainer_of(trainable(net), 'sgd', {'learning_rate': 0.1})
    for i, (X, y) in enumerate(batches(rng)):
        def losses_of(X, y, use_penalty=i % 2):
            l = squared(net)(X, y)
            return l + sum((p.data(X.ctx) ** 2).sum() for p in trainable(net)) if use_penalty else l
        step(losses_of, [net], trainer, X, y, devices)
        yield values(net)


def actor_and_critic(trainer_of, devices, rng, how) -> Iterator:
    """The critic is updated between the forward and the backward pass of the actor."""
    actor, critic = make(dense(4, 5, 3), devices, how), make(dense(3, 5, 1), devices, how)
    of_actor, of_critic = (trainer_of(trainable(net), 'sgd', {'learning_rate': 0.1}) for net in (actor, critic))
    for X, y in batches(rng):
        X_shards, _ = split_batch(X, y, devices)
        with autograd.record():
            actions = [actor(X_shard) for X_shard in X_shards]
            ls = [(critic(action.detach()) ** 2)[:, 0] for action in actions]
        autograd.backward(ls)
        prepare_idle_devices(critic, y, devices)
        of_critic.step(12)
        with autograd.record():
            ls = [critic(actor(X_shard))[:, 0] for X_shard in X_shards]
        autograd.backward(ls)
        prepare_idle_devices(actor, y, devices)
        of_actor.step(12)
        yield values(actor, critic)


def generative(trainer_of, devices, rng, how) -> Iterator:
    """A generator and a discriminator, each with its Trainer; one is frozen while the other is trained."""
    G, D = make(dense(2, 5, 4), devices, how), make(dense(4, 5, 1), devices, how)
    of_G, of_D = (trainer_of(trainable(net), 'sgd', {'learning_rate': 0.1}) for net in (G, D))
    for rows in ROWS:
        X, Z = rng.normal(size=(rows, 4)), rng.normal(size=(rows, 2))
        step(lambda X, Z: ((D(X) - 1) ** 2 + D(G(Z).detach()) ** 2)[:, 0], [D], of_D, X, Z, devices)
        for param in trainable(D):
            param.grad_req = 'null'
        step(lambda X, Z: ((D(G(Z)) - 1) ** 2)[:, 0], [G], of_G, X, Z, devices)
        for param in trainable(D):
            param.grad_req = 'write'
        yield values(G, D)


def clipped_by_a_list_made_before(trainer_of, devices, rng, how) -> Iterator:
    """The list of gradients is made once, before the loop."""
    if trainer_of is not on_each_device:
        return
    net = make(dense(4, 5, 3), devices, how)
    trainer = trainer_of(trainable(net), 'sgd', {'learning_rate': 0.1})
    gradients = [[param.grad(device) for param in trainable(net)] for device in devices]
    for X, y in batches(rng):
        take_gradients(squared(net), [net], X, y, devices)
        trainer.allreduce_grads()
        for of_device in gradients:
            norm = sum((g ** 2).sum() for g in of_device) ** 0.5
            for g in of_device:
                g *= (0.1 / norm).clip(0, 1)
        trainer.update(1)
        yield values(net)


def accumulated(trainer_of, devices, rng, how) -> Iterator:
    """Gradients with ``grad_req='add'`` are summed over three batches."""
    net = make(dense(4, 5, 3), devices, how)
    trainer = trainer_of(trainable(net), 'sgd', {'learning_rate': 0.1})
    for param in trainable(net):
        param.grad_req = 'add'
    for _ in range(3):
        for X, y in batches(rng):
            take_gradients(squared(net), [net], X, y, devices)
        trainer.step(30)
        for param in trainable(net):
            for gradient in param.list_grad():
                gradient[()] = 0
        yield values(net)


def gradient_of_the_input(trainer_of, devices, rng, how) -> Iterator:
    """Train on rows moved along their gradient."""
    net = make(dense(4, 5, 3), devices, how)
    trainer = trainer_of(trainable(net), 'sgd', {'learning_rate': 0.1})
    for X, y in batches(rng):
        X_shards, y_shards = split_batch(X, y, devices)
        for X_shard in X_shards:
            X_shard.attach_grad()
        with autograd.record():
            ls = [squared(net)(X_shard, y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
        autograd.backward(ls)
        moved = numpy.concatenate([(X + 0.1 * np.sign(X.grad)).asnumpy() for X in X_shards])
        step(squared(net), [net], trainer, moved, y, devices)
        yield [moved, *values(net)]


def evaluated_and_saved(trainer_of, devices, rng, how, folder) -> Iterator:
    """Evaluate, save and load between the steps."""
    net = make(dense(4, 5, 3), devices, how)
    trainer = trainer_of(trainable(net), 'sgd', {'learning_rate': 0.1, 'momentum': 0.9})
    for X, y in batches(rng):
        step(squared(net), [net], trainer, X, y, devices)
        X, labels = np.array(rng.normal(size=(5, 4)), dtype='float64'), np.array(rng.integers(0, 3, 5))
        accuracy = evaluate_accuracy_gpus(net, [(X, labels)], devices=devices)
        checkpoint.save(folder / 'saved', net, trainer)
        step(squared(net), [net], trainer, rng.normal(size=(4, 4)), rng.normal(size=(4, 3)), devices)
        checkpoint.load(folder / 'saved', net, trainer)
        yield [numpy.array(accuracy), *values(net)]


def in_threads(trainer_of, devices, rng, how) -> Iterator:
    """Two networks in two threads."""
    if MXNET_MAJOR >= 2:
        return  # MXNet 2 crashes at times if several threads start operators at once
    nets = [make(dense(4, 5, 3), devices, how) for _ in range(2)]
    trainers = [trainer_of(trainable(net), 'sgd', {'learning_rate': 0.1}) for net in nets]
    for X, y in batches(rng):
        with ThreadPoolExecutor(2, initializer=npx.set_np) as pool:
            list(pool.map(lambda net, trainer, X=X, y=y: step(squared(net), [net], trainer, X, y, devices),
                          nets, trainers))
        yield values(*nets)


PROGRAMS = [plain, frozen_and_unfrozen, penalty_in_every_second_step, actor_and_critic, generative,
            clipped_by_a_list_made_before, accumulated, gradient_of_the_input, evaluated_and_saved, in_threads]


def run(program, trainer_of, devices, seed, how, *args):
    mx.random.seed(seed)
    return [list(found) for found in program(trainer_of, devices, numpy.random.default_rng(seed), how, *args)]


@pytest.mark.parametrize('trainer_of', [gluon.Trainer, on_each_device])
@pytest.mark.parametrize('how, k', [
    ('eager', 3), ('static_shape', 3), ('eager', 2), *[slow(how, k) for how in ('hybridize', 'static_alloc')
                                                      for k in (2, 3)], slow('static_shape', 2)])
@pytest.mark.parametrize('program', PROGRAMS)
def test_k_devices_equal_plain_gluon_on_one(program, how, k, trainer_of, device_list, seed, tmp_path):
    args = [tmp_path] if program is evaluated_and_saved else []
    expected = run(program, trainer_of, device_list(1), seed, 'eager', *args)
    found = run(program, trainer_of, device_list(k), seed, how, *args)
    if not found:
        pytest.skip('for other ways to run or to update')
    assert len(found) == len(expected)
    for ours, of_one in zip(found, expected):
        assert len(ours) == len(of_one) > 0
        for a, b in zip(ours, of_one):
            numpy.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)  # float64; Gluon's divisor is float32


# --- synchronized batch norm: k devices equal one in steps of all kinds ---

class Net(HybridBlock):
    """A convolution, batch norm, and two dense layers, for images of any size."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2D(4, 3, in_channels=2), nn.BatchNorm(in_channels=4)
        self.hidden, self.out = nn.Dense(5, in_units=4, activation='tanh'), nn.Dense(3, in_units=5)

    def forward(self, X):
        npx_of_X = mx.sym.npx if isinstance(X, mx.sym.Symbol) else npx
        # Not the mean, which is float32 on MXNet 2
        features = npx_of_X.activation(self.norm(self.conv(X)), act_type='relu').sum(axis=(2, 3)) * 0.05
        return self.out(self.hidden(features))


def steps_of_all_kinds(net, trained_net, trainer, devices, rng, path) -> Iterator:
    """Freeze and unfreeze, add penalties, predict in odd places, save."""
    for i in range(8):
        for param in trainable(net.hidden):
            param.grad_req = 'null' if i in (2, 3) else 'write'
        X_shards, y_shards = split_batch(rng.normal(size=(7, 2, 6, 6)), rng.normal(size=(7, 3)), devices)
        with autograd.record():
            outputs = (trained_net.forward(X_shards) if isinstance(trained_net, SyncBatchNorm) else
                       [net(X) for X in X_shards])
            with autograd.predict_mode():
                found = [net(X) for X in X_shards]
            ls = [((output - y) ** 2).sum() for output, y in zip(outputs, y_shards)]
            if i % 2:  # on one device, since each has the same parameters
                ls[0] = ls[0] + sum((param.data(devices[0]) ** 2).sum() for param in trainable(net))
        (trained_net if isinstance(trained_net, SyncBatchNorm) else autograd).backward(ls)
        found += [net(X) for X in X_shards]
        trainer.step(7)
        net.save_parameters(path)
        loaded = Net()
        loaded.load_parameters(path, ctx=devices[0], cast_dtype=True, dtype_source='saved')
        joined = [numpy.concatenate([array.asnumpy() for array in part])
                  for part in (found[:len(devices)], found[len(devices):])]
        yield joined + [array.asnumpy() for param in loaded.collect_params().values() for array in param.list_data()]


@pytest.mark.parametrize('k', [slow(1), slow(2), 3])
def test_synchronized_batch_norm(k, device_list, seed, tmp_path):
    found = []
    for devices, wrap in ((device_list(1), lambda net: net), (device_list(k), SyncBatchNorm)):
        mx.random.seed(seed)
        net = make(Net(), devices)
        trainer = on_each_device(trainable(net), 'sgd', {'learning_rate': 0.03, 'momentum': 0.9})
        rng = numpy.random.default_rng(seed)
        found.append(list(steps_of_all_kinds(net, wrap(net), trainer, devices, rng, str(tmp_path / 'net'))))
    for ours, of_one in zip(*found):
        for a, b in zip(ours, of_one):
            numpy.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)  # float64
