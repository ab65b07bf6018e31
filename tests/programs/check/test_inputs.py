"""The arrays that a step gets: several inputs, dtypes, and those of ``mx.nd``."""
import collections
from functools import partial

import numpy
import pytest
from book_steps import split_batch_multi_inputs
from equals_one import sequential, take_gradients
from slow import slow
from steps_to_check import (
    HALF,
    LOSS,
    ONLY_1,
    TWICE,
    check_two,
    copy_with_gradient,
    make_network,
    step_from_scratch,
    with_trainer,
)

from gluon_mgpu import check_data_parallel
from gluon_mgpu.mxnet_setup.compat import autograd, gluon, mx, np, npx
from gluon_mgpu.parallel.step import prepare_idle_devices


class TwoInputs(gluon.Block):
    """Embedded words, and numbers."""

    def __init__(self):
        super().__init__()
        self.embedding, self.dense = gluon.nn.Embedding(10, 3), gluon.nn.Dense(4)

    def forward(self, words, numbers):
        return self.dense(np.concatenate([self.embedding(words).sum(axis=1), numbers], axis=1))


def step_of_two_inputs(state, X, y, devices, mean=False):
    (net, trainer), ((words, numbers), (labels, weights)) = state, (X, y)
    assert type(words) is np.ndarray and len(words) == len(weights) == len(labels)
    shards, _ = split_batch_multi_inputs([words, numbers, labels, weights], labels, devices)
    shards = [shard for shard in shards if len(shard[0])]
    with autograd.record():
        ls = [LOSS(net(*inputs), label) * weight for *inputs, label, weight in shards]
        if mean:
            ls = [l.mean() for l in ls]
    autograd.backward(ls)
    prepare_idle_devices(net, X, devices)
    trainer.step(1 if mean else len(words))


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
    def make(devices):
        return with_trainer(TwoInputs(), devices)
    report = check_data_parallel(make, step, batches_of_two_inputs(kind))
    assert report.ok and 'in float64, over batches of 12, 10, 12, 2, 7, 1 rows' in report.title, report
    assert seen == [{'tuples': ['tuple'] * 2, 'lists': ['list'] * 2, 'named': ['Inputs', 'tuple']}[kind],
                    ['int32', 'float64', 'int64', 'float64']]
    if kind == 'tuples':
        report = check_two(make, partial(step, mean=True), batches_of_two_inputs(kind))
        assert TWICE in report.diagnosis[0]


def test_infinite_numbers_that_a_step_can_take(batches):
    """As in a mask that is added to scores."""
    masks = numpy.zeros((16, 4), 'float32')
    masks[:, 3] = -numpy.inf  # so no row is of class 3

    def train_batch(state, X, y, devices):
        net, trainer = state
        take_gradients(lambda X, y: LOSS(net(X[0]) + X[1], y), [net], X, y, devices)
        trainer.step(len(y))
    report = check_two(make_network, train_batch, [((X, masks), numpy.minimum(y, 2)) for X, y in batches[:1]])
    assert report.ok, report


def step_with_empty_shards(state, X, y, devices):
    """The commonest step of all."""
    net, trainer = state
    X_shards, y_shards = (gluon.utils.split_and_load(a, devices, even_split=False) for a in (X, y))
    with autograd.record():
        ls = [LOSS(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
    for l in ls:
        l.backward()
    trainer.step(len(X))


def make_nd_network(devices, kvstore):
    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.hidden, self.out = gluon.nn.Dense(5), gluon.nn.Dense(4)

        def hybrid_forward(self, F, X):
            return self.out(F.Activation(self.hidden(X), act_type='tanh'))
    net = sequential(Net())
    net.hybridize()
    return with_trainer(net, devices, 'adam', kvstore=kvstore)


def step_of_nd_network(state, X, y, devices):
    step_with_empty_shards(state, X, y, devices)
    assert type(X) is mx.nd.NDArray


def make_nd(devices):
    """Return arrays of mx.nd with gradients, as before MXNet had NumPy's semantics."""
    params = [mx.nd.random.normal(scale=0.5, shape=shape) for shape in ((6, 4), (4,))]
    return [[copy_with_gradient(param, device) for param in params] for device in devices]


def losses_of_nd(X, y, params):
    W, b = params
    return LOSS(mx.nd.broadcast_add(mx.nd.dot(X, W), b), y)


def sum_of_nd(grads):
    total = mx.nd.add_n(*[grad.as_in_context(grads[0].context) for grad in grads])
    for grad in grads:
        total.copyto(grad)


step_of_nd = partial(step_from_scratch, losses=losses_of_nd, allreduce=sum_of_nd)


@ONLY_1
def test_a_step_written_with_nd(batches):
    """Without npx.reset_np or as_nd_ndarray; afterwards, NumPy's semantics are as before."""
    report = check_data_parallel(make_nd, step_of_nd, batches)
    assert report.ok and 'in float64, over batches of 12, 10, 12, 2, 7, 1 rows' in report.title, report
    report = check_two(make_nd, partial(step_of_nd, divisor=lambda rows, k: rows * k), batches)
    assert HALF in report.diagnosis[0]
    assert npx.is_np_array() and npx.is_np_shape()


@ONLY_1
@pytest.mark.parametrize('kvstore', ['device', None])
def test_a_network_written_with_nd(kvstore, batches):
    """MXNet itself raises an error for shards without rows there."""
    report = check_two(partial(make_nd_network, kvstore=kvstore), step_of_nd_network, batches)
    assert report.ok is (kvstore is not None), report
    if report.ok:
        assert report.notes[0].startswith('batches of 1 row are not checked, because the step raises MXNetError')
    else:
        assert 'the sum of the gradients does not reach' in report.diagnosis[0]


@ONLY_1
def test_a_program_that_has_left_numpy_semantics(batches):
    """As users did before the check knew mx.nd."""
    def step(state, X, y, devices):
        step_of_nd(state, X.as_nd_ndarray(), y.as_nd_ndarray(), devices)
    npx.reset_np()
    try:
        assert check_data_parallel(make_nd, step, batches).ok
        assert not npx.is_np_array() and not npx.is_np_shape()
    finally:
        npx.set_np()


@ONLY_1
def test_an_error_of_a_step_written_with_nd(batches):
    def step(state, X, y, devices):
        step_of_nd(state, X, y, devices)
        raise KeyError('a name')
    with pytest.raises(KeyError, match='a name'):
        check_data_parallel(make_nd, step, batches)
