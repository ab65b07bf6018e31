"""Programs of all kinds behave with `data_parallel`, `hybridized` and `Trainer` as with plain Gluon.

Each program runs twice on the same devices and shards: with plain Gluon, operator by operator, and with ours. It yields
the values that it reads, which must be equal in float64.
"""
import random
from collections.abc import Callable, Iterator

import numpy
import pytest
from slow import slow

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, autograd, gluon, init, mx, np, npx
from gluon_mgpu.networks.hybridize import static
from gluon_mgpu.networks.hybridize.block import hybridized
from gluon_mgpu.networks.hybridize.static import MAX_CREATED
from gluon_mgpu.parallel.data_parallel import data_parallel
from gluon_mgpu.parallel.split import split_and_load
from gluon_mgpu.parallel.sync_batch_norm.network import SyncBatchNorm
from gluon_mgpu.parallel.trainer import Trainer, trainable

nn = gluon.nn
SETTINGS = {'learning_rate': 0.03, 'momentum': 0.9}
FACTOR = 1.0  # which `Net` reads


class Net(HybridBlock):
    """A convolution, batch norm, and two dense layers, for images of any size."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2D(4, 3, in_channels=2), nn.BatchNorm(in_channels=4)
        self.hidden, self.out = nn.Dense(5, in_units=4, activation='tanh'), nn.Dense(3, in_units=5)
        self.alpha, self.calls = 1.0, None

    def forward(self, X):
        if self.calls is not None:
            self.calls += 1
        # Not the mean, which is float32 on MXNet 2
        features = npx_of(X).activation(self.norm(self.conv(X)) * self.alpha, act_type='relu').sum(axis=(2, 3)) * 0.05
        return self.out(self.hidden(features)) * FACTOR


def npx_of(X):
    return mx.sym.npx if isinstance(X, mx.sym.Symbol) else npx


def block_of(net):
    return getattr(net, 'block', net) if not isinstance(net, gluon.Block) else net


class Plain:
    """Plain Gluon: the block itself and gluon.Trainer."""

    def network(self, net, devices):
        net.initialize(init.Normal(0.5), ctx=devices)
        net.cast('float64')
        return net

    def trainer(self, nets, settings=SETTINGS):
        params = [param for net in nets for param in trainable(net)]
        return gluon.Trainer(params, 'sgd', dict(settings), update_on_kvstore=False)

    def data_parallel(self, net, devices, settings=SETTINGS):
        net = self.network(net, devices)
        return net, self.trainer([net], settings)


class Ours(Plain):
    """`hybridized` and our Trainer, or `data_parallel`."""

    def network(self, net, devices):
        return hybridized(super().network(net, devices))

    def trainer(self, nets, settings=SETTINGS):
        return Trainer([param for net in nets for param in trainable(net)], 'sgd', dict(settings), move_gradients=nets)

    def data_parallel(self, net, devices, settings=SETTINGS):
        return data_parallel(Plain().network(net, devices), devices, 'sgd', dict(settings))


def batch(rng, devices, rows=7, side=6, channels=2):
    """Return the shards of random images and of a target."""
    X, y = rng.normal(size=(rows, channels, side, side)), rng.normal(size=(rows, 3))
    return split_and_load(X, devices), split_and_load(y, devices)


def losses(net, X_shards, y_shards):
    return [((net(X) - y) ** 2).sum() for X, y in zip(X_shards, y_shards)]


def step(net, trainer, rng, devices, **options):
    X_shards, y_shards = batch(rng, devices, **options)
    with autograd.record():
        ls = losses(net, X_shards, y_shards)
    autograd.backward(ls)
    trainer.step(7, ignore_stale_grad=True)


def values(net, what=lambda param: True) -> list:
    """Return the parameters and statistics of a network on all devices, without waiting for anything else."""
    return [array.asnumpy() for param in block_of(net).collect_params().values() if what(param)
            for array in param.list_data()]


def statistics(net) -> list:
    return values(net, lambda param: not param._differentiable)


# --- programs: generators of what they read ---

def unfrozen(way, devices, rng) -> Iterator:
    """Train with frozen layers, unfreeze them, and train on."""
    net = Net()
    for layer in (net.conv, net.norm):
        layer.collect_params().setattr('grad_req', 'null') if MXNET_MAJOR < 2 else layer.setattr('grad_req', 'null')
    net, trainer = way.data_parallel(net, devices)
    for grad_req in ('null', 'write', 'null', 'write'):
        for layer in (block_of(net).conv, block_of(net).norm):
            for param in trainable(layer):
                param.grad_req = grad_req
        for _ in range(2):
            step(net, trainer, rng, devices)
            yield values(net)


def penalty_in_every_second_step(way, devices, rng) -> Iterator:
    net, trainer = way.data_parallel(Net(), devices)
    for i in range(6):
        X_shards, y_shards = batch(rng, devices)
        with autograd.record():
            ls = losses(net, X_shards, y_shards)
            if i % 2:
                ls = [l + sum((param.data(l.ctx) ** 2).sum() for param in trainable(net)) for l in ls]
        autograd.backward(ls)
        trainer.step(7)
        yield values(net)


def called_twice_in_every_third_step(way, devices, rng) -> Iterator:
    net, trainer = way.data_parallel(Net(), devices)
    for i in range(6):
        X_shards, y_shards = batch(rng, devices)
        with autograd.record():
            ls = losses(net, X_shards, y_shards)
            if i % 3 == 1:
                ls = [l + (net(-X) * net(X)).sum() for l, X in zip(ls, X_shards)]
        autograd.backward(ls)
        trainer.step(7)
        yield values(net)


def predictions_anywhere(way, devices, rng) -> Iterator:
    """Predict in the forward pass, before the step, with record(train_mode=False), and in train_mode()."""
    net, trainer = way.data_parallel(Net(), devices)
    for _ in range(4):
        X_shards, y_shards = batch(rng, devices)
        with autograd.record():
            ls = losses(net, X_shards, y_shards)
            with autograd.predict_mode():
                found = [net(X) for X in X_shards]
            with autograd.pause():
                found += [net(X) for X in X_shards]
        autograd.backward(ls)
        found += [net(X) for X in X_shards]
        with autograd.record(train_mode=False):
            found += [net(X) for X in X_shards]
        with autograd.train_mode():
            found += [net(X) for X in X_shards]
        trainer.step(7)
        found += [net(X) for X in X_shards]
        yield [array.asnumpy() for array in found]


def late(device):
    """Return 1 when the device has run an operator that takes some 50 ms, and then a hundred others."""
    one = np.ones((1200, 1200), ctx=device)
    one = np.dot(one, one)[:1, :1] / 1200
    for _ in range(100):
        one = one * 1
    return one[0, 0].astype('float64')


def statistics_read_before_and_after_they_are_written(way, devices, rng) -> Iterator:
    """Predict with late inputs, before a backward pass; read statistics after one, which runs late."""
    net, trainer = way.data_parallel(Net(), devices)
    for backward in (autograd.backward, lambda ls: [l.backward() for l in ls],
                     lambda ls: autograd.grad(ls, [block_of(net).out.bias.data(l.ctx) for l in ls])) * 2:
        X_shards, y_shards = batch(rng, devices)
        with autograd.record():
            ls = losses(net, X_shards, y_shards)
        found = [net(X * late(X.ctx)) for X in X_shards]
        backward(ls)
        trainer.step(7, ignore_stale_grad=True)
        yield [array.asnumpy() for array in found]
        with autograd.record():
            ls = [l * late(l.ctx) for l in losses(net, X_shards, y_shards)]
        backward(ls)
        yield statistics(net)
        yield [net(X).asnumpy() for X in X_shards]


def two_calls_in_a_backward_pass(way, devices, rng) -> Iterator:
    """Differentiate two calls at once, one of which is late, with another backward pass between the calls."""
    net, trainer = way.data_parallel(Net(), devices)
    for late_call, retain_graph in [(0, False), (1, False), (0, True), (1, True)] * 2:
        ls: list = []
        for call in range(2):
            X_shards, y_shards = batch(rng, devices)
            if call == late_call:
                X_shards = [X * late(X.ctx) for X in X_shards]
            with autograd.record():
                ls += losses(net, X_shards, y_shards)
            if call == 0 and retain_graph:
                autograd.backward(ls, retain_graph=True)
            elif call == 0:  # a backward pass of something else
                weight = np.ones(3, ctx=devices[0])
                weight.attach_grad()
                with autograd.record():
                    product = (weight * 2).sum()
                product.backward()
        autograd.backward(ls)
        trainer.step(7)
        yield values(net)


def a_batch_norm_in_two_branches(way, devices, rng) -> Iterator:
    """One of the branches is longer, so that its backward pass reaches the batch norm later."""
    class Branches(Net):
        def __init__(self, long):
            super().__init__()
            self.long = long

        def forward(self, X):
            branches = [self.norm(self.conv(X)), self.norm(self.conv(X * 0.5))]
            for _ in range(100):
                branches[self.long] = branches[self.long] * 1
            return self.out(self.hidden((branches[0] * branches[1]).sum(axis=(2, 3)) * 0.05))

    for long in (0, 1):
        net, trainer = way.data_parallel(Branches(long), devices)
        for _ in range(3):
            X_shards, y_shards = batch(rng, devices)
            with autograd.record():
                ls = losses(net, [X * late(X.ctx) for X in X_shards], y_shards)
            autograd.backward(ls)
            trainer.step(7)
            yield values(net)


def a_function_with_batch_norm(way, devices, rng) -> Iterator:
    """Its statistics are arguments."""
    def normalized(X, gamma, beta, mean, var):
        return npx.batch_norm(X, gamma, beta, mean, var, eps=2**-10, momentum=0.5, fix_gamma=False)

    network = hybridized(normalized) if isinstance(way, Ours) else normalized
    arrays = {device: [np.array(rng.normal(size=2) ** 2, dtype='float64', ctx=device) for _ in range(4)]
              for device in devices}
    for on_device in arrays.values():
        for array in on_device[:2]:
            array.attach_grad()
    for _ in range(3):
        with autograd.record():
            ls = [(network(X, *arrays[X.ctx]) ** 3).sum() for X in batch(rng, devices)[0]]
        found = [network(X, *arrays[X.ctx]) for X in batch(rng, devices)[0]]
        autograd.backward(ls)
        found += [network(X, *arrays[X.ctx]) for X in batch(rng, devices)[0]]
        for on_device in arrays.values():
            found += [*on_device[2:], *(array.grad for array in on_device[:2])]
        yield [array.asnumpy() for array in found]


def adversarial(way, devices, rng) -> Iterator:
    """Train on images moved along their gradient, which is computed in prediction mode."""
    net, trainer = way.data_parallel(Net(), devices)
    for _ in range(4):
        X_shards, y_shards = batch(rng, devices)
        for X in X_shards:
            X.attach_grad()
        with autograd.record(train_mode=False):
            ls = losses(net, X_shards, y_shards)
        autograd.backward(ls, train_mode=False)
        moved = [X + 0.1 * np.sign(X.grad) for X in X_shards]
        with autograd.record():
            ls = losses(net, moved, y_shards)
        autograd.backward(ls)
        trainer.step(7)
        yield [X.grad.asnumpy() for X in X_shards] + statistics(net) + values(net)


def saved_after_a_step(way, devices, rng, tmp_path) -> Iterator:
    """Save right after a step, and read the statistics."""
    net, trainer = way.data_parallel(Net(), devices)
    for _ in range(3):
        step(net, trainer, rng, devices)
        block_of(net).save_parameters(str(tmp_path / 'net'))
        loaded = Net()
        loaded.load_parameters(str(tmp_path / 'net'), ctx=devices[0], cast_dtype=True, dtype_source='saved')
        yield values(loaded)
        step(net, trainer, rng, devices)
        yield statistics(net)


def two_networks(way, devices, rng) -> Iterator:
    """One Trainer for an encoder, which is also used alone, and a decoder with a transposed convolution."""
    encoder, decoder = (way.network(block, devices) for block in (
        nn.Conv2D(4, 3, in_channels=2), nn.Conv2DTranspose(2, 3, in_channels=4)))
    trainer = way.trainer([encoder, decoder])
    for i in range(4):
        X_shards, _ = batch(rng, devices)
        with autograd.record():
            ls = [((decoder(encoder(X)) - X) ** 2).sum() for X in X_shards]
            if i % 2:
                ls = [l + encoder(X).sum() for l, X in zip(ls, X_shards)]
        autograd.backward(ls)
        trainer.step(7)
        yield values(encoder) + values(decoder)


def generative(way, devices, rng) -> Iterator:
    """A generator and a discriminator, each with its Trainer; one is frozen while the other is trained."""
    def gan(units):
        net = nn.HybridSequential()
        net.add(nn.Dense(5, in_units=units, activation='tanh'), nn.Dense(6 - units, in_units=5))
        return net

    (G, of_G), (D, of_D) = (way.data_parallel(gan(units), devices) for units in (1, 5))
    for _ in range(4):
        Z_shards = split_and_load(rng.normal(size=(7, 1)), devices)
        X_shards = split_and_load(rng.normal(size=(7, 5)), devices)
        with autograd.record():
            ls = [(D(X) - 1).sum() ** 2 + (D(G(Z).detach()) ** 2).sum() for X, Z in zip(X_shards, Z_shards)]
        autograd.backward(ls)
        of_D.step(7)
        for param in trainable(D):
            param.grad_req = 'null'
        with autograd.record():
            ls = [((D(G(Z)) - 1) ** 2).sum() for Z in Z_shards]
        autograd.backward(ls)
        of_G.step(7)
        for param in trainable(D):
            param.grad_req = 'write'
        yield values(G) + values(D)


def hooks(way, devices, rng) -> Iterator:
    """A hook in an inner layer sees the arrays of each call, while it is attached."""
    net, trainer = way.data_parallel(Net(), devices)
    for attached in (False, True, False, True):
        seen = []
        handle = block_of(net).hidden.register_forward_hook(
            lambda block, inputs, output, seen=seen: seen.append(output)) if attached else None
        for _ in range(2):
            step(net, trainer, rng, devices)
        if handle:
            handle.detach()
        assert len(seen) == (2 * len(devices) if attached else 0)
        yield [array.asnumpy() for array in seen] + values(net)


def attributes(way, devices, rng) -> Iterator:
    """Attributes, layers and global variables that change, and an attribute that each call sets."""
    global FACTOR
    net, trainer = way.data_parallel(Net(), devices)
    try:
        for change in ('alpha', 'global', 'layer', 'alpha', 'calls'):
            block = block_of(net)
            if change == 'alpha':
                block.alpha += 0.5
            elif change == 'global':
                FACTOR = 0.5
            elif change == 'layer':
                block.hidden.act = nn.Activation('sigmoid')
            else:
                block.calls = 0
            for _ in range(2):
                step(net, trainer, rng, devices)
            yield values(net)
        assert block.calls == 2 * len(devices)
    finally:
        FACTOR = 1.0


def faded_in(way, devices, rng) -> Iterator:
    """A factor that changes in each step."""
    net, trainer = way.data_parallel(Net(), devices)
    for i in range(12):
        block_of(net).alpha = i / 10
        step(net, trainer, rng, devices)
        yield values(net)


def random_depth(way, devices, rng) -> Iterator:
    """A block skips a layer at random."""
    class Deep(HybridBlock):
        def __init__(self):
            super().__init__()
            self.inner, self.out = nn.Dense(4, in_units=4), nn.Dense(3, in_units=4)

        def forward(self, X):
            return self.out(self.inner(X) if random.random() < 0.5 else X + 0 * self.inner(X))

    random.seed(0)
    net, trainer = way.data_parallel(Deep(), devices)
    for _ in range(8):
        X_shards, y_shards = batch(rng, devices)
        X_shards = [X.reshape(-1, 72)[:, :4] for X in X_shards]
        with autograd.record():
            ls = losses(net, X_shards, y_shards)
        autograd.backward(ls)
        trainer.step(7, ignore_stale_grad=True)
        yield values(net)


def a_plain_block(way, devices, rng) -> Iterator:
    """A Block that is no HybridBlock decides anew in each call."""
    class Deciding(gluon.Block):
        def __init__(self):
            super().__init__()
            self.inner, self.calls = Net(), 0

        def forward(self, X):
            self.calls += 1
            return self.inner(X) * self.calls

    net, trainer = way.data_parallel(Deciding(), devices)
    for _ in range(4):
        step(net, trainer, rng, devices)
        yield values(net) + [net(X).asnumpy() for X in batch(rng, devices)[0]]


def sentences(way, devices, rng) -> Iterator:
    """More shapes than operators with static memory are kept, and created."""
    net, trainer = way.data_parallel(Net(), devices)
    for side in [*range(3, 5 + MAX_CREATED), *range(3, 7)] * 2:
        step(net, trainer, rng, devices, rows=len(devices) + side % 3, side=side)
        yield values(net) + [net(X).asnumpy() for X in batch(rng, devices, side=side)[0]]


def accumulated(way, devices, rng) -> Iterator:
    """Gradients are summed over some batches, with ``grad_req='add'`` for some parameters, and changed meanwhile."""
    net, trainer = way.data_parallel(Net(), devices)
    for X in batch(rng, devices)[0]:
        net(X)  # MXNet 2 initializes it now
    for parts in (1, 3, 1, 2):
        for param in trainable(net):
            param.grad_req = 'add' if parts > 1 else 'write'
            for device in devices:
                param.grad(device)[()] = 0
        for _ in range(parts):
            X_shards, y_shards = batch(rng, devices)
            with autograd.record():
                ls = losses(net, X_shards, y_shards)
            autograd.backward(ls)
        trainer.step(7 * parts)
        yield values(net)


def set_modes(way, devices, rng) -> Iterator:
    """A network that stops recording for a part, in each of MXNet's ways."""
    class Stopping(HybridBlock):
        def __init__(self, stop):
            super().__init__()
            self.inner, self.out, self.stop = nn.Dense(4, in_units=4), nn.Dense(3, in_units=4), stop
            self.drop = nn.Dropout(0.5 if stop == 'set_training' else 0)

        def forward(self, X):
            if self.stop == 'pause':
                with autograd.pause(train_mode=autograd.is_training()):
                    features = self.inner(X)
            else:
                set_mode = getattr(autograd, self.stop)
                before = set_mode(False)
                features = self.drop(self.inner(X))
                set_mode(before)
            return self.out(features)

    for stop in ('pause', 'set_recording', 'set_training'):
        net, trainer = way.data_parallel(Stopping(stop), devices)
        for _ in range(2):
            X_shards, y_shards = batch(rng, devices)
            X_shards = [X.reshape(-1, 72)[:, :4] for X in X_shards]
            with autograd.record():
                ls = losses(net, X_shards, y_shards)
            autograd.backward(ls)
            trainer.step(7, ignore_stale_grad=True)
            yield values(net) + [net(X).asnumpy() for X in X_shards]


