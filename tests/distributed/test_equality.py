"""n workers train like one process with n devices and like one device, with any number of rows."""
import sys

import numpy
import pytest
from cases import batches, concise_case, params_of, scratch_case
from equal_weight import BATCH_SIZE, IMAGES, LABELS, LR, trained as trained_by_chapter
from jobs import HERE, PATH

from gluon_mgpu import scratch
from gluon_mgpu.mxnet_setup.compat import autograd, np, npx
from gluon_mgpu.parallel.workers import Workers

# Rounding in another order: 5 steps, each with a relative error of about 1e-8 in float32 and 1e-16 in float64
TOLERANCE = {'float32': 1e-6, 'float64': 1e-13}


def trained(case, devices, dtype):
    """Train in this process; return the parameters and the losses."""
    step, net = case(devices, dtype, Workers())
    losses = [step(X, y) for X, y in batches(dtype)]
    return [*params_of(net), numpy.array(losses)]


def results_of_workers(job, num_workers, program, *arguments, folder):
    """Run a program with several workers; return the arrays that each has saved."""
    folder.mkdir()
    job.completed(num_workers, sys.executable, HERE / program, *arguments, folder, PYTHONPATH=PATH)
    found = [numpy.load(folder / f'{rank}.npz') for rank in range(num_workers)]
    return [[arrays[name] for name in sorted(arrays.files, key=lambda name: (len(name), name))] for arrays in found]


def difference(arrays, expected):
    """Return the largest difference, relative to the largest value of an array if that is above 1."""
    return max(abs(a - b).max() / max(abs(b).max(), 1) for a, b in zip(arrays, expected))


@pytest.mark.parametrize('num_workers, dtype', [(2, 'float32'), (3, 'float64')])
def test_lenet(job, device_list, tmp_path, long, num_workers, dtype):
    """Some batches have fewer rows than workers. With --long, the job runs 40 times."""
    one = trained(scratch_case, device_list(1), dtype)
    several = trained(scratch_case, device_list(num_workers), dtype)
    first = None
    for i in range(40 if long else 1):
        found = results_of_workers(job, num_workers, 'equal.py', 'scratch', dtype, folder=tmp_path / str(i))
        for arrays in found:
            assert difference(arrays, one) < TOLERANCE[dtype]
            assert difference(arrays, several) < TOLERANCE[dtype]
            first = first or arrays
            assert all((a == b).all() for a, b in zip(arrays, first))  # each worker, each run


@pytest.mark.parametrize('num_workers', [2])
def test_batch_norm_and_momentum(job, device_list, tmp_path, num_workers):
    """Compare with as many devices as workers, because batch norm uses the rows of one device or worker."""
    several = trained(concise_case, device_list(num_workers), 'float32')
    found = results_of_workers(job, num_workers, 'equal.py', 'concise', 'float32', folder=tmp_path / 'job')
    for arrays in found:
        assert difference(arrays, several) < 5e-6  # momentum and normalization amplify rounding
        assert all((a == b).all() for a, b in zip(arrays, found[0]))


def gradients(chapter, params):
    """Return the gradients of the summed losses of all images."""
    X = np.array(IMAGES[:, None] / numpy.float32(255), dtype='float32')
    params = [np.array(param, dtype='float32') for param in params]
    for param in params:
        param.attach_grad()
    with autograd.record():
        if chapter == 'scratch':
            y_hat = scratch.lenet(X, params)
        else:
            W, b = params
            y_hat = np.dot(X.reshape(len(X), -1), W.T) + b
        l = -npx.pick(npx.log_softmax(y_hat), np.array(LABELS, dtype='int32')).sum()
    l.backward()
    return [param.grad.asnumpy() for param in params]


@pytest.mark.parametrize('chapter', ['scratch', 'concise'])
def test_every_image_has_the_same_weight(job, device_list, tmp_path, chapter):
    """The last batch has one row, so only one worker has any."""
    before, alone = trained_by_chapter(chapter, device_list(2))
    for arrays in results_of_workers(job, 2, 'equal_weight.py', chapter, folder=tmp_path / 'job'):
        assert all((a == b).all() for a, b in zip(arrays, before))
        after = arrays[len(before):]
        assert difference(after, alone) < TOLERANCE['float32']
        for w, now, gradient in zip(before, after, gradients(chapter, before)):
            step = LR / BATCH_SIZE * gradient
            # The gradients change by 1e-3 during the epoch, and each of its three updates rounds weights by 2^-24
            assert abs(w - step - now).max() < 0.01 * abs(step).max() + 3 * 2**-24 * abs(w).max()
