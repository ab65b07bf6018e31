"""Differences that count, arrays that are compared, and batches that a step cannot take."""
import re
from functools import partial

import numpy
import pytest
from slow import slow
from steps_to_check import (
    COPIES_DIFFER,
    LOSS,
    LR,
    MOMENTUM,
    check_two,
    late_error,
    make_arrays,
    make_averages,
    make_momentum,
    make_network,
    momentum_from_scratch,
    step_from_scratch,
    step_with_trainer,
    take_gradients,
    update,
)

from gluon_mgpu import check_data_parallel
from gluon_mgpu.mxnet_setup.compat import autograd, gluon, mx, np, npx
from gluon_mgpu.parallel.split import split_batch
from gluon_mgpu.parallel.step import params_with_gradients


def test_a_difference_above_rounding(batches):
    """Without a Trainer, which keeps the learning rate in float32, a difference of 1e-8 is a fault."""
    def step(device_params, X, y, devices):
        step_from_scratch(device_params, X, y, devices, batch_size=len(X) * (1 + 1e-8 * len(devices)))
    assert not check_two(make_arrays, step, batches).ok


@pytest.mark.parametrize('dtype', ['float32', 'int32'])
def test_numbers_of_words_are_not_taken_for_rounding(dtype):
    """A tiny change of them does not change the update at all, and yet the step does not round."""
    def make(devices):
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Embedding(9, 3), gluon.nn.Dense(4))
        net.initialize(ctx=devices)
        return net, gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 1.0})

    def step(state, X, y, devices):
        net, trainer = state
        take_gradients(net, X, y, devices)
        trainer.step(len(X) * (1 + 1e-4 * len(devices)))

    rng = numpy.random.default_rng(0)
    report = check_two(make, step, [(rng.integers(0, 9, (16, 5)).astype(dtype), rng.integers(0, 4, 16).astype(dtype))])
    assert not report.ok and 'in float64' in report.title, report


def test_few_rows_are_read_and_few_states_made(batches):
    read, made = [], []

    def make(devices):
        made.append(devices)
        return make_arrays(devices)

    def stream():
        for batch in batches * 9:
            read.append(batch)
            yield batch
    assert check_data_parallel(make, step_from_scratch, stream()).ok
    assert len(read) == 3 and len(made) == 12  # 43 of 48 rows


def step_with_averages(state, X, y, devices, on=None):
    step_from_scratch(state['params'], X, y, devices)
    for params, averages in [*zip(state['params'], state['averages'])][:on]:
        for param, average in zip(params, averages):
            average[:] = 0.9 * average + 0.1 * param


def set_grad_req(net, grad_req):
    for param in net.collect_params().values():
        param.grad_req = grad_req


def make_target_network(devices):
    """Return two networks, a Trainer of the first, and one array per device with sums that differ."""
    (net, trainer), (target, _) = (make_network(devices) for _ in range(2))
    set_grad_req(target, 'null')
    mask = np.full((5, 6), -np.inf, dtype='float32')  # of the shape of a parameter
    return net, trainer, target, [(np.zeros(1, ctx=device), mask.copyto(device)) for device in devices]


def step_with_target_network(state, X, y, devices, on=None):
    net, trainer, target, sums = state
    for device in devices:
        target(np.zeros((1, X.shape[1]), ctx=device, dtype=X.dtype))
    step_with_trainer((net, trainer), X, y, devices)
    for param, copy in zip(params_with_gradients(net), target.collect_params().values()):
        for data, array in [*zip(param.list_data(), copy.list_data())][:on]:
            data.copyto(array)
    for i, (array, _) in enumerate(sums):
        array += i


@pytest.mark.parametrize(('make', 'step', 'number'), [
    (make_averages, step_with_averages, 8), (make_target_network, step_with_target_network, 9)])
@pytest.mark.parametrize('on', [slow(None), 1])
def test_copies_without_gradients(make, step, number, on, batches):
    """A moving average, a target network: on all devices, or updated on the first device only."""
    report = check_data_parallel(make, partial(step, on=on), batches)
    assert report.ok is (on is None) and len(report.parameters) == number, report
    if on:
        assert report.diagnosis[0] == COPIES_DIFFER.format(number, 'batch 1, of 12 rows', 'cpu(1), cpu(2)')
        assert [verdict for *_, verdict in report.parameters[4:8]] == ['DIFFERS'] * 4
    assert [verdict for *_, verdict in report.parameters[:4]] == ['equal'] * 4


