"""The weight of each row in the update, and the mistakes that it shows."""
import re
import types
from functools import partial

import numpy
import pytest
from slow import slow
from steps_to_check import (
    LOSS,
    LR,
    NO_SUM_OF_TWO,
    check_two,
    copy_with_gradient,
    make_accumulating,
    make_arrays,
    make_network,
    network,
    some_slow,
    step_from_scratch,
    step_with_trainer,
)

from gluon_mgpu import scratch
from gluon_mgpu.mxnet_setup.compat import autograd, np
from gluon_mgpu.parallel.split import split_batch

MISTAKES_FROM_SCRATCH = {
    'divides by the rows of a shard': 'the update is 2 times that of one device, as if 8 rows were divided by 4',
    'divides twice': 'the update is 0.5 times that of one device, as if 8 rows were divided by 16',
    'averages': 'the update is 0.5 times that of one device, as if 8 rows were divided by 16',
    'a mean of means': 'batch 2, of 7 rows: each device has the same weight whatever its rows, a mean of means',
    'a stale gradient': r'batch 4, of 1 row: the gradient of the batch before is added, from cpu\(1\) without rows',
    'sums into a new array': NO_SUM_OF_TWO,
    'sums on the first device only': r'the sum of the gradients does not reach cpu\(1\)\.',
    'does not sum the biases': 'WRONG in 2 of 4 parameters after ' + NO_SUM_OF_TWO,
    'misses the last device': r'batch 1, of 8 rows: the gradient of cpu\(1\) counts 0 times',
    'counts the first device twice': r'batch 1, of 8 rows: the gradient of cpu\(0\) counts 2 times',
    'the first shard on all devices': r'the gradient of cpu\(0\) counts 2 times, the gradient of cpu\(1\) counts 0',
    'drops the rows that remain': 'batch 2, of 7 rows: row 7 counts 0 times',
    'updates all but the last': r'batch 1, of 8 rows: the update leaves out cpu\(1\)\.',
}


@pytest.mark.parametrize('mistake', some_slow(MISTAKES_FROM_SCRATCH, quick=(
    'a mean of means', 'a stale gradient', 'sums into a new array')))
def test_mistakes_from_scratch(mistake, batches):
    def train_batch(state, X, y, devices):
        step_from_scratch(state, X, y, devices, mistake, batch_size=None)
    report = check_two(make_arrays, train_batch, batches)
    assert not report.ok
    assert re.search(MISTAKES_FROM_SCRATCH[mistake], report.diagnosis[0])
    right = ['parameter 0', 'parameter 2'] if mistake == 'does not sum the biases' else []
    assert [name for name, _, _, verdict in report.parameters if verdict == 'equal'] == right


MISTAKES_WITH_TRAINER = {
    'no kvstore': NO_SUM_OF_TWO,
    'divides by the rows of a shard': 'the update is 2 times that of one device, as if 8 rows were divided by 4',
    'means': 'the update is 2 times that of one device, as if 8 rows were divided by 4',
    'means of devices': 'batch 2, of 7 rows: each device has the same weight whatever its rows, a mean of means',
    'steps by the number of devices': 'the update is 0.5 times that of one device, as if 8 rows were divided by 16',
    'steps by one more per device': 'the update is 0.9 times that of one device, as if 8 rows were divided by 8.889',
    'a stale gradient': r'batch 4, of 1 row: the gradient of the batch before is added, from cpu\(1\) without rows',
    'skips stale gradients': r'batch 4, of 1 row: the update leaves out cpu\(1\)\.',
    'drops the rows that remain': 'batch 2, of 7 rows: row 7 counts 0 times',
    'clips each gradient': 'each device clips its own gradient before the sum',
}


@pytest.mark.parametrize('mistake', some_slow(MISTAKES_WITH_TRAINER, quick=('clips each gradient',)))
def test_mistakes_with_a_trainer(mistake, batches):
    options = {'no kvstore': {'kvstore': None}, 'skips stale gradients': {'update_on_kvstore': False}}.get(mistake, {})
    report = check_two(partial(make_network, **options), partial(step_with_trainer, mistake=mistake), batches)
    assert not report.ok
    assert re.search(MISTAKES_WITH_TRAINER[mistake], report.diagnosis[0])


@pytest.mark.parametrize('fault', ['weight decay', slow('loss'), slow('first device')])
def test_weight_decay_that_differs(fault, batches):
    """On each device before the sum, as a term of each loss, or on one device only."""
    def decayed(l, params):
        return l.sum() + 0.1 * (params[0] ** 2).sum() if fault == 'loss' else l

    def train_batch(state, X, y, devices):
        X_shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            ls = [decayed(LOSS(network(X_shard, params), y_shard), params)
                  for X_shard, params, y_shard in zip(X_shards, state, y_shards)]
        for l in ls:
            l.backward()
        if fault != 'loss':
            for params in state if fault == 'weight decay' else state[:1] * (len(devices) > 1):
                for param in params:
                    param.grad[:] += 0.1 * param
        for arrays in zip(*state):
            scratch.allreduce([array.grad for array in arrays])
        for params in state:
            scratch.sgd(params, LR, len(X))
    report = check_two(make_arrays, train_batch, batches)
    assert 'each row counts once, to three digits, but something else differs' in report.diagnosis[0]