def functions_of_autograd(way, devices, rng) -> Iterator:
    """An ``autograd.Function`` that calls np, also in prediction, in a network that counts its calls."""
    class Straight(autograd.Function):
        def forward(self, X):
            return np.sign(X)

        def backward(self, dX):
            return dX

    class Binary(HybridBlock):
        def __init__(self):
            super().__init__()
            self.inner, self.out, self.calls = nn.Dense(4, in_units=4), nn.Dense(3, in_units=4), 0

        def forward(self, X):
            self.calls += 1
            return self.out(Straight()(self.inner(X)) * self.calls)

    net, trainer = way.data_parallel(Binary(), devices)
    for _ in range(3):
        X_shards, y_shards = batch(rng, devices)
        X_shards = [X.reshape(-1, 72)[:, :4] for X in X_shards]
        with autograd.record():
            ls = losses(net, X_shards, y_shards)
        autograd.backward(ls)
        trainer.step(7)
        yield values(net) + [net(X).asnumpy() for X in X_shards]


def large_gradients(way, devices, rng) -> Iterator:
    """A clipped step with gradients whose squares overflow in float32."""
    net = nn.Dense(3, in_units=4)
    net.initialize(init.Normal(0.5), ctx=devices)
    limit = 1.0
    if isinstance(way, Ours):
        net, trainer = data_parallel(net, devices, 'sgd', {'learning_rate': 1.0, 'clip_norm': limit})
    else:
        trainer = gluon.Trainer(trainable(net), 'sgd', {'learning_rate': 1.0}, update_on_kvstore=False)
    for factor in (1e-3, 1e25, 0.0):
        X_shards = split_and_load(rng.normal(size=(7, 4)).astype('float32'), devices)
        with autograd.record():
            ls = [(net(X) * factor).sum() for X in X_shards]
        autograd.backward(ls)
        if not isinstance(way, Ours):
            trainer.allreduce_grads()
            gradients = [numpy.float64(param.grad(devices[0]).asnumpy()) for param in trainable(net)]
            norm = sum((gradient ** 2).sum() for gradient in gradients) ** 0.5 / 7
            for param in trainable(net):
                for gradient in param.list_grad():
                    gradient *= min(1, limit / max(norm, 1e-30))
            trainer.update(7)
        else:
            trainer.step(7)
        yield [numpy.round(value, 4) for value in values(net)]  # float32