@pytest.mark.parametrize('keep', [lambda copies: copies[:1], lambda copies: [
    [array for i, array in enumerate(arrays) if i % len(copies) == device] for device, arrays in enumerate(copies)]])
def test_arrays_of_some_devices_are_not_compared(keep, batches):
    """All on the first device, or each device keeps some."""
    def make(devices):
        state = make_averages(devices)
        return {**state, 'averages': keep(state['averages']), 'target': [param.copy() for param in state['params'][-1]]}

    def step(state, X, y, devices):
        step_from_scratch(state['params'], X, y, devices)
        for averages in state['averages']:
            for average in averages:
                average += len(devices)
    report = check_data_parallel(make, step, batches)
    assert report.ok and [row[0] for row in report.parameters] == [f'params ({i})' for i in range(1, 5)], report


def test_copies_that_the_step_makes(batches):
    """Those are not compared; a list that gets longer is up to its first length."""
    def step(state, X, y, devices):
        step_with_averages(state, X, y, devices)
        for params, averages in zip(state['params'], state['averages']):
            state.setdefault('before', []).append([param.copy() for param in params])
            averages.append(params[0].copy())
    report = check_data_parallel(make_averages, step, batches)
    assert report.ok and len(report.parameters) == 8, report


def test_parameters_that_no_device_changes(batches):
    """Those that were frozen when the Trainer was made, as an example of what one device does as well."""
    def make(devices):
        net, _ = make_network(devices)
        set_grad_req(net[0], 'null')
        params = params_with_gradients(net)
        trainer = gluon.Trainer(params, 'sgd', {'learning_rate': LR})
        set_grad_req(net[0], 'write')
        return net, trainer
    report = check_data_parallel(make, step_with_trainer, batches)
    note = 'no device changes 0.weight, 0.bias. Is it in the Trainer, and does the loss depend on it?'
    assert report.ok and note in report.notes, report


def test_a_step_that_needs_an_even_split(batches):
    """Gluon's split_and_load raises an error, so the mistake is not silent."""
    def train_batch(state, X, y, devices):
        gluon.utils.split_and_load(X, devices)
        step_from_scratch(state, X, y, devices)
    report = check_data_parallel(make_arrays, train_batch, batches)
    assert report.ok and 'over batches of 12, 12 rows' in report.title
    assert re.match('batches of 10 rows are not checked, because the step raises ValueError', report.notes[0])
    assert len(report.notes) == 4


def test_a_step_that_fails_after_updating_some_devices(batches):
    """The batch is skipped; its half-made update is not a mistake of the next one."""
    def train_batch(state, X, y, devices):
        if len(X) < len(devices):
            state[0][0][:] += 1
            raise AssertionError
        step_from_scratch(state, X, y, devices)
    report = check_data_parallel(make_arrays, train_batch, batches)
    assert report.ok
    assert 'of 2 rows are not checked, because the step raises AssertionError (AssertionError)' in report.notes[0]


def test_errors_of_the_engine_are_not_those_of_the_next_step(batches):
    """Neither in the same check nor in the next one, nor in what the user computes afterwards."""
    def train_batch(state, X, y, devices, fails):
        if fails(len(X)):
            late_error(devices[-1])
            raise AssertionError
        step_with_trainer(state, X, y, devices)
    with pytest.raises(AssertionError):
        check_data_parallel(make_network, partial(train_batch, fails=lambda n: True), batches)
    npx.waitall()
    late_error(mx.cpu(0))
    report = check_data_parallel(make_network, partial(train_batch, fails=lambda n: n == 10), batches)
    assert report.ok and 'over batches of 12, 12, 2, 7 rows' in report.title, report
    npx.waitall()


