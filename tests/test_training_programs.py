"""Training programs of all kinds, written as own-project.md teaches: k devices equal one, however the network runs.

Each program trains with the package's functions for the step, and yields the values that it reads, which must equal
those of the same program in plain Gluon on one device.
"""
import itertools
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from equals_one import Plain, equals_one, rows, sequential, squared, take_gradients
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
# How the owner of a network lets it run; the program decides
HYBRIDIZE = {'eager': None, 'hybridize': {}, 'static_alloc': {'static_alloc': True},
             'static_shape': {'static_alloc': True, 'static_shape': True}}


def dense(*units):
    return sequential(*(nn.Dense(following, in_units=size, activation='tanh')
                        for size, following in itertools.pairwise(units)), kind=StaticSequential)


def make(net, devices, how='eager'):
    """Initialize a network in float64, and hybridize it."""
    net.initialize(init.Normal(0.5), ctx=devices)
    net.cast('float64')
    if HYBRIDIZE[how] is not None:
        net.hybridize(**HYBRIDIZE[how])
    return net


def step(losses_of, nets, trainer, X, y, devices):
    """Take the step of own-project.md."""
    take_gradients(losses_of, nets, X, y, devices)
    trainer.step(12)


def batches(rng, units=4, outputs=3):
    for n in (12, 7, 2, 9):  # also fewer than devices
        yield rng.normal(size=(n, units)), rng.normal(size=(n, outputs))


# --- programs: generators of what they read ---

def plain(devices, rng, trainer_of, how):
    net = make(dense(4, 5, 3), devices, how)
    trainer = trainer_of(trainable(net), 'sgd', {'learning_rate': 0.1, 'momentum': 0.9})
    for X, y in batches(rng):
        step(squared(net), [net], trainer, X, y, devices)
        yield net


def frozen_and_unfrozen(devices, rng, trainer_of, how):
    net = make(dense(4, 5, 3), devices, how)
    trainer = trainer_of(trainable(net), 'sgd', {'learning_rate': 0.1})
    for grad_req in ('null', 'write', 'null', 'write'):
        for param in trainable(net[0]):
            param.grad_req = grad_req
        for X, y in batches(rng):
            step(squared(net), [net], trainer, X, y, devices)
        yield net


def penalty_in_every_second_step(devices, rng, trainer_of, how):
    if how == 'static_shape':
        pytest.skip('wrong in Gluon itself, as own-project.md says')
    net = make(dense(4, 5, 3), devices, how)
    trainer = trainer_of(trainable(net), 'sgd', {'learning_rate': 0.1})
    for i, (X, y) in enumerate(batches(rng)):
        def losses_of(X, y, use_penalty=i % 2):
            l = squared(net)(X, y)
            return l + sum((p.data(X.ctx) ** 2).sum() for p in trainable(net)) if use_penalty else l
        step(losses_of, [net], trainer, X, y, devices)
        yield net


def actor_and_critic(devices, rng, trainer_of, how):
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
        yield actor, critic


def generative(devices, rng, trainer_of, how):
    """A generator and a discriminator, each with its Trainer; one is frozen while the other is trained."""
    G, D = make(dense(2, 5, 4), devices, how), make(dense(4, 5, 1), devices, how)
    of_G, of_D = (trainer_of(trainable(net), 'sgd', {'learning_rate': 0.1}) for net in (G, D))
    for X, Z in batches(rng, outputs=2):
        step(lambda X, Z: ((D(X) - 1) ** 2 + D(G(Z).detach()) ** 2)[:, 0], [D], of_D, X, Z, devices)
        for param in trainable(D):
            param.grad_req = 'null'
        step(lambda X, Z: ((D(G(Z)) - 1) ** 2)[:, 0], [G], of_G, X, Z, devices)
        for param in trainable(D):
            param.grad_req = 'write'
        yield G, D