def weight_drop(way, devices, rng) -> Iterator:
    """A Parameter with its own `data`, as gluon-nlp's WeightDropParameter."""
    class Halved(gluon.Parameter):
        def data(self, ctx=None):
            return super().data(ctx) * 0.5

    net = nn.Dense(3, in_units=4)
    net._reg_params['weight'] = halved = Halved(net.weight.name, shape=(3, 4))
    if MXNET_MAJOR < 2:
        net.params._params[halved.name] = halved
    object.__setattr__(net, 'weight', halved)
    net, trainer = way.data_parallel(net, devices)
    for _ in range(3):
        X_shards, y_shards = batch(rng, devices)
        X_shards = [X.reshape(-1, 72)[:, :4] for X in X_shards]
        with autograd.record():
            ls = losses(net, X_shards, y_shards)
        autograd.backward(ls)
        trainer.step(7)
        yield values(net) + [net(X).asnumpy() for X in X_shards]


def static_shapes_of_the_user(way, devices, rng) -> Iterator:
    """The user hybridizes the block with static shapes as well, and trains both."""
    block = Net()
    net, trainer = way.data_parallel(block, devices)
    if isinstance(way, Ours):
        block.hybridize(static_alloc=True, static_shape=True)
    for i in range(6):
        step(block if i % 2 == 0 else net, trainer, rng, devices)
        npx.waitall()  # MXNet's own operator with static shapes updates the statistics later
        yield values(net)


