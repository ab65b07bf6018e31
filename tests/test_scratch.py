"""The scratch chapter, compared with NumPy, numbers computed by hand, and one device."""
import re
from functools import partial

import numpy
import oracle
import pytest
from batches import Batches, of_labels, scratch_lenet
from equals_one import equals_one, rows
from refused import refused
from slow import slow

from gluon_mgpu import concise, scratch
from gluon_mgpu.devices import gpus, lists
from gluon_mgpu.mxnet_setup.compat import autograd, mx, np
from gluon_mgpu.parallel.accumulation import scratch_in_parts
from gluon_mgpu.training.run import Run


def one_batch(dtype, label=0):
    return [(numpy.zeros((1, 1, 28, 28), dtype), numpy.array([label]))]


def test_init_params_are_the_books():
    params = scratch.init_params()
    assert [p.shape for p in params] == oracle.LENET_SHAPES
    for W, b in zip(params[::2], params[1::2]):
        assert abs(b).max() == 0
        # The standard deviation of n normal numbers is within 4 / sqrt(2 n) of sigma, but for 1 in 10,000
        assert float(W.std()) == pytest.approx(0.01, rel=4 / (2 * W.size) ** 0.5)


def test_lenet_equals_numpy(rng):
    params = oracle.lenet_params(rng, scale=0.1)
    X, _ = oracle.images(rng, 5)
    y_hat = scratch.lenet(np.array(X), oracle.to_mx(params))
    assert y_hat.shape == (5, 10)
    # float32 sums of up to 800 products: relative errors of about 1e-7 each
    numpy.testing.assert_allclose(y_hat.asnumpy(), oracle.numpy_lenet(X, params), rtol=1e-4, atol=1e-5)


def test_images_of_another_size_are_refused():
    y_hat = scratch.lenet(np.zeros((16, 1, 32, 32)), scratch.init_params())  # 16 x 1,250 numbers are 25 x 800
    with pytest.raises((mx.base.MXNetError, ValueError)):
        scratch.loss(y_hat, np.zeros(16)).wait_to_read()


def test_gradient_is_the_slope_of_numpys_loss(rng):
    params = oracle.lenet_params(rng, scale=0.1, dtype='float64')
    X, y = oracle.images(rng, 3, dtype='float64')
    device_params = scratch.get_params(oracle.to_mx(params), np.zeros(1).ctx)
    with autograd.record():
        l = scratch.loss(scratch.lenet(np.array(X, dtype='float64'), device_params), np.array(y))
    l.backward()
    step = 1e-6
    for i, param in enumerate(params):
        index = tuple(rng.integers(0, n) for n in param.shape)
        ends = []
        for sign in (1, -1):
            moved = [p.copy() for p in params]
            moved[i][index] += sign * step
            ends.append(oracle.numpy_loss(oracle.numpy_lenet(X, moved), y).sum())
        # A central difference with this step is right to about 1e-9
        assert float(device_params[i].grad[index]) == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-7)


def test_get_params_copies_to_the_device(devices):
    params = [np.array([1.0, 2.0])]
    copies = scratch.get_params(params, devices[1])
    assert copies[0].ctx == devices[1] and copies[0].grad.ctx == devices[1]
    assert copies[0].grad.tolist() == [0, 0]
    copies[0][:] = 5
    assert params[0].tolist() == [1, 2]


def test_sgd_by_hand():
    param = np.array([1.0, 2.0])
    param.attach_grad()
    param.grad[:] = np.array([4.0, -8.0])
    scratch.sgd([param], lr=0.5, batch_size=4)
    assert param.tolist() == [0.5, 3.0]  # 1 - 0.5 * 4 / 4, 2 + 0.5 * 8 / 4


@pytest.mark.parametrize('k, parts', [(3, 1), (2, 3), slow(2, 1), slow(4, 1), slow(1, 2), slow(1, 64), slow(3, 4)])
def test_k_devices_equal_one_also_in_parts(device_list, k, parts):
    """Batches of all sizes, also smaller than k."""
    equals_one(partial(scratch_lenet, num_parts=parts), device_list(k), one=scratch_lenet, tolerance=1e-13)


