"""The comparison of k devices with one: it passes for a right step, and fails for each mistake."""
import numpy
import pytest
from equals_one import Plain, equals_one, rows, sequential, squared, started, take_gradients
from trainers import on_each_device, trainable

from gluon_mgpu.mxnet_setup.compat import gluon, np


def program(devices, rng, mistake=''):
    net = started(gluon.nn.Dense(2, in_units=3), devices, rng)
    trainer = on_each_device(trainable(net), 'sgd', {'learning_rate': 0.1})
    for n in () if mistake == 'no step' else (6, 1, 5)[:2 if mistake == 'a step less' else 3]:
        X, y = rng.normal(size=(n, 3)), rng.normal(size=(n, 2))
        losses = squared(net)
        if mistake == 'a mean over the shard':
            losses = lambda X, y: squared(net)(X, y).mean()  # noqa: E731
        nets = [net] if mistake != 'old gradients' else []
        take_gradients(losses, nets, X, y, devices)
        if mistake == 'no sum':
            trainer.update(n)
        else:
            trainer.step(n, ignore_stale_grad=True)
        if mistake == 'a statistic':
            net.weight.list_data()[-1][:] += 1e-6
        yield [net, {'numbers': [n, numpy.nan if mistake == 'nan' else 1.0]}]


def test_a_right_step(device_list):
    for k in (1, 2, 3):
        equals_one(program, device_list(k))


@pytest.mark.parametrize('mistake, message', [
    ('a mean over the shard', '0 weight in step 0'), ('old gradients', 'weight differs between devices'),
    ('no sum', 'weight differs between devices'), ('a statistic', 'weight differs between devices'),
    ('nan', '1 numbers 1 in step 0'), ('a step less', '2 steps instead of 3'), ('no step', '0 steps')])
def test_a_mistake(mistake, message, device_list):
    def wrong(devices, rng):
        return program(devices, rng, mistake)

    with pytest.raises(AssertionError, match=message):
        equals_one(wrong, device_list(3), one=None if mistake == 'no step' else program)


def test_statistics_of_each_device_alone(device_list):
    """Without synchronized batch norm, each device has other statistics."""
    def forward(devices, rng):
        net = Plain(started(sequential(gluon.nn.BatchNorm(in_channels=1)), devices, rng))
        shards = [np.array([[i]], dtype='float64', ctx=device) for i, device in enumerate(devices)]
        take_gradients(lambda X, y: net(X), [net], rows(shards), rows(shards), devices)
        yield net

    equals_one(forward, device_list(1))
    with pytest.raises(AssertionError, match='running_mean differs between devices'):
        equals_one(forward, device_list(2))