def cast_and_initialized_again(way, devices, rng) -> Iterator:
    net, trainer = way.data_parallel(Net(), devices)
    for change in ('', 'initialize', 'cast', 'set_data'):
        block = block_of(net)
        if change == 'initialize':
            mx.random.seed(1)
            block.cast('float32')  # because MXNet's initializers fail for float64
            block.initialize(init.Normal(0.3), ctx=devices, force_reinit=True)
            block.cast('float64')
        elif change == 'cast':
            block.cast('float32')
            block.cast('float64')
        elif change == 'set_data':
            block.out.weight.set_data(np.ones((3, 5), dtype='float64'))
        for _ in range(2):
            step(net, trainer, rng, devices)
        yield values(net) + [net(X).asnumpy() for X in batch(rng, devices)[0]]


PROGRAMS = [unfrozen, penalty_in_every_second_step, called_twice_in_every_third_step, predictions_anywhere,
            adversarial, statistics_read_before_and_after_they_are_written, two_calls_in_a_backward_pass,
            a_batch_norm_in_two_branches, a_function_with_batch_norm,
            saved_after_a_step, two_networks, generative, hooks, attributes, faded_in, random_depth,
            a_plain_block, sentences, accumulated, set_modes, functions_of_autograd, large_gradients,
            weight_drop, static_shapes_of_the_user, cast_and_initialized_again]


