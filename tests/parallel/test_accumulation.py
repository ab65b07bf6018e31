"""A batch in parts: its rows, the sums of its gradients, and one update."""
from functools import partial

import numpy
import pytest
from bfloat16 import needs_bfloat16
from equals_one import equals_one, sequential, started, total_gradients
from trainers import trainable

from gluon_mgpu import concise, scratch
from gluon_mgpu.mxnet_setup.compat import HybridBlock, gluon, init, np, npx
from gluon_mgpu.networks.loss import cross_entropy
from gluon_mgpu.networks.resnet import resnet18
from gluon_mgpu.parallel.accumulation import concise_in_parts, scratch_in_parts
from gluon_mgpu.training.run import Run


@pytest.mark.parametrize('rows, k, num_parts, expected', [
    (8, 2, 2, [4, 4]), (7, 2, 2, [4, 3]), (3, 2, 2, [3]), (8, 2, 9, [2, 2, 2, 2]), (1, 2, 3, [1]), (1, 1, 2, [1])])
def test_rows_of_parts_by_hand(rows, k, num_parts, expected, device_list):
    """Every device has rows of each part, if the batch has as many as devices."""
    sizes, X = [], np.arange(2 * rows).reshape(rows, 2)
    divisors = set()

    def step(X, y, device_params, devices, lr, batch_size, allreduce):
        sizes.append((len(X), y.tolist()))
        divisors.add(batch_size)
        return []

    scratch_in_parts(step, num_parts)(X, np.arange(rows), [], device_list(k), 0.1, None, scratch.allreduce)
    assert [size for size, _ in sizes] == expected and divisors == {rows}
    assert [label for _, labels in sizes for label in labels] == [*range(rows)]


def test_parts_of_a_worker_without_rows(device_list):
    """It takes part in the exchanges of synchronized batch norm in every part."""
    sizes, net = [], gluon.nn.Dense(1, in_units=2)
    net.initialize(ctx=device_list(1))
    train_batch = concise_in_parts(lambda X, *args: sizes.append((len(X), args[-1])) or [], 3, always=True)
    train_batch(np.zeros((1, 2)), np.zeros(1), net, None, None, device_list(1))
    assert sizes == [(1, 1), (0, 1), (0, 1)]  # the divisor is that of the whole batch


class RecordingTrainer:
    """Keeps the gradients that it is called with, summed over the devices."""

    def __init__(self, net):
        self.net, self.seen = net, []

    def step(self, batch_size):
        self.seen.append((batch_size, *(gradient.ravel().tolist() for gradient in total_gradients(self.net))))


class SometimesUsed(HybridBlock):
    """y = X w, and + X v in the calls whose numbers are in `used_in`."""

    def __init__(self, used_in):
        super().__init__()
        self.w, self.v = (gluon.nn.Dense(1, use_bias=False, in_units=1) for _ in range(2))
        self.used_in, self.calls = used_in, 0

    def forward(self, X):
        self.calls += 1
        return self.w(X) + self.v(X) if self.calls - 1 in self.used_in else self.w(X)


@pytest.mark.parametrize('rows', [7, 3])
@pytest.mark.parametrize('used_in', [range(9), (), (1,)])
@pytest.mark.parametrize('num_parts', [2, 3])
def test_sums_of_gradients(rows, used_in, num_parts, device_list):
    """With the loss sum(y), the gradient is the sum of X, of the parts that use the parameter."""
    devices, net, X = device_list(1), SometimesUsed(used_in), numpy.arange(1, rows + 1, dtype='float32').reshape(-1, 1)
    net.initialize(ctx=devices)
    for param in trainable(net):
        param.grad()[:] = 100  # of the batch before
    trainer = RecordingTrainer(net)
    train_batch = concise_in_parts(concise.train_batch, num_parts)
    ls = train_batch(X, np.zeros(rows), net, lambda y_hat, y: y_hat[:, 0], trainer, devices, 24)
    of_v = sum(part.sum() for number, part in enumerate(numpy.array_split(X, num_parts)) if number in used_in)
    assert trainer.seen == [(24, [X.sum()], [of_v])]
    assert sum(l.size for l in ls) == rows


def test_a_layer_used_twice(devices):
    """MXNet 2 lists its parameters once for each use; their sums must be added once."""
    def program(devices, rng, step):
        layer = gluon.nn.Dense(4, in_units=4)
        net = started(sequential(layer, layer), devices, rng)
        trainer = gluon.Trainer(trainable(net), 'sgd', {'learning_rate': 0.1})
        step(rng.normal(size=(8, 4)), rng.integers(0, 4, 8), net, cross_entropy, trainer, devices, 8)
        yield net

    equals_one(partial(program, step=concise_in_parts(concise.train_batch, 2)), devices,
               one=partial(program, step=concise.train_batch))


def test_batch_norm_sees_the_parts(devices, rng):
    """By hand: each part moves the running mean by a tenth of the way to the mean of its own rows."""
    net = sequential(gluon.nn.Flatten(), gluon.nn.BatchNorm(), gluon.nn.Dense(10))
    X = rng.random((7, 1, 28, 28)).astype('float32')  # parts of 4 and 3 rows, each split into 2 and 2, 2 and 1
    data = [(np.array(X), np.arange(7))]
    concise.train(2, 7, 0.1, devices=devices[:2], data=(data, data), net=net, run=Run(1, quiet=True),
                  train_batch=concise_in_parts(concise.train_batch, 2))
    rows = X.reshape(7, 784)
    for device, parts in zip(devices, ([rows[:2], rows[4:6]], [rows[2:4], rows[6:]])):
        expected = 0.9 * 0.1 * parts[0].mean(axis=0) + 0.1 * parts[1].mean(axis=0)
        numpy.testing.assert_allclose(net[1].running_mean.data(device).asnumpy(), expected, rtol=1e-5)  # float32


@pytest.mark.slow
@needs_bfloat16
def test_low_precision(devices, rng):
    """The gradients of bfloat16's casts are added up as well: a batch of equal halves trains as its half does."""
    net = resnet18(10, 'bfloat16')
    half, found = rng.random((4, 1, 28, 28)).astype('float32'), []
    for step, X in ((concise.train_batch, half),
                    (concise_in_parts(concise.train_batch, 2), numpy.concatenate([half, half]))):
        npx.random.seed(0)
        net.initialize(init.Xavier(), ctx=devices, force_reinit=True)
        trainer = RecordingTrainer(net)
        step(np.array(X), np.arange(len(X)) % 4, net, cross_entropy, trainer, devices, len(X))
        found.append(trainer.seen[0][1:])
    for half, whole in zip(*found):
        numpy.testing.assert_allclose(whole, 2 * numpy.array(half), rtol=1e-3, atol=1e-3)
