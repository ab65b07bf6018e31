"""Allreduce algorithms, compared with NumPy's sums, bytes counted by hand, and copied bytes."""
import re
import threading
from pathlib import Path

import numpy
import oracle
import pytest
from gluon_mgpu.parallel.sharing import Devices, allreduce_algorithm
from slow import slow

from gluon_mgpu import scratch
from gluon_mgpu.mxnet_setup.compat import autograd, mx, np
from gluon_mgpu.parallel import allreduce
from gluon_mgpu.parallel.allreduce import ALGORITHMS, Traffic, halving_doubling, kvstore, ring, star, tree
from gluon_mgpu.programs.onnx.graph import semantics_of

SHAPES = [(), (1,), (2,), (3,), (7,), (2, 3, 5), (1000,), (0,)]  # some have fewer elements than devices
DTYPES = ['float32', 'float64', 'float16', 'int32']

every_algorithm = pytest.mark.parametrize('allreduce', ALGORITHMS.values(), ids=ALGORITHMS)


# Bytes that each of four devices sends, and receives, for arrays of 32 bytes, counted by hand
ON_FOUR = {
    'star': [96, 32, 32, 32],             # 3 arrays to the hub, 3 from it
    'ring': [48] * 4,                     # 2 * 3 chunks of 8 bytes
    'tree': [64, 64, 32, 32],             # the children of 0 are 1 and 2, that of 1 is 3
    'halving-doubling': [48] * 4,         # a half and a quarter, twice
    'kvstore': [96, 32, 32, 32],          # a star
}


def test_bytes_on_four_devices(device_list):
    counted = {name: sent_and_received(allreduce, (8,), 'float32', device_list(4))
               for name, allreduce in ALGORITHMS.items()}
    assert counted == {name: (num_bytes, num_bytes) for name, num_bytes in ON_FOUR.items()}


def test_the_page_lists_every_algorithm():
    page = (Path(__file__).parents[2] / 'docs' / 'allreduce.md').read_text()
    assert re.findall(r'^\| `([\w-]+)` \|', page, re.M) == list(ALGORITHMS)


def on_devices(arrays, devices):
    return [np.array(a, dtype=a.dtype, ctx=device) for a, device in zip(arrays, devices)]


def sent_and_received(allreduce, shape, dtype, devices):
    traffic = allreduce([np.zeros(shape, dtype=dtype, ctx=device) for device in devices])
    assert list(traffic.sent) == list(traffic.received) == devices
    return list(traffic.sent.values()), list(traffic.received.values())


@every_algorithm
@pytest.mark.parametrize('k', [1, 2, 3, slow(4), 5, *map(slow, range(6, 10))])
def test_every_device_gets_the_sum_in_place(allreduce, k, device_list, rng):
    devices = device_list(k)
    for shape in SHAPES:
        for dtype in DTYPES:
            arrays = rng.integers(-9, 9, (k, *shape)).astype(dtype)  # whole numbers: sums are exact
            data = on_devices(arrays, devices)
            handles = list(data)
            allreduce(data)
            for array, handle, device in zip(data, handles, devices):
                assert array is handle and array.ctx == device
                assert array.shape == shape and array.dtype == numpy.dtype(dtype)
                assert (array.asnumpy() == arrays.sum(axis=0)).all(), (shape, dtype)


@every_algorithm
@pytest.mark.parametrize('k', [1, 2, 3, 5])
def test_arrays_of_mx_nd(allreduce, k, device_list, rng):
    with semantics_of(mx.nd.ones(1)):
        for shape in [shape for shape in SHAPES if shape and 0 not in shape]:
            arrays = rng.integers(-9, 9, (k, *shape)).astype('float32')
            data = [mx.nd.array(array, ctx=device) for array, device in zip(arrays, device_list(k))]
            allreduce(data)
            for array in data:
                assert (array.asnumpy() == arrays.sum(axis=0)).all() and array.shape == shape


@every_algorithm
@pytest.mark.parametrize('k', range(2, 10))
def test_replicas_are_exactly_equal(allreduce, k, device_list, rng):
    arrays = rng.normal(size=(k, 1003)).astype('float32')
    data = on_devices(arrays, device_list(k))
    allreduce(data)
    replicas = [array.asnumpy() for array in data]
    for replica in replicas[1:]:
        assert replica.tobytes() == replicas[0].tobytes()
    # k - 1 additions, each right to half a unit in the last place of a partial sum
    bound = (k - 1) * numpy.finfo('float32').eps * abs(arrays.astype('float64')).sum(axis=0)
    assert (abs(replicas[0] - arrays.sum(axis=0, dtype='float64')) <= bound).all()