def clipped_by_a_list_made_before(devices, rng, trainer_of, how):
    """The list of gradients is made once, before the loop."""
    if trainer_of is not on_each_device:
        pytest.skip('the key-value store updates at once')
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
        yield net


def accumulated(devices, rng, trainer_of, how):
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
        yield net


def gradient_of_the_input(devices, rng, trainer_of, how):
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
        moved = rows([X + 0.1 * np.sign(X.grad) for X in X_shards])
        step(squared(net), [net], trainer, moved, y, devices)
        yield net, moved


def evaluated_and_saved(devices, rng, trainer_of, how, folder):
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
        yield net, accuracy


def in_threads(devices, rng, trainer_of, how):
    """Two networks in two threads."""
    if MXNET_MAJOR >= 2:
        pytest.skip('MXNet 2 crashes at times if several threads start operators at once')
    nets = [make(dense(4, 5, 3), devices, how) for _ in range(2)]
    trainers = [trainer_of(trainable(net), 'sgd', {'learning_rate': 0.1}) for net in nets]
    for X, y in batches(rng):
        with ThreadPoolExecutor(2, initializer=npx.set_np) as pool:
            list(pool.map(lambda net, trainer, X=X, y=y: step(squared(net), [net], trainer, X, y, devices),
                          nets, trainers))
        yield nets


PROGRAMS = [plain, frozen_and_unfrozen, penalty_in_every_second_step, actor_and_critic, generative,
            clipped_by_a_list_made_before, accumulated, gradient_of_the_input, evaluated_and_saved, in_threads]


@pytest.mark.parametrize('trainer_of', [gluon.Trainer, on_each_device])
@pytest.mark.parametrize('how, k', [
    ('eager', 3), ('static_shape', 3), ('eager', 2), *[slow(how, k) for how in ('hybridize', 'static_alloc')
                                                      for k in (2, 3)], slow('static_shape', 2)])
@pytest.mark.parametrize('program', PROGRAMS)
def test_k_devices_equal_plain_gluon_on_one(program, how, k, trainer_of, device_list, tmp_path):
    options = {'folder': tmp_path} if program is evaluated_and_saved else {}
    program = partial(program, trainer_of=trainer_of, **options)
    equals_one(partial(program, how=how), device_list(k), one=partial(program, how='eager'))


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


def steps_of_all_kinds(devices, rng, wrap, path):
    """Freeze and unfreeze, add penalties, predict in odd places, save."""
    net = make(Net(), devices)
    trainer, fast = on_each_device(trainable(net), 'sgd', {'learning_rate': 0.03, 'momentum': 0.9}), wrap(net)
    for i in range(8):
        for param in trainable(net.hidden):
            param.grad_req = 'null' if i in (2, 3) else 'write'
        X_shards, y_shards = split_batch(rng.normal(size=(7, 2, 6, 6)), rng.normal(size=(7, 3)), devices)
        with autograd.record():
            outputs = fast.forward(X_shards)
            with autograd.predict_mode():
                before = [net(X) for X in X_shards]
            ls = [((output - y) ** 2).sum() for output, y in zip(outputs, y_shards)]
            if i % 2:  # on one device, since each has the same parameters
                ls[0] = ls[0] + sum((param.data(devices[0]) ** 2).sum() for param in trainable(net))
        fast.backward(ls)
        after = [net(X) for X in X_shards]
        trainer.step(7)
        net.save_parameters(path)
        loaded = Net()
        loaded.load_parameters(path, ctx=devices[0], cast_dtype=True, dtype_source='saved')
        yield rows(before), rows(after), loaded


@pytest.mark.parametrize('k', [slow(1), slow(2), 3])
def test_synchronized_batch_norm(k, device_list, tmp_path):
    program = partial(steps_of_all_kinds, path=str(tmp_path / 'net'))
    equals_one(partial(program, wrap=SyncBatchNorm), device_list(k), one=partial(program, wrap=Plain))