def run(program: Callable, way: Plain, devices: list, seed: int, *args) -> list:
    mx.random.seed(seed)
    return [list(found) for found in program(way, devices, numpy.random.default_rng(seed), *args)]


def compare(found: list, expected: list) -> None:
    assert len(found) == len(expected) > 0
    for i, (ours, plain) in enumerate(zip(found, expected)):
        assert len(ours) == len(plain) > 0
        for a, b in zip(ours, plain):
            numpy.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11, err_msg=f'item {i}')  # float64


LATE = (statistics_read_before_and_after_they_are_written, two_calls_in_a_backward_pass,
        a_batch_norm_in_two_branches)  # their inputs take time to compute
ON_ONE_DEVICE = {unfrozen, penalty_in_every_second_step, called_twice_in_every_third_step, predictions_anywhere,
                 saved_after_a_step, two_networks, accumulated, set_modes, cast_and_initialized_again, *LATE}


def is_slow(program, k):
    return k == 2 or (k == 3 and program in LATE) or (k == 1 and program not in ON_ONE_DEVICE)


@pytest.mark.parametrize('program, k', [
    pytest.param(program, k, id=f'{program.__name__}-{k}',
                 marks=[pytest.mark.slow] if is_slow(program, k) else [])
    for program in PROGRAMS for k in (1, 2, 3)])