@every_algorithm
def test_devices_in_any_order_two_calls_and_views(allreduce, device_list):
    devices = device_list(3)[::-1]
    whole = [np.zeros((4, 2), ctx=device) for device in devices]
    data = [array[1:3] for array in whole]
    for i, array in enumerate(data):
        array[:] = i + 1
    allreduce(data)
    allreduce(data)
    for array, device in zip(whole, devices):
        assert array.ctx == device and array.tolist() == [[0, 0], [18, 18], [18, 18], [0, 0]]  # 3 (1 + 2 + 3)


@every_algorithm
def test_gradients(allreduce, devices):
    """Gradients are the arrays that training sums."""
    data = [np.ones(3, ctx=device) for device in devices]
    for i, array in enumerate(data):
        array.attach_grad()
        with autograd.record():
            y = (array * (i + 1)).sum()
        y.backward()
    allreduce([array.grad for array in data])
    for array in data:
        assert array.grad.tolist() == [sum(range(1, len(devices) + 1))] * 3


@every_algorithm
def test_does_not_wait(allreduce, device_list, no_waiting):
    data = [np.ones(5, ctx=device) for device in device_list(3)]
    allreduce(data)
    with no_waiting():
        allreduce(data)
    assert data[2].tolist() == [9] * 5


@pytest.mark.parametrize('allreduce', [star, kvstore])
def test_bytes_of_a_star(allreduce, device_list):
    # 24 bytes per array, 3 arrays to the hub and 3 from it
    assert sent_and_received(allreduce, (2, 3), 'float32', device_list(4)) == ([72, 24, 24, 24], [72, 24, 24, 24])
    assert sent_and_received(allreduce, (), 'float16', device_list(2)) == ([2, 2], [2, 2])


def test_bytes_of_a_ring(device_list):
    # 32 bytes in 4 chunks of 8: each device sends 2 * 3 of them
    assert sent_and_received(ring, (8,), 'float32', device_list(4)) == ([48] * 4, [48] * 4)
    # 7 elements in chunks of 3, 2 and 2. Device 0 sends chunks 0, 2, then 1, 0: 3 + 2 + 2 + 3 = 10 elements of 8
    # bytes; device 1 chunks 1, 0, then 2, 1: 9; device 2 chunks 2, 1, then 0, 2: 9
    assert sent_and_received(ring, (7,), 'float64', device_list(3)) == ([80, 72, 72], [72, 80, 72])
    # One chunk: from 0 to 1, 2, 3, and then, as the sum, to 0, 1, 2
    assert sent_and_received(ring, (), 'int32', device_list(4)) == ([8, 8, 4, 4], [4, 8, 8, 4])


def test_bytes_of_a_tree(device_list):
    # The children of 0 are 1 and 2, of 1: 3 and 4, of 2: 5
    assert sent_and_received(tree, (1,), 'int32', device_list(6)) == ([8, 12, 8, 4, 4, 4], [8, 12, 8, 4, 4, 4])
    assert sent_and_received(tree, (3,), 'float64', device_list(2)) == ([24, 24], [24, 24])


def test_bytes_of_halving_and_doubling(device_list):
    # 32 bytes: each device sends and receives a half and a quarter of them, twice
    assert sent_and_received(halving_doubling, (8,), 'float32', device_list(4)) == ([48] * 4, [48] * 4)
    # 2 devices beyond 4: all of their 32 bytes to 0 and 1, and the sum back
    assert sent_and_received(halving_doubling, (8,), 'float32', device_list(6)) == (
        [80, 80, 48, 48, 32, 32], [80, 80, 48, 48, 32, 32])
    # 7 elements in chunks of 2, 2, 2 and 1, in halves of 4 and 3. Device 0 sends 3 and 2 elements, then 2 and 4; device
    # 1: 3 and 2, 2 and 4; device 2: 4 and 1, 2 and 3; device 3: 4 and 2, 1 and 3. Received: 4 and 2, 2 and 3; ...
    assert sent_and_received(halving_doubling, (7,), 'float64', device_list(4)) == ([88, 88, 80, 80], [88, 88, 80, 80])
    # One chunk: from 2 to 0 and from 3 to 1, then from 1 to 0, and the same way back
    assert sent_and_received(halving_doubling, (), 'int32', device_list(4)) == ([8, 8, 4, 4], [8, 8, 4, 4])


@every_algorithm
def test_one_device_sends_nothing(allreduce, device_list):
    data = [np.array([1.0, 2.0], ctx=device_list(1)[0])]
    traffic = allreduce(data)
    assert list(traffic.sent.values()) == list(traffic.received.values()) == [0]
    assert data[0].tolist() == [1, 2]


