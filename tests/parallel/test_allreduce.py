"""Allreduce algorithms, compared with NumPy's sums."""
import itertools
import re
import threading
from functools import partial
from pathlib import Path

import numpy
import pytest
from batches import scratch_lenet
from equals_one import equals_one
from semantics import KINDS, array, semantics
from slow import slow

from gluon_mgpu import scratch
from gluon_mgpu.mxnet_setup.compat import np
from gluon_mgpu.parallel import allreduce
from gluon_mgpu.parallel.allreduce import ALGORITHMS

SHAPES = [(), (1,), (2,), (3,), (7,), (2, 3, 5), (1000,), (0,)]  # some have fewer elements than devices
DTYPES = ['float32', 'float64', 'float16', 'int32']

ALL = {'star': scratch.allreduce, **ALGORITHMS}
every_algorithm = pytest.mark.parametrize('allreduce', ALL.values(), ids=ALL)


def test_the_page_lists_every_algorithm():
    page = (Path(__file__).parents[2] / 'docs' / 'allreduce.md').read_text()
    assert re.findall(r'^\| `([\w-]+)` \|', page, re.M) == list(ALL)


def on_devices(arrays, devices):
    return [array(a, dtype=a.dtype, ctx=device) for a, device in zip(arrays, devices)]


@every_algorithm
@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('k', [1, 2, 3, slow(4), 5, *map(slow, range(6, 10))])
def test_every_device_gets_the_sum_in_place(allreduce, kind, k, device_list, rng):
    devices = device_list(k)
    shapes = SHAPES if kind == 'np' else filter(numpy.prod, SHAPES[1:])  # mx.nd has no () and (0,)
    with semantics(kind):
        for shape, dtype in itertools.product(shapes, DTYPES):
            arrays = rng.integers(-9, 9, (k, *shape)).astype(dtype)  # whole numbers: sums are exact
            data = on_devices(arrays, devices)
            handles = list(data)
            allreduce(data)
            for array, handle, device in zip(data, handles, devices):
                assert array is handle and array.ctx == device
                assert array.shape == shape and array.dtype == numpy.dtype(dtype)
                assert (array.asnumpy() == arrays.sum(axis=0)).all(), (shape, dtype)


@every_algorithm
@pytest.mark.parametrize('k', range(2, 10))
def test_replicas_are_exactly_equal(allreduce, k, device_list, rng):
    for size in (1, 7, 1003):  # also fewer than devices
        arrays = rng.normal(size=(k, size)).astype('float32')
        data = on_devices(arrays, device_list(k))
        allreduce(data)
        replicas = [array.asnumpy() for array in data]
        assert {replica.tobytes() for replica in replicas} == {replicas[0].tobytes()}
        # k - 1 additions, each right to half a unit in the last place of a partial sum
        bound = (k - 1) * numpy.finfo('float32').eps * abs(arrays.astype('float64')).sum(axis=0)
        assert (abs(replicas[0] - arrays.sum(axis=0, dtype='float64')) <= bound).all()


@every_algorithm
def test_devices_in_any_order_two_calls_and_views(allreduce, device_list):
    devices = device_list(3)[::-1]
    whole = [np.zeros((4, 2), ctx=device) for device in devices]
    data = [array[1:3] for array in whole]
    for i, part in enumerate(data):
        part[:] = i + 1
    allreduce(data)
    allreduce(data)
    for found, device in zip(whole, devices):
        assert found.ctx == device and found.tolist() == [[0, 0], [18, 18], [18, 18], [0, 0]]  # 3 (1 + 2 + 3)


@every_algorithm
def test_does_not_wait(allreduce, device_list, no_waiting):
    data = [np.ones(5, ctx=device) for device in device_list(3)]
    allreduce(data)
    with no_waiting():
        allreduce(data)
    assert data[2].tolist() == [9] * 5


@pytest.mark.parametrize('name', ALGORITHMS)
@pytest.mark.parametrize('k', [slow(2), 3])
def test_training_equals_training_with_star(name, k, device_list):
    """In float64; in some batches, a device gets no rows."""
    calls = []
    equals_one(partial(scratch_lenet, allreduce=lambda data: calls.append(ALGORITHMS[name](data))), device_list(k),
               one=scratch_lenet, tolerance=1e-13)
    assert calls


def test_each_thread_has_its_own_kvstore(devices):
    allreduce._store.cache_clear()
    thread = threading.Thread(target=allreduce.kvstore, args=[[np.ones(2, ctx=device) for device in devices]])
    thread.start()
    thread.join()
    allreduce.kvstore([np.ones(2, ctx=device) for device in devices])
    assert allreduce._store.cache_info().currsize == 2