def test_an_error_that_no_parameter_shows(batches):
    def train_batch(state, X, y, devices):
        step_with_trainer(state, X, y, devices)
        if len(X) == 10:
            late_error(devices[-1])
    report = check_data_parallel(make_network, train_batch, batches)
    assert report.ok and re.match('batches of 10 rows are not checked, because the step raises ValueError',
                                  report.notes[0])


@pytest.mark.parametrize('options', [{'update_on_kvstore': None}, MOMENTUM, slow({'optimizer': 'adam'})])
def test_a_step_that_fails_after_the_update(options, batches):
    """The next batch does not start with what the Trainer keeps: its copies of the parameters, and momentum."""
    def train_batch(state, X, y, devices):
        step_with_trainer(state, X, y, devices)
        assert len(X) != 10
    report = check_data_parallel(partial(make_network, **options), train_batch, batches)
    assert report.ok and 'over batches of 12, 12, 2, 7 rows' in report.title, report


def test_a_step_that_takes_whole_batches_only(batches):
    def train_batch(state, X, y, devices):
        assert len(X) == 12, 'not a whole batch'
        step_from_scratch(state, X, y, devices)
    report = check_data_parallel(make_arrays, train_batch, batches)
    assert report.ok and 'over batches of 12, 12 rows' in report.title
    assert all('are not checked, because the step raises AssertionError (not a whole' in note for note in report.notes)


@pytest.mark.parametrize('dtype', ['float16', slow('float32')])
@pytest.mark.parametrize('factor', [1, slow(1.05), 3])
def test_a_step_that_casts_to_another_dtype(factor, dtype, batches):
    """Parameters in float64 do not make such a step exact."""
    def train_batch(device_params, X, y, devices):
        X_shards, y_shards = split_batch(X, y, devices)
        with autograd.record():
            hidden = [(X_shard.reshape(-1, 6, 1).astype(dtype) * W.reshape(1, 6, 5).astype(dtype)).sum(axis=1)
                      for X_shard, (W, *_) in zip(X_shards, device_params)]
            ls = [LOSS(np.dot(np.tanh(h.astype(b.dtype) + b), W2) + b2, y_shard)
                  for h, (_, b, W2, b2), y_shard in zip(hidden, device_params, y_shards)]
        update(ls, device_params, len(X), LR * (factor if len(devices) > 1 else 1))
    report = check_two(make_arrays, train_batch, batches)
    assert report.ok is (factor == 1) and 'in its own dtype' in report.title, report
    if factor != 1:
        found = re.search(r'the update is (\S+) times that of one device', report.diagnosis[0])
        assert float(found[1]) == pytest.approx(factor, abs=0.01)  # as precise as weights are measured there


def clipped_by_norm(device_params, X, y, devices, max_norm=0.1):
    before = [[param.copy() for param in params] for params in device_params]
    step_from_scratch(device_params, X, y, devices)
    for params, old in zip(device_params, before):
        norm = sum(((param - start) ** 2).sum() for param, start in zip(params, old)) ** 0.5 / LR
        for param, start in zip(params, old):
            param[:] = start + (param - start) * np.minimum(max_norm / norm, 1)


def adam_from_scratch(state, X, y, devices):
    before = [[param.copy() for param in params] for params in state.device_params]
    step_from_scratch(state.device_params, X, y, devices)
    for params, old, squares in zip(state.device_params, before, state.velocities):
        for param, start, square in zip(params, old, squares):
            square[:] = 0.9 * square + (param - start) ** 2
            param[:] = start + LR * (param - start) / (square ** 0.5 + 1e-8)


@pytest.mark.parametrize('make, step, is_noted', [
    slow(make_arrays, step_from_scratch, True), (make_momentum, momentum_from_scratch, True),
    (make_arrays, partial(step_from_scratch, batch_size=12), False), (make_arrays, clipped_by_norm, False),
    slow(make_arrays, partial(clipped_by_norm, max_norm=1e9), True), slow(make_momentum, adam_from_scratch, False)])
def test_the_note_on_the_rows_of_a_short_last_batch(make, step, is_noted, batches):
    report = check_data_parallel(make, step, batches)
    assert report.ok, report
    assert ['divided by the rows of its own batch' in note for note in report.notes] == [True] * is_noted
