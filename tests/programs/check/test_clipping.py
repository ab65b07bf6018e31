"""Gradients that are clipped, or divided by counts."""
import re
from functools import partial

import numpy
import pytest
from slow import slow
from steps_to_check import (
    LOSS,
    check_two,
    make_arrays,
    make_network,
    network,
    some_slow,
    step_from_scratch,
    step_of_trainer,
    update,
    with_dropout_and_batch_norm,
)

from gluon_mgpu import check_data_parallel, scratch
from gluon_mgpu.mxnet_setup.compat import autograd, mx, np
from gluon_mgpu.parallel.split import split_batch
from gluon_mgpu.parallel.step import params_with_gradients, zero_grad


def scale(gradients, norm, max_norm=0.5):
    for gradient in gradients:
        gradient *= np.minimum(max_norm / norm, 1).as_in_ctx(gradient.ctx)


def norm_of(gradients):
    return sum((gradient.as_in_ctx(mx.cpu(0)) ** 2).sum() for gradient in gradients) ** 0.5


def step_with_clipping(state, X, y, devices, where, max_norm=0.5, loss=LOSS):
    """Clip by the norm of: each gradient, or all of them, before the sum; all copies, or each copy, after the sum."""
    net, trainer = state
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        ls = [loss(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
    for l in ls:
        l.backward()
    zero_grad(net, devices[len(X_shards):])
    gradients = [[param.grad(device) for param in params_with_gradients(net)] for device in devices]
    if 'cop' in where:
        for arrays in zip(*gradients):
            scratch.allreduce([*arrays])
    norms = [norm_of(arrays) for arrays in gradients]
    if where.startswith('all'):
        norms = [sum(norm ** 2 for norm in norms) ** 0.5] * len(norms)
    for arrays, norm in zip(gradients, norms):
        scale(arrays, norm, max_norm)
    if 'cop' not in where:
        for arrays in zip(*gradients):
            scratch.allreduce([*arrays])
    trainer.step(len(X))


BY_OTHER_NORMS = {
    'each gradient': 'batch 1, of 8 rows: each device clips its own gradient before the sum.',
    'all gradients': 'and this number changes with the rows: the norm by which the gradients are clipped is not that',
    'all copies': 'the update is 0.707 times that of one device, 1 over the square root of 2: the gradients are',
}


def make_for_clipping(devices, **options):
    return make_network(devices, kvstore=None, **options)  # the step sums


@pytest.mark.parametrize('where', some_slow(BY_OTHER_NORMS, quick=('each gradient', 'all copies')))
@pytest.mark.parametrize('optimizer', ['sgd', slow('adam')])
def test_clipping_by_another_norm_than_that_of_the_sum(where, optimizer, batches):
    report = check_two(partial(make_for_clipping, optimizer=optimizer),
                                 partial(step_with_clipping, where=where), batches)
    assert not report.ok and BY_OTHER_NORMS[where] in report.diagnosis[0], report
    assert "clip each device's copy by the norm of that copy alone" in report.diagnosis[1]
    assert '\n\n\n' not in str(report)


@pytest.mark.parametrize('options', [{}, slow({'optimizer': 'adam'}), slow({'settings': {'momentum': 0.9}}),
                                     slow({'layers': with_dropout_and_batch_norm})])
@pytest.mark.parametrize('max_norm', [slow(0.5), 3, slow(1e9)])  # clips all batches, some, none
def test_clipping_after_the_sum_is_right(options, max_norm, batches):
    report = check_two(partial(make_for_clipping, **options),
                                 partial(step_with_clipping, where='each copy', max_norm=max_norm), batches)
    assert report.ok, report


def test_clipping_that_one_device_does_not_need(batches):
    """The gradients of two devices almost cancel each other. One device only divides by its rows."""
    def loss(y_hat, y):
        return LOSS(y_hat, y % 4) * (1 - 2 * (y > 3).astype(y_hat.dtype))
    X, y = (numpy.concatenate(arrays) for arrays in zip(*batches))
    X[4:8], y[4:8] = X[:4] + 0.3 * X[12:16], y[:4] + 4
    report = check_two(make_for_clipping, partial(
        step_with_clipping, where='all gradients', max_norm=7.5, loss=loss), [(X, y)])
    assert 'times that of one device, and this number changes with the rows: the norm by which' in report.diagnosis[0]


def test_labels_of_other_rows_are_not_named_clipping(batches):
    def step(state, X, y, devices):
        order = numpy.roll(numpy.arange(len(y)), len(devices) - 1)
        step_from_scratch(state, X, y[order], devices)
    report = check_two(make_arrays, step, batches)
    assert 'The cause is unknown' in report.diagnosis[0]


@pytest.mark.parametrize('count', ['its own', slow('all')])
def test_each_device_divides_by_its_own_count(count, batches):
    """Labels of 0 do not count, as in padded sentences."""
    def train_batch(state, X, y, devices):
        net, trainer = state
        X_shards, y_shards = split_batch(X, y, devices)
        valid = max(float((y > 0).sum()), 1)
        with autograd.record():
            ls = []
            for X_shard, y_shard in zip(X_shards, y_shards):
                mask = y_shard > 0
                l = (LOSS(net(X_shard), y_shard) * mask).sum()
                ls.append(l / mask.sum() / len(devices) if count == 'its own' else l / valid)
        step_of_trainer(ls, net, trainer, devices, 1)
    X, y = (numpy.concatenate(arrays) for arrays in zip(*batches))
    y[:8] = [0, 1, 2, 3, 0, 0, 0, 2]
    report = check_two(make_network, train_batch, [(X, y)])
    assert report.ok is (count == 'all'), report
    if not report.ok:
        assert 'each device divides by its own count, such as that of its valid labels' in report.diagnosis[0]


def step_with_masks(state, X, y, devices, count, also=lambda y_hat: 0, divisor=lambda devices: 1):
    """Average over the labels that are not 0, of all rows or each shard, and add another term of each shard."""
    net, trainer = state
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        y_hats = [net(X_shard) for X_shard in X_shards]
        masks = [y_shard > 0 for y_shard in y_shards]
        counts = {'all': [float((y > 0).sum())] * len(masks), 'its own': [mask.sum() + 1e-8 for mask in masks],
                  'the last one': [float(masks[-1].sum())] * len(masks)}[count]
        ls = [(LOSS(y_hat, y_shard) * mask).sum() / n + also(y_hat)
              for y_hat, y_shard, mask, n in zip(y_hats, y_shards, masks, counts)]
    step_of_trainer(ls, net, trainer, devices, divisor(devices))


@pytest.mark.parametrize(('options', 'fault'), [
    ({'count': 'all'}, None),
    ({'count': 'the last one'},
     r'the update is \d.* times that of one device, and this number changes with the rows: its divisor, such as a '
     'number of valid labels, is not that of the whole batch'),
    ({'count': 'its own', 'also': lambda y_hat: (y_hat ** 2).mean()},
     'the update is the sum of what each device does with its rows alone, and the whole batch on one device does '
     'something else: terms of the loss are divided by counts of each device, or rows influence each other'),
    slow({'count': 'its own', 'also': lambda y_hat: (y_hat ** 2).mean(), 'divisor': len},
         'the update is the mean of what'),
    ({'count': 'its own', 'also': lambda y_hat: (y_hat ** 2).mean() / y_hat.shape[0], 'divisor': lambda devices: (
        1 + len(devices))}, 'the update is the weighted sum of what each device does')])
def test_the_count_of_masked_labels(options, fault, batches):
    """As in machine translation, and with a second loss as in BERT's pre-training."""
    report = check_two(make_network, partial(step_with_masks, **options), batches)
    assert report.ok is (fault is None), report
    if fault:
        assert re.search(f'after batch 1, of 8 rows: {fault}', report.diagnosis[0])
        assert re.match('Do: divide .* count (of|in) the whole batch', report.diagnosis[1])


def test_a_shard_whose_labels_do_not_count(batches):
    """The cause stays unknown, because the shard alone has no finite update."""
    def train_batch(state, X, y, devices):
        net, trainer = state
        X_shards, y_shards = split_batch(X, y, devices)
        valid = float((y > 0).sum())
        with autograd.record():
            ls = [(LOSS(net(X_shard), y_shard) * (y_shard > 0)).sum() / np.array(valid, ctx=X_shard.ctx)
                  for X_shard, y_shard in zip(X_shards, y_shards)]
        for l in ls:
            l.backward()
        zero_grad(net, devices[len(X_shards):])
        for device in devices:
            gradients = [param.grad(device) for param in params_with_gradients(net)]
            scale(gradients, norm_of(gradients), 0.05)
        trainer.step(1)
    X, y = (numpy.concatenate(arrays) for arrays in zip(*batches))
    y[:12] = [1, 2, 3, 1, 0, 0, 0, 0, 2, 3, 1, 2]
    report = check_data_parallel(make_network, train_batch, [(X, numpy.where(numpy.arange(48) < 12, y, 1))])
    assert 'The cause is unknown' in report.diagnosis[0], report


@pytest.mark.slow
@pytest.mark.parametrize('draw', range(4))
def test_rows_that_influence_each_other(draw, batches):
    """Batch norm by hand cannot be switched off, and is not named clipping."""
    batches = [(numpy.roll(X, draw, axis=1), y) for X, y in batches]

    def network_with_norm(X, params):
        return network((X - X.mean(axis=0)) / (X.var(axis=0) + 1) ** 0.5, params)

    def train_batch(state, X, y, devices):
        X_shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            ls = [LOSS(network_with_norm(*pair), y) for *pair, y in zip(X_shards, state, y_shards)]
        update(ls, state, len(X))
    report = check_two(make_arrays, train_batch, batches)
    assert 'the update is the mean of what each device does with its rows alone, and' in report.diagnosis[0]
    assert report.diagnosis[0].endswith('or rows influence each other.')