def test_a_program(program, k, device_list, seed, tmp_path):
    devices = device_list(k)
    args = [tmp_path] if program is saved_after_a_step else []
    expected = run(program, Plain(), devices, seed, *args)
    compare(run(program, Ours(), devices, seed, *args), expected)


# --- all of this in a random order ---

KINDS = ['freeze', 'unfreeze', 'penalty', 'twice', 'predict', 'between', 'input gradient', 'save', 'hook', 'alpha',
         'second', 'shape', 'few rows', 'reset']


def anything(way, devices, rng, path) -> Iterator:
    """Two networks with one Trainer, and in each step some of what programs do, at random."""
    first, second = (way.network(block, devices) for block in (Net(), nn.Dense(3, in_units=3)))
    trainer = way.trainer([first, second])
    handles: list = []
    for _ in range(12):
        kinds = set(rng.choice(KINDS, 4).tolist())
        params = trainable(first) + trainable(second)
        for param in rng.choice(params, 3).tolist():
            if 'freeze' in kinds or 'unfreeze' in kinds:
                param.grad_req = 'null' if 'freeze' in kinds and len(param.shape) > 1 else 'write'
        seen: list = []
        if 'hook' in kinds:
            handles.append(block_of(first).norm.register_forward_hook(
                lambda block, inputs, output, seen=seen: seen.append(output)))
        if 'alpha' in kinds:
            block_of(first).alpha = float(rng.uniform(0.5, 1.5))
        if 'reset' in kinds:
            block_of(second).weight.set_data(np.array(rng.normal(size=(3, 3)), dtype='float64'))
        rows = len(devices) if 'few rows' in kinds else 7
        X_shards, y_shards = batch(rng, devices, rows, 5 if 'shape' in kinds else 6)
        if 'input gradient' in kinds:
            for X in X_shards:
                X.attach_grad()
        found: list = []
        with autograd.record():
            outputs = [first(X) for X in X_shards]
            if 'between' in kinds:
                with autograd.predict_mode():
                    found += [first(X) for X in X_shards]
            ls = [((second(output) - y) ** 2).sum() for output, y in zip(outputs, y_shards)]
            if 'second' in kinds:
                ls = [l + second(output * 2).sum() for l, output in zip(ls, outputs)]
            if 'twice' in kinds:
                ls = [l + (first(-X) ** 2).sum() for l, X in zip(ls, X_shards)]
            if 'penalty' in kinds:
                ls = [l + sum((param.data(l.ctx) ** 2).sum() for param in params) for l in ls]
        autograd.backward(ls)
        if 'predict' in kinds:
            found += [second(first(X)) for X in X_shards]
        trainer.step(rows)
        if 'save' in kinds:
            block_of(first).save_parameters(path)
            loaded = Net()
            loaded.load_parameters(path, ctx=devices[0], cast_dtype=True, dtype_source='saved')
            found += values(loaded)
        found += seen + [X.grad for X in X_shards if 'input gradient' in kinds] + statistics(first)
        if len(handles) > 1:
            handles.pop(0).detach()
        yield [numpy.asarray(getattr(array, 'asnumpy', lambda array=array: array)()) for array in found]
        yield values(first) + values(second)
    for handle in handles:
        handle.detach()


