"""Training programs of all kinds, written as own-project.md teaches: k devices equal one, however the network runs.

Each program trains with the package's functions for the step, and yields the values that it reads, which must equal
those of the same program in plain Gluon on one device.
"""
import itertools
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from book_steps import freeze
from equals_one import equals_one, rows, sequential, squared, started, take_gradients
from slow import slow
from trainers import on_each_device, trainable

from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, np, npx
from gluon_mgpu.networks.static_shapes import StaticSequential
from gluon_mgpu.parallel.split import split_batch
from gluon_mgpu.parallel.step import prepare_idle_devices
from gluon_mgpu.training.evaluate import evaluate_accuracy_gpus

nn = gluon.nn
# How the owner of a network lets it run; the program decides
HYBRIDIZE = {'eager': None, 'hybridize': {}, 'static_alloc': {'static_alloc': True},
             'static_shape': {'static_alloc': True, 'static_shape': True}}


def dense_net(devices, rng, units=(4, 5, 3), how='eager', trainer_of=gluon.Trainer):
    """Return a network of dense layers with so many units, run as its owner wants, and its Trainer."""
    layers = [nn.Dense(following, in_units=size, activation='tanh') for size, following in itertools.pairwise(units)]
    net = started(sequential(*layers, kind=StaticSequential), devices, rng)
    if HYBRIDIZE[how] is not None:
        net.hybridize(**HYBRIDIZE[how])
    return net, trainer_of(trainable(net), 'sgd', {'learning_rate': 0.1, 'momentum': 0.9})


def step(losses_of, nets, trainer, X, y, devices):
    """Take the step of own-project.md."""
    take_gradients(losses_of, nets, X, y, devices)
    trainer.step(12)


def batches(rng, units=4, outputs=3):
    for n in (12, 7, 2, 9):  # also fewer than devices
        yield rng.normal(size=(n, units)), rng.normal(size=(n, outputs))


# --- programs: generators of what they read ---

def plain(devices, rng, make):
    net, trainer = make(devices, rng)
    for X, y in batches(rng):
        step(squared(net), [net], trainer, X, y, devices)
        yield net


def frozen_and_unfrozen(devices, rng, make):
    net, trainer = make(devices, rng)
    for grad_req in ('null', 'write', 'null', 'write'):
        freeze(net[0], grad_req)
        for X, y in batches(rng):
            step(squared(net), [net], trainer, X, y, devices)
        yield net


def penalty_in_every_second_step(devices, rng, make):
    net, trainer = make(devices, rng)
    for i, (X, y) in enumerate(batches(rng)):
        def losses_of(X, y, use_penalty=i % 2):
            l = squared(net)(X, y)
            return l + sum((p.data(X.ctx) ** 2).sum() for p in trainable(net)) if use_penalty else l
        step(losses_of, [net], trainer, X, y, devices)
        yield net


def actor_and_critic(devices, rng, make):
    """The critic is updated between two forward passes of the actor, and frozen while the actor is trained."""
    (actor, of_actor), (critic, of_critic) = make(devices, rng), make(devices, rng, (3, 5, 1))
    for X, y in batches(rng):
        X_shards, _ = split_batch(X, y, devices)
        with autograd.record():
            actions = [actor(X_shard) for X_shard in X_shards]
            ls = [(critic(action.detach()) ** 2)[:, 0] for action in actions]
        autograd.backward(ls)
        prepare_idle_devices(critic, y, devices)
        of_critic.step(12)
        freeze(critic)
        with autograd.record():
            ls = [critic(actor(X_shard))[:, 0] for X_shard in X_shards]
        autograd.backward(ls)
        prepare_idle_devices(actor, y, devices)
        of_actor.step(12)
        freeze(critic, 'write')
        yield actor, critic