def test_train_batch_returns_the_loss_of_every_row(device_list, rng):
    params = oracle.lenet_params(rng, scale=0.1)
    X, y = oracle.images(rng, 7)
    devices = device_list(3)
    device_params = [scratch.get_params(oracle.to_mx(params), d) for d in devices]
    ls = scratch.train_batch(np.array(X), np.array(y), device_params, devices, lr=0.1)
    assert [l.ctx for l in ls] == devices and [l.size for l in ls] == [3, 2, 2]
    expected = oracle.numpy_loss(oracle.numpy_lenet(X, params), y)  # before the update
    numpy.testing.assert_allclose(rows(ls), expected, rtol=1e-5)  # float32, and oneDNN's log_softmax


def test_train_batch_does_not_wait(device_list, rng, no_waiting):
    devices = device_list(3)
    device_params = [scratch.get_params(scratch.init_params(), d) for d in devices]
    batches = [(np.array(X), np.array(y)) for X, y in (oracle.images(rng, n) for n in (6, 2, 6, 2))]
    with no_waiting():
        for X, y in batches:  # also where a device gets no rows
            scratch_in_parts(scratch.train_batch, 2)(X, y, device_params, devices, 0.1, 6, scratch.allreduce)
            ls = scratch.train_batch(X, y, device_params, devices, lr=0.1)
    assert [l.size for l in ls] == [1, 1]


@pytest.mark.parametrize('wrong, message', [
    ({'lr': 'fast'}, "the learning rate of update 1, 'fast': must be a number of at least 0"),
    ({'batch_size': 4.0}, 'batch_size 4.0: must be an integer of at least 1'),
    ({'devices': []}, 'the list of devices is empty'), ({'devices': ['cpu']}, "'cpu' is not a device"),
    ({'devices': None, 'num_gpus': '2'}, "num_gpus '2': must be an integer from 1"),
    ({'batch_size': 8, 'data': (of_labels(0, 9), of_labels(0))}, 'batch_size 8, but the training data has'),
    ({'data': (of_labels(0, 10), of_labels(0))}, 'training labels are from 0 to 10, but the network has 10 outputs'),
    ({'data': (one_batch('float32', numpy.nan), of_labels(0))}, 'the training labels are from nan to nan'),
    ({'data': (one_batch('float32', 0.5), of_labels(0))}, 'the training labels .*: must be class numbers'),
    ({'data': ([], of_labels(0))}, r'\[\] has no batches: pass at least one'),
    ({'data': (of_labels(0), [])}, r'\[\] has no batches: pass at least one'),
    ({'data': (of_labels(9), of_labels(25))}, 'test labels are from 25 to 25, but the network has 10 outputs'),
    ({'data': ([(np.zeros((2, 1, 28, 28)), np.array([-1, 3]))], of_labels(0))}, 'training labels are from -1 to 3'),
    ({'num_epochs': 0}, 'num_epochs 0: must be an integer of at least 1'),
    *(({'num_epochs': n, 'run': Run(3)}, f'num_epochs {n}: must be 3, as in run; leave it out')
      for n in (2, 10))])  # 10 is the default
def test_train_rejects_invalid_arguments_in_one_line(devices, wrong, message):
    arguments = {'num_gpus': 2, 'batch_size': 4, 'lr': 0.1, 'devices': devices, **wrong}
    assert re.search(message, refused(scratch.train, **{'data': (None, None), **arguments}))


@pytest.mark.parametrize('chapter', [scratch, concise])
def test_two_gpus_on_a_machine_with_one(chapter, monkeypatch):
    """From Python as on the command line, this is an error: no GPU is replaced by a CPU context."""
    for module in (gpus, lists):
        monkeypatch.setattr(module, 'num_mxnet_gpus', lambda: 1)
    assert 'gpu(1) does not exist (MXNet sees 1' in refused(chapter.train, 2, 4, 0.1, data=(None, None))


def writes_nothing(data):
    pass


def writes_the_first(data):
    for array in data[1:]:
        data[0] += array.as_in_ctx(data[0].ctx)


@pytest.mark.parametrize('allreduce', [writes_nothing, writes_the_first])
@pytest.mark.parametrize('k', [2, 3])
def test_an_allreduce_that_leaves_devices_apart(k, allreduce, device_list, rng):
    """Without a word, each device would train alone, and the accuracy would look plausible."""
    X, y = oracle.bright_halves(rng, 12)
    batches = Batches([(np.array(X), np.array(y))] * 8)
    line = refused(scratch.train, k, 12, 0.5, devices=device_list(k), data=(batches, batches), run=Run(1, quiet=True),
                   allreduce=allreduce)
    assert re.match('parameter [0-7] differs between the devices after epoch 1: start equal, ', line)