def test_a_step_that_updates_no_device(batches):
    def train_batch(state, X, y, devices):
        if len(devices) == 1:
            step_from_scratch(state, X, y, devices)
    report = check_two(make_arrays, train_batch, batches)
    assert 'the update leaves out cpu(0), leaves out cpu(1).' in report.diagnosis[0]


def test_another_learning_rate_on_each_device(batches):
    def train_batch(state, X, y, devices):
        step_from_scratch(state, X, y, devices)
        for param in state[1] if len(devices) > 1 else []:
            param[:] -= LR * param.grad / len(X)
    report = check_two(make_arrays, train_batch, batches)
    assert report.diagnosis[0].endswith('of 8 rows: the update counts 2 times on cpu(1).')


@pytest.mark.parametrize('fault', [0.002, slow(0.01), slow(0.0101), slow(-0.01)])
def test_small_faults_are_printed(fault, batches):
    def train_batch(state, X, y, devices):
        step_from_scratch(state, X, y, devices, batch_size=len(X) / (1 + fault * (len(devices) > 1)))
    report = check_two(make_arrays, train_batch, batches)
    ratio = round(1 + fault, 3)
    assert f'the update is {ratio} times that of one device, as if 8 rows were divided by' in report.diagnosis[0]
    assert f'cpu(0): {ratio}, ' in report.diagnosis[4]


@pytest.mark.parametrize('mistake', ['', 'no sum'])
@pytest.mark.parametrize('every, found_in', [(2, 'batch 2, of 7 rows'), slow(3, 'batch 3, of 8 rows')])
def test_a_step_that_updates_after_several_batches(every, found_in, mistake, batches):
    def make(devices):
        return types.SimpleNamespace(rows=0, batches=0, **make_accumulating(devices))

    def train_batch(state, X, y, devices):
        for X_shard, y_shard, params in zip(*split_batch(X, y, devices), state.params):
            with autograd.record():
                l = LOSS(network(X_shard, params), y_shard)
            l.backward()
        state.rows, state.batches = state.rows + len(X), state.batches + 1
        if state.batches % every:
            return
        for arrays in zip(*state.params):
            if not mistake:
                scratch.allreduce([array.grad for array in arrays])
        for params in state.params:
            scratch.sgd(params, LR, state.rows)
            for param in params:
                param.grad[:] = 0
        state.rows = 0
    report = check_two(make, train_batch, batches)
    assert report.ok is not mistake, report
    if mistake:
        assert f'{found_in}: the sum of the gradients does not reach' in report.diagnosis[0]


def test_a_factor_that_is_no_clipping(batches):
    """The square root of the devices in a step without clipping is a wrong divisor."""
    def step(device_params, X, y, devices):
        step_from_scratch(device_params, X, y, devices, batch_size=len(X) * len(devices) ** 0.5)
    report = check_two(make_arrays, step, batches)
    assert 'the update is 0.707 times that of one device, as if 8 rows were divided by 11.31' in report.diagnosis[0]


@pytest.mark.parametrize('rows', ['its own', slow('all')])
def test_each_device_divides_by_its_own_rows(rows, batches):
    """After the sum, times the devices, so that even batches are right; a device without rows divides by all rows."""
    def train_batch(state, X, y, devices):
        step_from_scratch(state, X, y, devices, batch_size=1e9)  # sums, and updates by almost nothing
        for i, params in enumerate(state):
            own = len(range(i, len(X), len(devices))) * len(devices)
            scratch.sgd(params, LR, (own if rows == 'its own' else 0) or len(X))
    report = check_two(make_arrays, train_batch, batches)
    assert report.ok is (rows == 'all'), report
    if not report.ok:
        assert report.diagnosis[0].endswith(
            'batch 2, of 7 rows: each device divides by its own rows, so the update counts 0.875 times on cpu(0), '
            'counts 1.167 times on cpu(1).')
        assert report.diagnosis[1].startswith('Do: divide by the rows of the whole batch, or by the batch size')


def test_a_single_number_as_parameter(batches):
    """The weights are measured row by row, so they need no more numbers than rows."""
    def make(devices):
        return [copy_with_gradient(np.ones(1), device) for device in devices]

    def train_batch(params, X, y, devices):
        X_shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            ls = [(w * X_shard[:, 0] - y_shard) ** 2 for w, X_shard, y_shard in zip(params, X_shards, y_shards)]
        for l in ls:
            l.backward()
        scratch.allreduce([w.grad for w in params[:max(len(devices) - 1, 1)]])
        params[0].grad.copyto(params[-1].grad)
        scratch.sgd(params, LR, len(X))
    report = check_two(make, train_batch, batches)
    assert report.diagnosis[0] == ('WRONG in 1 of 1 parameters after batch 1, of 8 rows: the gradient of cpu(1) '
                                   'counts 0 times.')


def test_a_device_left_out_is_found_in_repeated_rows(batches):
    """Those of 20 rows in batches of 29."""
    X, y = (numpy.concatenate(arrays)[:20] for arrays in zip(*batches))
    report = check_two(partial(make_network, update_on_kvstore=False),
                                 partial(step_with_trainer, mistake='skips stale gradients'), [(X, y)])
    assert 'the update leaves out cpu(1)' in report.diagnosis[0]