@pytest.mark.parametrize('number', [*range(3), *map(slow, range(3, 60))])
@pytest.mark.parametrize('k', [slow(1), slow(2), 3])
def test_anything(number, k, device_list, seed, tmp_path):
    devices, path = device_list(k), str(tmp_path / 'net')
    expected = run(anything, Plain(), devices, 1000 * seed + number, path)
    compare(run(anything, Ours(), devices, 1000 * seed + number, path), expected)


# --- synchronized batch norm: k devices equal one in the same programs ---

def steps_of_all_kinds(net, trainer, devices, rng, path) -> Iterator:
    """Freeze and unfreeze, change attributes, add penalties, predict in odd places, save."""
    block = block_of(net)
    for i in range(8):
        block.alpha = 1 + 0.5 * (i % 3)
        for param in trainable(block.hidden):
            param.grad_req = 'null' if i in (2, 3) else 'write'
        X_shards, y_shards = batch(rng, devices)
        with autograd.record():
            outputs = net.forward(X_shards) if isinstance(net, SyncBatchNorm) else [net(X) for X in X_shards]
            with autograd.predict_mode():
                found = [net(X) for X in X_shards]
            ls = [((output - y) ** 2).sum() for output, y in zip(outputs, y_shards)]
            if i % 2:  # on one device, since each has the same parameters
                ls[0] = ls[0] + sum((param.data(devices[0]) ** 2).sum() for param in trainable(block))
        (net if isinstance(net, SyncBatchNorm) else autograd).backward(ls)
        found += [net(X) for X in X_shards]
        trainer.step(7)
        block.save_parameters(path)
        loaded = Net()
        loaded.load_parameters(path, ctx=devices[0], cast_dtype=True, dtype_source='saved')
        joined = [numpy.concatenate([array.asnumpy() for array in part])
                  for part in (found[:len(devices)], found[len(devices):])]
        yield joined + values(loaded)


