"""Differences that count, batches that a step cannot take, and what a check changes in the program."""
import random
import re
import weakref
from functools import partial

import numpy
import pytest
from bfloat16 import needs_bfloat16
from equals_one import sequential, take_gradients
from slow import slow
from steps_to_check import (
    LOSS,
    MOMENTUM,
    check_two,
    concise_step,
    late_error,
    make_arrays,
    make_network,
    step_from_scratch,
    step_with_trainer,
    with_dropout_and_batch_norm,
    with_trainer,
    without_the_last,
)

from gluon_mgpu import check_data_parallel
from gluon_mgpu.mxnet_setup.compat import autograd, gluon, init, mx, np, npx
from gluon_mgpu.networks.precision import Cast, conv2d
from gluon_mgpu.parallel.step import gradients


def test_a_difference_above_rounding(batches):
    """A Trainer keeps the learning rate in float32, but a difference of 1e-5 is a fault."""
    step = partial(step_from_scratch, divisor=lambda rows, k: rows * (1 + 1e-5 * k))
    assert not check_two(make_arrays, step, batches).ok


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
    assert len(read) == 3 and len(made) == 9  # 43 of 48 rows


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
    assert report.ok and 'over batches of 12, 12, 2, 7, 1 rows' in report.title, report
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
    assert report.ok and 'over batches of 12, 12, 2, 7, 1 rows' in report.title, report


@pytest.mark.slow
@needs_bfloat16
@pytest.mark.parametrize('sums', [True, False])
def test_bfloat16(image_batches, sums):
    """MXNet cannot cast float64 to bfloat16."""
    def make(devices):
        net = sequential(Cast('bfloat16'), conv2d(16, kernel_size=3, dtype='bfloat16'), gluon.nn.Activation('relu'),
                         Cast('float32'), gluon.nn.Dense(10))
        net, trainer = with_trainer(net, devices, initializer=init.Xavier(), update_on_kvstore=False)
        if not sums:
            trainer._allreduce_grads = lambda: None
        net.hybridize()  # which bfloat16 needs
        return net, LOSS, trainer
    report = check_data_parallel(make, concise_step, [(X[..., :8, :8], y) for X, y in image_batches])
    assert report.ok is sums, report
    assert 'in its own dtype' in report.title


def in_float32(state, X, y, devices, step=step_with_trainer, **options):
    step(state, X.astype('float32'), y, devices, **options)


def test_a_step_that_computes_in_float32(batches):
    step = partial(in_float32, step=step_from_scratch)
    report = check_data_parallel(partial(make_arrays, dtype='float32'), step, batches)
    assert report.ok and 'in its own dtype' in report.title
    assert max(row[1] for row in report.parameters) < 1e-4
    report = check_two(partial(make_arrays, dtype='float32'), partial(step, allreduce=without_the_last), batches)
    assert 'the gradient of cpu(1) counts 0 times' in report.diagnosis[0]


class OnlyFloat32(gluon.nn.Dense):
    def cast(self, dtype):
        raise TypeError('only float32')


def make_traced(devices):
    """Make a network that has taken its first batch."""
    net, trainer = make_network(devices, layers=with_dropout_and_batch_norm)
    net.hybridize()
    for device in devices:
        with autograd.record():
            net(np.zeros((2, 6), ctx=device))
    return net, trainer


def make_recurrent(devices):
    """MXNet's gradients of two layers are wrong in float64."""
    return with_trainer(sequential(
        gluon.nn.Lambda(lambda X: X.reshape(-1, 1, 6).swapaxes(0, 1)), gluon.rnn.LSTM(5, num_layers=2),
        gluon.nn.Lambda(lambda H: H[-1]), gluon.nn.Dense(4), kind=gluon.nn.Sequential), devices)


@pytest.mark.parametrize('make, step', [
    (partial(make_network, layers=lambda: [OnlyFloat32(4)]), step_with_trainer), (make_traced, in_float32),
    slow(make_recurrent, step_with_trainer)], ids=['a layer that cannot be cast', 'traced batch norm', 'recurrent'])
def test_steps_that_cannot_compute_in_float64(make, step, batches):
    report = check_data_parallel(make, step, batches)
    assert report.ok and 'in its own dtype' in report.title, report


@pytest.mark.parametrize('use_bias', [True, False])
def test_batches_in_float64_for_a_step_in_float32(use_bias, batches):
    """The step does not cast: MXNet's parameters are in float32. Without biases, none exists before the first step."""
    def train_batch(state, X, y, devices):
        step_with_trainer(state, X, y, devices)
        assert X.dtype == 'float32', 'not in float64'
    report = check_data_parallel(lambda devices: with_trainer(gluon.nn.Dense(4, use_bias=use_bias), devices),
                                 train_batch, [(X.astype('float64'), y) for X, y in batches])
    assert report.ok and 'in its own dtype' in report.title, report


def wide_arrays(devices):
    return OnlyFloat32(4), make_arrays(devices, dtype='float64')


def wide_network(devices):
    """Its shapes wait for a first batch."""
    net = gluon.nn.Dense(4)
    net.cast('float64')
    return with_trainer(net, devices, initializer=init.One())


@pytest.mark.parametrize('make, step', [
    (wide_arrays, lambda state, *batch: step_from_scratch(state[1], *batch)), (wide_network, step_with_trainer)])
def test_parameters_and_batches_of_float64(make, step, batches):
    report = check_two(make, step, [(X.astype('float64'), y) for X, y in batches])
    assert report.ok, report


def test_earlier_networks_are_freed(batches):
    """A check makes many networks; in memory are few."""
    alive, numbers = weakref.WeakSet(), []

    def make(devices):
        net, trainer = make_network(devices)
        alive.add(net)
        numbers.append(len(alive))
        return net, trainer
    assert check_data_parallel(make, step_with_trainer, batches).ok
    assert len(numbers) > 4 and max(numbers) <= 4


def draws():
    return [numpy.random.uniform(), random.random(), float(mx.nd.random.uniform().asscalar())]


def test_random_numbers_of_the_program(batches):
    """NumPy and Python go on as without the check; MXNet does not start again with the same numbers."""
    found = []
    for seed in range(2):
        for module in (numpy.random, random, mx.random):
            module.seed(seed)
        assert check_two(make_arrays, step_from_scratch, batches).ok
        found.append(draws())
    for module in (numpy.random, random):
        module.seed(1)
    assert found[1][:2] == draws()[:2] and found[0][2] != found[1][2]


def test_differences_that_may_be_rounding(batches):
    """As if the gradients were compressed before they are sent."""
    def step(state, X, y, devices):
        net, trainer = state
        take_gradients(lambda X, y: LOSS(net(X), y), [net], X, y, devices)
        for gradient in gradients(net, devices):
            gradient[:] = gradient.astype('float16').astype(gradient.dtype)
        trainer.step(len(X))
    report = check_two(make_network, step, batches)
    assert report.diagnosis[0].startswith('NOT CHECKED: the differences may be rounding errors'), report