def clipped_by_a_list_made_before(devices, rng, make):
    """The list of gradients is made once, before the loop."""
    net, trainer = make(devices, rng)
    gradients = [[param.grad(device) for param in trainable(net)] for device in devices]
    for X, y in batches(rng):
        take_gradients(squared(net), [net], X, y, devices)
        trainer.allreduce_grads()
        for of_device in gradients:
            norm = sum((g ** 2).sum() for g in of_device) ** 0.5
            for g in of_device:
                g *= (0.1 / norm).clip(0, 1)
        trainer.update(1)
        yield net


def accumulated(devices, rng, make):
    """Gradients with ``grad_req='add'`` are summed over three batches."""
    net, trainer = make(devices, rng)
    for param in trainable(net):
        param.grad_req = 'add'
    for _ in range(3):
        for X, y in batches(rng):
            take_gradients(squared(net), [net], X, y, devices)
        trainer.step(30)
        for param in trainable(net):
            for gradient in param.list_grad():
                gradient[()] = 0
        yield net


def gradient_of_the_input(devices, rng, make):
    """Train on rows moved along their gradient."""
    net, trainer = make(devices, rng)
    for X, y in batches(rng):
        X_shards, y_shards = split_batch(X, y, devices)
        for X_shard in X_shards:
            X_shard.attach_grad()
        with autograd.record():
            ls = [squared(net)(X_shard, y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
        autograd.backward(ls)
        moved = rows([X + 0.1 * np.sign(X.grad) for X in X_shards])
        step(squared(net), [net], trainer, moved, y, devices)
        yield net, moved


def evaluated_and_saved(devices, rng, make, folder):
    """Evaluate, save and load between the steps."""
    net, trainer = make(devices, rng)
    for X, y in batches(rng):
        step(squared(net), [net], trainer, X, y, devices)
        X, labels = np.array(rng.normal(size=(5, 4)), dtype='float64'), np.array(rng.integers(0, 3, 5))
        accuracy = evaluate_accuracy_gpus(net, [(X, labels)], devices=devices)
        checkpoint.save(folder / 'saved', net, trainer)
        step(squared(net), [net], trainer, rng.normal(size=(4, 4)), rng.normal(size=(4, 3)), devices)
        checkpoint.load(folder / 'saved', net, trainer)
        yield net, accuracy


def in_threads(devices, rng, make):
    """Two networks in two threads."""
    if MXNET_MAJOR >= 2:
        pytest.skip('MXNet 2 crashes at times if several threads start operators at once')
    nets, trainers = zip(*(make(devices, rng) for _ in range(2)))
    for X, y in batches(rng):
        with ThreadPoolExecutor(2, initializer=npx.set_np) as pool:
            list(pool.map(lambda net, trainer, X=X, y=y: step(squared(net), [net], trainer, X, y, devices),
                          nets, trainers))
        yield nets


PROGRAMS = [plain, frozen_and_unfrozen, penalty_in_every_second_step, actor_and_critic,
            clipped_by_a_list_made_before, accumulated, gradient_of_the_input, evaluated_and_saved, in_threads]


@pytest.mark.parametrize('trainer_of', [gluon.Trainer, on_each_device])
@pytest.mark.parametrize('how, k', [
    ('eager', 3), ('static_shape', 3), ('eager', 2), *[slow(how, k) for how in ('hybridize', 'static_alloc')
                                                      for k in (2, 3)], slow('static_shape', 2)])
@pytest.mark.parametrize('program', PROGRAMS)
def test_k_devices_equal_plain_gluon_on_one(program, how, k, trainer_of, device_list, tmp_path):
    if program is penalty_in_every_second_step and how == 'static_shape':
        pytest.skip('wrong in Gluon itself, as own-project.md says')
    if program is clipped_by_a_list_made_before and trainer_of is gluon.Trainer:
        pytest.skip('the key-value store updates at once')
    if program is evaluated_and_saved:
        program = partial(program, folder=tmp_path)
    equals_one(partial(program, make=partial(dense_net, how=how, trainer_of=trainer_of)), device_list(k),
               one=partial(program, make=partial(dense_net, trainer_of=trainer_of)))