@pytest.mark.parametrize('k', [slow(1), slow(2), 3])
def test_synchronized_batch_norm(k, device_list, seed, tmp_path):
    found = []
    for devices, wrap in ((device_list(1), lambda net: net), (device_list(k), SyncBatchNorm)):
        mx.random.seed(seed)
        net = wrap(Plain().network(Net(), devices))
        trainer = (Trainer if k > 1 else gluon.Trainer)(trainable(net), 'sgd', dict(SETTINGS))
        rng = numpy.random.default_rng(seed)
        found.append(list(steps_of_all_kinds(net, trainer, devices, rng, str(tmp_path / 'net'))))
    compare(*found)


# --- where plain Gluon is wrong ---

@pytest.mark.parametrize('max_created', [MAX_CREATED, 0])  # with static memory and without
def test_a_dense_layer_whose_weight_is_frozen_later(max_created, devices, monkeypatch):
    """Plain MXNet leaves the gradient of its bias as it was in memory; ours is the true one."""
    monkeypatch.setattr(static, 'MAX_CREATED', max_created)
    net = nn.Dense(3, in_units=2)
    net.initialize(ctx=devices)
    fast, X = hybridized(net), np.ones((5, 2), ctx=devices[0])  # float32, by oneDNN
    for grad_req in ('write', 'null', 'write'):
        net.weight.grad_req = grad_req
        net.bias.grad(devices[0])[:] = 7
        with autograd.record():
            l = fast(X).sum()
        l.backward()
        assert net.bias.grad(devices[0]).tolist() == [5, 5, 5]


# --- refusals ---

def test_parameters_of_another_network_cannot_move(devices):
    one, other = (Ours().network(nn.Dense(2, in_units=2), devices) for _ in range(2))
    with pytest.raises(ValueError, match=r'is not in the network of move_gradients: pass a list of all networks'):
        Trainer(trainable(one) + trainable(other), 'sgd', move_gradients=one)
    with pytest.raises(ValueError, match=r'^move_gradients \[.bool.\]: must be the result of hybridized'):
        Trainer(trainable(one), 'sgd', move_gradients=True)


@pytest.mark.parametrize('make', [
    SyncBatchNorm, lambda net: data_parallel(net, net.norm.gamma.list_ctx(), 'sgd', {}, sync_batch_norm=True)])
def test_a_plain_block_cannot_be_cut(make, devices):
    class Plain(gluon.Block):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm(in_channels=2)

    net = Plain()
    net.initialize(ctx=devices)
    with pytest.raises(ValueError, match='^Plain is no gluon.HybridBlock, so it cannot be cut at its batch norms'):
        make(net)


def test_a_network_with_hooks_cannot_be_cut(devices):
    net = SyncBatchNorm(Plain().network(Net(), devices))
    X_shards, _ = batch(numpy.random.default_rng(0), devices)
    net.block.out.register_forward_hook(print)
    with autograd.record(), pytest.raises(ValueError, match=r'^Net cannot be traced \(it has forward hooks\)'):
        net.forward(X_shards)