@pytest.mark.parametrize('allreduce', [a for a in ALGORITHMS.values() if a is not kvstore], ids=lambda a: a.__name__)
@pytest.mark.parametrize('k', [2, 3, 5, 8])
def test_counted_bytes_are_the_copied_bytes(allreduce, k, device_list, monkeypatch):
    devices = device_list(k)
    sent, received = dict.fromkeys(devices, 0), dict.fromkeys(devices, 0)
    copyto = np.ndarray.copyto

    def counting_copyto(array, other):
        target = getattr(other, 'ctx', other)  # an array or a device
        if target != array.ctx:
            sent[array.ctx] += 4 * array.size
            received[target] += 4 * array.size
        return copyto(array, other)

    data = on_devices(numpy.ones((k, 17), 'float32'), devices)
    monkeypatch.setattr(np.ndarray, 'copyto', counting_copyto)
    traffic = allreduce(data)
    assert (traffic.sent, traffic.received) == (sent, received)
    assert sum(sent.values()) == 4 * 17 * 2 * (k - 1)  # the same in total for each algorithm


@every_algorithm
def test_invalid_arrays(allreduce, devices):
    one, two = devices[:2]
    with pytest.raises(ValueError, match='^the list of arrays is empty'):
        allreduce([])
    with pytest.raises(ValueError, match=r'^array 1 is float32 \(3,\) and array 0 is float32 \(2,\): all must'):
        allreduce([np.ones(2, ctx=one), np.ones(3, ctx=two)])
    with pytest.raises(ValueError, match=r'^array 1 is float64 \(2,\) and array 0 is float32 \(2,\): all must'):
        allreduce([np.ones(2, ctx=one), np.ones(2, dtype='float64', ctx=two)])
    with pytest.raises(ValueError, match=r'^array 2 is on .pu\(\d+\), and so is array 0: give one array'):
        allreduce([np.ones(2, ctx=one), np.ones(2, ctx=two), np.ones(2, ctx=one)])
    for data, words in ((np.ones(2), r'array \(2,\)'), (iter([]), 'list_iterator'), ([numpy.ones(2)], r'list \(array')):
        with pytest.raises(ValueError, match=f'^{words}.* instead of a list of MXNet arrays: give one array per'):
            allreduce(data)


def test_traffic_counts_what_it_sends(devices):
    one, two = devices[:2]
    data = [np.array([1.0, 2.0], ctx=one), np.zeros(2, ctx=two)]
    traffic = Traffic(data)
    copy = traffic.send(data[0], two)
    assert copy.ctx == two and copy.tolist() == [1, 2]
    traffic.copy(data[0], data[1])
    assert data[1].ctx == two and data[1].tolist() == [1, 2]
    assert (traffic.sent, traffic.received) == ({one: 16, two: 0}, {one: 0, two: 16})


@pytest.mark.parametrize('name', [name for name in ALGORITHMS if name != 'star'])
@pytest.mark.parametrize('k', [slow(2), 3])
def test_training_equals_training_with_star(name, k, device_list, rng):
    """In float64; in some batches, a device gets no rows."""
    params = oracle.to_mx(oracle.lenet_params(rng, dtype='float64'))
    batches = [oracle.images(rng, n, dtype='float64') for n in (8, 7, 1, 2)]
    devices = device_list(k)

    def trained(allreduce):
        calls = []
        device_params = [scratch.get_params(params, device) for device in devices]
        for X, y in batches:
            together = Devices(devices, allreduce=lambda data: calls.append(allreduce(data)))
            scratch.train_batch(*oracle.to_mx([X, y]), device_params, together, 0.2)
        assert len(calls) == len(batches) * len(params)
        replicas = [numpy.concatenate([p.asnumpy().reshape(-1) for p in replica]) for replica in device_params]
        assert all((replica == replicas[0]).all() for replica in replicas)
        return replicas[0]

    expected = trained(scratch.allreduce)
    # 4 steps, sums of at most 3 gradients in another order: about 1e-16 each
    assert abs(trained(ALGORITHMS[name]) - expected).max() < 1e-14
    assert (trained(star) == expected).all()  # the chapter's own algorithm
    assert abs(expected - numpy.concatenate([p.asnumpy().ravel() for p in params])).max() > 1e-3


def test_each_thread_has_its_own_kvstore(devices):
    allreduce._store.cache_clear()
    thread = threading.Thread(target=allreduce.kvstore, args=[[np.ones(2, ctx=device) for device in devices]])
    thread.start()
    thread.join()
    allreduce.kvstore([np.ones(2, ctx=device) for device in devices])
    assert allreduce._store.cache_info().currsize == 2


def test_an_algorithm_by_its_name():
    assert allreduce_algorithm('ring') is ring
    assert allreduce_algorithm(scratch.allreduce) is scratch.allreduce
    with pytest.raises(ValueError, match=f"allreduce 'bogus': must be {', '.join(ALGORITHMS)} or a function of a list"):
        allreduce_algorithm('bogus')


def test_train_checks_the_name_before_it_loads_data(devices):
    with pytest.raises(ValueError, match="allreduce 'bogus'"):
        scratch.train(2, 4, 0.1, devices=devices, data=(None, None), allreduce='bogus')
