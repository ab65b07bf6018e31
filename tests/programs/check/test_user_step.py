"""The arguments of a step, and what the check changes in it."""
import collections
import weakref
from functools import partial

import numpy
import pytest
from slow import slow
from steps_to_check import (
    LOSS,
    LR,
    check_two,
    make_network,
    step_of_trainer,
    step_with_trainer,
    with_dropout_and_batch_norm,
)

from gluon_mgpu import check_data_parallel
from gluon_mgpu.mxnet_setup.compat import autograd, gluon, init, np


def test_earlier_networks_are_freed(batches):
    """A check makes many networks; in memory are those of the current comparison, on one device and on several."""
    alive, numbers = weakref.WeakSet(), []

    def make(devices):
        net, trainer = make_network(devices)
        alive.add(net)
        numbers.append(len(alive))
        return net, trainer
    assert check_data_parallel(make, step_with_trainer, batches).ok
    assert len(numbers) > 4 and max(numbers) <= 3


def test_batch_norm_that_was_traced_before(batches):
    """With a warm-up call in `make`, and a step that cannot compute in float64."""
    def make(devices):
        net, trainer = make_network(devices, layers=with_dropout_and_batch_norm)
        net.hybridize()
        for device in devices:
            with autograd.record():
                net(np.zeros((2, 6), ctx=device))
        return net, trainer

    def train_batch(state, X, y, devices):
        step_with_trainer(state, X.astype('float32'), y, devices)
    report = check_data_parallel(make, train_batch, batches)
    assert report.ok and 'in its own dtype' in report.title, report


def books_split_batch_multi_inputs(X, y, devices):
    """Split as D2L does in natural language inference."""
    X = list(zip(*[gluon.utils.split_and_load(feature, devices, even_split=False) for feature in X]))
    return X, gluon.utils.split_and_load(y, devices, even_split=False)


class TwoInputs(gluon.Block):
    """Embedded words, and numbers."""

    def __init__(self):
        super().__init__()
        self.embedding, self.dense = gluon.nn.Embedding(10, 3), gluon.nn.Dense(4)

    def forward(self, words, numbers):
        return self.dense(np.concatenate([self.embedding(words).sum(axis=1), numbers], axis=1))


def make_two_inputs(devices):
    net = TwoInputs()
    net.initialize(init.Normal(0.5), ctx=devices)
    return net, gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': LR})


def step_of_two_inputs(state, X, y, devices, mean=False):
    (net, trainer), ((words, numbers), (labels, weights)) = state, (X, y)
    assert type(words) is np.ndarray and len(words) == len(weights) == len(labels)
    shards, _ = books_split_batch_multi_inputs([words, numbers, labels, weights], labels, devices)
    shards = [shard for shard in shards if len(shard[0])]
    with autograd.record():
        ls = [LOSS(net(*inputs), label) * weight for *inputs, label, weight in shards]
        if mean:
            ls = [l.mean() for l in ls]
    step_of_trainer(ls, net, trainer, devices, 1 if mean else len(words))


def batches_of_two_inputs(kind):
    """Return tuples of tuples, also as a Gluon DataLoader and a program with names do."""
    rng = numpy.random.default_rng(0)
    words, numbers = rng.integers(0, 10, (48, 5)).astype('int32'), rng.normal(size=(48, 2)).astype('float32')
    labels, weights = rng.integers(0, 4, 48), rng.uniform(size=48).astype('float16')
    if kind == 'lists':
        return [[[np.array(array, dtype=array.dtype) for array in part]
                 for part in ((words, numbers), (labels, weights))]]
    inputs = collections.namedtuple('Inputs', 'words numbers')
    return [(inputs(words[rows], numbers[rows]) if kind == 'named' else (words[rows], numbers[rows]),
             (labels[rows], weights[rows])) for rows in (slice(20), slice(20, 48))]


@pytest.mark.parametrize('kind', ['tuples', slow('lists'), slow('named')])
def test_several_inputs(kind):
    """Without one array for all; the types stay, and numbers with a fraction become float64."""
    seen = []

    def step(state, X, y, devices, **options):
        seen[:] = [type(X).__name__, type(y).__name__], [str(array.dtype) for array in (*X, *y)]
        assert kind != 'named' or X.words is X[0]
        step_of_two_inputs(state, X, y, devices, **options)
    report = check_data_parallel(make_two_inputs, step, batches_of_two_inputs(kind))
    assert report.ok and 'in float64, over batches of 12, 10, 12, 2, 7 rows' in report.title, report
    assert seen == [{'tuples': ['tuple'] * 2, 'lists': ['list'] * 2, 'named': ['Inputs', 'tuple']}[kind],
                    ['int32', 'float64', 'int64', 'float64']]
    if kind == 'tuples':
        report = check_two(make_two_inputs, partial(step, mean=True), batches_of_two_inputs(kind))
        assert 'the update is 2 times that of one device, as if 8 rows were divided by 4' in report.diagnosis[0]


@pytest.mark.parametrize('use_bias', [True, False])
def test_batches_in_float64_for_a_step_in_float32(use_bias, batches):
    """The step does not cast: MXNet's parameters are in float32. Without biases, none exists before the first step."""
    def make(devices):
        net = gluon.nn.Dense(4, use_bias=use_bias)
        net.initialize(init.Normal(0.5), ctx=devices)
        return net, gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': LR})

    def train_batch(state, X, y, devices):
        step_with_trainer(state, X, y, devices)
        assert X.dtype == 'float32', 'not in float64'
    report = check_data_parallel(make, train_batch, [(X.astype('float64'), y) for X, y in batches])
    assert report.ok and 'in its own dtype' in report.title, report
