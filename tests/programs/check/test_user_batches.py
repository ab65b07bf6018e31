"""Numbers in the batches that one device cannot train on either."""
from functools import partial

import numpy
import pytest
from slow import slow
from steps_to_check import (
    LOSS,
    ONLY_1,
    check_two,
    make_arrays,
    make_nd,
    make_network,
    step_from_scratch,
    step_of_nd,
    step_of_trainer,
    step_with_trainer,
    with_dropout_and_batch_norm,
)

from gluon_mgpu.mxnet_setup.compat import autograd, npx
from gluon_mgpu.parallel.split import split_batch

LABEL = ('WRONG on one device as well: y has the label {}, and the step treats it as {}, as MXNet does without a score '
         'for it.')


def with_label(batches, label, dtype='int32'):
    """Return a batch in which one row has another label; the network has scores for 0 to 3."""
    X, y = batches[0]
    y = y.astype(dtype)
    y[3] = label
    return [(X, y)]


@pytest.mark.parametrize('make, step', [(make_network, step_with_trainer), (make_arrays, step_from_scratch)])
@pytest.mark.parametrize('label, as_other, dtype', [(4, 3, 'int32'), (-1, 0, 'float32'), slow(10, 3, 'float32'),
                                                    slow(-2, 0, 'int64')])
def test_labels_without_scores(make, step, label, as_other, dtype, batches):
    report = check_two(make, step, with_label(batches, label, dtype))
    assert not report.ok and report.diagnosis == [
        LABEL.format(label, as_other),
        'Do: number the labels from 0, with a score for each; leave rows without a label out of the loss.'], report
    assert 'one device alone' in report.title and not report.parameters


@ONLY_1
def test_a_label_without_score_in_a_step_of_nd(batches):
    assert check_two(make_nd, step_of_nd, with_label(batches, 4)).diagnosis[0] == LABEL.format(4, 3)


def step_with(loss):
    def train_batch(state, X, y, devices):
        net, trainer = state
        X_shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            ls = [loss(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
        step_of_trainer(ls, net, trainer, devices, len(X))
    return train_batch


@pytest.mark.parametrize('loss', [
    lambda y_hat, y: LOSS(y_hat, y) * (y >= 0) * (y < 4),                       # such rows are left out
    lambda y_hat, y: (npx.one_hot(y, 4) * npx.log_softmax(y_hat)).sum(axis=1),  # here as well
    lambda y_hat, y: LOSS(y_hat, (y > 1).astype('int32')),                      # it groups the labels
    slow(lambda y_hat, y: LOSS(y_hat, ((y + 2) / 2).astype('int32'))),
    lambda y_hat, y: (y_hat[:, 0] - y) ** 2,                                    # not labels
    lambda y_hat, y: (y_hat ** 2).sum(axis=1)])                                 # not used
@pytest.mark.parametrize('label', [-1, 4, slow(9)])
def test_labels_that_are_no_mistake(loss, label, batches):
    layers = with_dropout_and_batch_norm if label == 9 else lambda: with_dropout_and_batch_norm()[1:]
    report = check_two(partial(make_network, layers=layers), step_with(loss), with_label(batches, label))
    assert report.ok, report


@pytest.mark.parametrize('loss, labels', [
    (lambda y_hat, y: LOSS(y_hat, y) * (y < 4), [0, 1, 2, 3, 4, 9]),  # 4 and 9 are left out
    (lambda y_hat, y: (y_hat ** 2).sum(axis=1), [1, 2, 3])])          # not used
def test_labels_that_count_alike_and_are_no_mistake(loss, labels, batches):
    y = numpy.resize(numpy.array(labels, 'int32'), 16)
    assert check_two(make_network, step_with(loss), [(batches[0][0], y)]).ok


@pytest.mark.parametrize('name, number', [('X', 'nan'), ('y', 'inf'), slow('X', '-inf')])
def test_numbers_that_are_not_finite(name, number, batches):
    """One device fails as well; the user's step does not divide by 0."""
    X, y = batches[0][0].copy(), batches[0][1].astype('float32')
    (X[:, 0] if name == 'X' else y)[5] = float(number)
    loss = step_with(lambda y_hat, y: (y_hat[:, 0] - y) ** 2)
    assert check_two(make_network, loss, [(X, y)]).diagnosis == [
        f'NOT CHECKED: {name} has NaN or infinite numbers, which make parameters NaN on one device as well.',
        'Do: leave these rows out.']


def test_the_input_with_a_number_that_is_not_finite(batches):
    X, y = batches[0][0], batches[0][1]
    weights = numpy.ones((len(X), 1), 'float32')
    weights[5] = numpy.inf

    def train_batch(state, inputs, y, devices):
        step_with(lambda y_hat, y: (y_hat[:, 0] - y) ** 2)(state, inputs[0] * inputs[1], y, devices)

    y = y.astype('float32')
    report = check_two(make_network, train_batch, [((X, weights), y)])
    assert report.diagnosis[0].startswith('NOT CHECKED: X[1] has NaN or infinite numbers')

    def of_labels(state, X, y, devices):
        step_with(lambda y_hat, y: (y_hat[:, 0] - y) ** 2)(state, X, y[0] * y[1], devices)

    report = check_two(make_network, of_labels, [(X, (weights[:, 0], y))])
    assert report.diagnosis[0].startswith('NOT CHECKED: y[0] has NaN or infinite numbers')


def test_infinite_numbers_that_a_step_can_take(batches):
    """As in a mask that is added to scores."""
    masks = numpy.zeros((16, 4), 'float32')
    masks[:, 3] = -numpy.inf  # so no row is of class 3

    def train_batch(state, X, y, devices):
        net, trainer = state
        shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            ls = [LOSS(net(X_shard) + mask, y_shard)
                  for (X_shard, mask), y_shard in zip(shards, y_shards)]
        step_of_trainer(ls, net, trainer, devices, len(y))
    report = check_two(make_network, train_batch, [((X, masks), numpy.minimum(y, 2)) for X, y in batches[:1]])
    assert report.ok, report
