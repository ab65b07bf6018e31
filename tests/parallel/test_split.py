"""Arrays and batches split over devices."""
from __future__ import annotations

import collections
import warnings
from itertools import repeat

import numpy
import pytest
from equals_one import rows
from refused import refused
from semantics import KINDS, semantics

import gluon_mgpu as d2l
from gluon_mgpu import concise, scratch
from gluon_mgpu.base.nested import leaves, refill
from gluon_mgpu.base.text import counted
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, mx, np
from gluon_mgpu.parallel import split
from gluon_mgpu.parallel.split import split_and_load, split_batch

of_mxnet_1 = pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no networks of mx.nd')


def sparse(n):
    """Return a CSR array with some empty rows, and its rows as NumPy."""
    dense = numpy.random.default_rng(0).integers(0, 3, (n, 5)).astype('float32')
    dense[::3] = 0
    return mx.nd.sparse.csr_matrix(dense), dense


def check_shards(shards, whole, devices):
    """Check that the shards are the rows of `whole`, and that each is on its device."""
    assert len(shards) == min(len(whole), len(devices))
    # CPU contexts can compute with each other's arrays, so the results would not show a wrong device
    assert [shard.ctx for shard in shards] == list(devices[:len(shards)])
    assert (rows(shards) == whole.asnumpy()).all()
    assert {shard.dtype for shard in shards} == {whole.dtype}


@pytest.mark.parametrize('k', [1, 2, 3, 4, 9])
def test_shards_together_are_the_batch(device_list, k):
    devices = device_list(k)
    for n in [*range(1, 14), 96, 255, 256]:
        X, y = np.random.normal(size=(n, 2, 3)), np.array(numpy.random.randint(0, 10, n))
        X_shards, y_shards = split_batch(X, y, devices)
        check_shards(X_shards, X, devices)
        check_shards(y_shards, y, devices)
        sizes = [len(shard) for shard in X_shards]
        assert sizes == [len(shard) for shard in y_shards] == sorted(sizes, reverse=True)
        assert max(sizes) - min(sizes) <= 1


def test_devices_that_are_no_sequence(device_list):
    devices, X = device_list(3), np.arange(7)
    for others in (iter(devices), dict(enumerate(devices)).values()):
        check_shards(split_and_load(X, others), X, devices)


def test_several_shards_need_a_single_thread_of_openmp(device_list, monkeypatch):
    checked = []
    monkeypatch.setattr(split, 'check_omp_threads', checked.append)
    monkeypatch.setattr(split, 'omp_threads', lambda: 2)
    for n, k in ((4, 1), (1, 2), (4, 2)):
        split_and_load(np.zeros((n, 2)), device_list(k))
    assert checked == [device_list(2)]


@pytest.mark.parametrize('dtype', ['float32', 'float64', 'uint8', 'int32', 'int64', '>i4', '>f8'])
def test_numpy_arrays_keep_their_dtype_and_are_copied(devices, dtype):
    """In the byte order of the machine."""
    X = numpy.arange(12).astype(dtype).reshape(6, 2)[::-1]
    shards, expected = split_and_load(X, devices), X.tolist()
    X[:] = 0
    assert [shard.ctx for shard in shards] == devices
    assert {shard.dtype for shard in shards} == {X.dtype.newbyteorder('=')}
    assert rows(shards).tolist() == expected


def test_arrays_of_another_kind(devices):
    shards = split_and_load(mx.nd.arange(4), devices)
    assert [type(shard) for shard in shards] == [np.ndarray] * len(devices)
    assert rows(shards).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize('data', [[1, 2], np.array(1), (np.ones(2), 3), {'X': np.ones(2)}, 'ab',
                                  sparse(4)[0].tostype('default').tostype('row_sparse')])
def test_what_cannot_be_split(data, devices):
    """Python or MXNet says so; nothing is split in another way."""
    with pytest.raises((AttributeError, ValueError, mx.MXNetError)):
        split_and_load(data, devices)


@pytest.mark.parametrize('dtype', ['complex64', 'O'])
def test_dtypes_that_mxnet_lacks(dtype, devices):
    assert 'MXNet has no such arrays; convert it' in refused(split_and_load, numpy.zeros(4, dtype), devices)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('k', [1, 2, 3])
def test_csr_arrays_stay_csr(device_list, k, kind):
    with semantics(kind):
        for n in (1, 2, 7):
            X, dense = sparse(n)
            shards = split_and_load(X, device_list(k))
            assert {(type(shard), shard.dtype) for shard in shards} == {(mx.nd.sparse.CSRNDArray, numpy.float32)}
            assert (rows(shards) == dense).all()


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has renamed as_in_ctx')
def test_splitting_uses_nothing_that_is_deprecated(devices):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        split_batch((np.zeros((4, 2)), sparse(4)[0]), numpy.zeros(4), devices)


def test_csr_arrays_with_others(devices):
    (X, dense), y = sparse(7), np.arange(7)
    shards, _ = split_batch((X, [y]), y, devices[:2])
    assert (shards[1][0].asnumpy() == dense[4:]).all() and shards[1][1][0].tolist() == [4, 5, 6]
    assert (split.rows_of((X, [y]), slice(2, 4))[0].asnumpy() == dense[2:4]).all()


def test_splitting_can_be_differentiated(devices):
    X, y = np.arange(10).reshape(5, 2), np.arange(5)
    X.attach_grad()
    with autograd.record():
        X_shards, _ = split_batch(X, y, devices)
        losses = [(i + 1) * (shard ** 2).sum() for i, shard in enumerate(X_shards)]
    autograd.backward(losses)
    # d/dX of 1 * X^2 for the rows of device 0, of 2 * X^2 for those of device 1, and so on
    factors = numpy.repeat(numpy.arange(1, len(losses) + 1), [len(shard) for shard in X_shards])
    numpy.testing.assert_array_equal(X.grad.asnumpy(), 2 * factors[:, None] * X.asnumpy())


@pytest.mark.parametrize('array', [np.array, numpy.array], ids=['MXNet', 'NumPy'])
def test_splitting_does_not_wait(devices, array, no_waiting):
    X, y = array(numpy.ones((5, 2), 'float32')), array(numpy.arange(5))
    with no_waiting():
        shards, _ = split_batch(X, y, devices)
        one_array = split_and_load(X, devices)
    assert [len(s) for s in shards] == [len(s) for s in one_array]
    with no_waiting(), pytest.raises(AssertionError, match='waited'):
        shards[0].asnumpy()  # the fixture detects a wait


def test_the_chapters_share_split_batch():
    assert scratch.split_batch is concise.split_batch is d2l.split_batch is split_batch


@pytest.mark.parametrize('function, arguments, sizes', [
    (split_batch, (np.zeros((4, 2)), np.zeros(3)), '3, 4'),
    (split_batch, ((np.zeros((4, 2)), np.zeros(5)), np.zeros(4)), '4, 5'),
    (split_and_load, ([np.zeros(4), [np.zeros(3)]],), '3, 4'), (split_and_load, ([None],), 'no')])
def test_different_numbers_of_rows(function, arguments, sizes, devices):
    line = refused(function, *arguments, devices)
    assert line == f'arrays of {sizes} rows: those of a batch must have the same number'


SHAPES_AND_AXES = [(shape, axis) for shape in ((6,), (6, 1), (4, 6), (3, 4, 6))
                   for axis in range(-len(shape), len(shape))]


def arrays_of_all_kinds(shape):
    """Return the same numbers as arrays of NumPy and MXNet, and of CSR if they have two axes."""
    whole = numpy.arange(numpy.prod(shape), dtype='float32').reshape(shape)
    csr = [mx.nd.sparse.csr_matrix(whole)] if whole.ndim == 2 else []
    return [whole, np.array(whole), mx.nd.array(whole), *csr]


@pytest.mark.parametrize('even_split', [True, False])
@pytest.mark.parametrize('k', [1, 2, 3])
@pytest.mark.parametrize('kind', KINDS)
def test_the_arguments_of_gluons_function(kind, k, even_split, device_list):
    """So that a program can replace its import of it. Gluon's makes empty shards on more devices than rows."""
    devices = device_list(k)
    with semantics(kind):
        for shape, axis in SHAPES_AND_AXES:
            whole, n = arrays_of_all_kinds(shape)[0], shape[axis]
            if even_split and n % k:
                line = refused(split_and_load, whole, devices, axis, even_split)
                assert line == f'cannot split {counted(n, "row")} over {k} devices evenly: leave even_split out'
                continue
            of_gluon = gluon.utils.split_and_load(whole, devices[:n], axis, even_split)
            expected = [shard.asnumpy().tolist() for shard in of_gluon]
            for array in arrays_of_all_kinds(shape):
                shards = split_and_load(array, ctx_list=devices, batch_axis=axis, even_split=even_split)
                assert [shard.asnumpy().tolist() for shard in shards] == expected
                assert [shard.ctx for shard in shards] == devices[:min(n, k)]


@pytest.mark.parametrize('axis', [-3, 2, 99])
def test_an_axis_that_an_array_does_not_have(axis, devices):
    for array in arrays_of_all_kinds((4, 6)):
        line = refused(split_and_load, array, devices, axis)
        assert line == (f'batch_axis {axis}: an array of the shape (4, 6) has no such axis; name one that all arrays '
                        'have')


@pytest.mark.parametrize('k', [1, 2, 3])
def test_a_negative_axis_is_that_of_each_array(k, device_list):
    """Each has its own number of axes."""
    X, y = np.arange(24).reshape(2, 3, 4), np.arange(4)
    shards = split_and_load([X, (y,)], device_list(k), batch_axis=-1)
    assert numpy.concatenate([shard.asnumpy() for shard, _ in shards], axis=2).tolist() == X.tolist()
    assert [shard.tolist() for _, (shard,) in shards] == [shard.tolist() for shard in split_and_load(y, device_list(k))]
    assert 'an array of the shape (4,) has no such axis' in refused(split_and_load, [X, y], device_list(k), 1)


@pytest.mark.parametrize('n', [1, 2, 7])
def test_nested_lists_and_tuples_of_arrays(n, device_list):
    """Each shard has the structure of the whole, and the rows that its arrays have alone."""
    devices, (a, b, c, d) = device_list(3), numpy.random.normal(size=(4, n, 2))
    batch = (np.array(a), [b, (c,)], d.astype('float32')), (np.arange(n), np.array(b, dtype='float64'))
    alone = [split_and_load(array, devices) for array in leaves(batch)]
    shards = [*zip(*split_batch(*batch, devices))]
    assert len(shards) == min(n, 3)
    for shard, *expected in zip(shards, *alone):
        assert refill(shard, repeat(0)) == ((0, [0, (0,)], 0), (0, 0))
        for found, array in zip(leaves(shard), expected):
            assert (found.ctx, found.dtype, found.tolist()) == (array.ctx, array.dtype, array.tolist())


def test_none_stays_in_each_shard(devices):
    """As the missing input of a network, such as the lengths of BERT's sequences."""
    shards, _ = split_batch((np.arange(4), None, [None]), np.arange(4), devices[:2])
    assert [(X.tolist(), *others) for X, *others in shards] == [([0, 1], None, [None]), ([2, 3], None, [None])]


@of_mxnet_1
def test_arrays_of_mx_nd_for_programs_that_use_it(devices):
    X, y = numpy.arange(14.0).reshape(7, 2), mx.nd.arange(7)
    with semantics('nd'):  # as after npx.reset_np()
        y.attach_grad()
        with autograd.record():
            shards, y_shards = split_batch((X, y), y, devices)
            ls = [(shard ** 2).sum() for shard in y_shards]
        autograd.backward(ls)
        assert {type(array) for shard in shards for array in shard} == {type(ls[0])} == {mx.nd.NDArray}
        assert (rows([shard[0] for shard in shards]) == X).all()
        assert (y.grad.asnumpy() == 2 * y.asnumpy()).all()


@of_mxnet_1
@pytest.mark.parametrize('dtype', ['float64', 'int64', 'uint8'])
def test_numpy_arrays_become_float32_with_mx_nd_as_in_gluon(dtype, devices):
    """A network would reject float64, and ``0.9 * y`` of integers is 0."""
    with semantics('nd'):
        shards = split_and_load(numpy.arange(7, dtype=dtype), devices)
    assert {shard.dtype for shard in shards} == {numpy.float32}
    assert rows(shards).tolist() == [*range(7)]


def test_micro_batches_on_one_device(devices):
    """A device may be listed several times, as in examples/network_partition.py."""
    X_parts, y_parts = split_batch(np.ones((5, 2)), np.ones(5), devices[:1] * 2)
    assert [len(part) for part in X_parts + y_parts] == [3, 2, 3, 2]


def test_no_rows_are_no_shards(devices):
    assert split_batch(np.zeros((0, 2)), np.zeros(0), devices) == ([], [])


def test_no_devices():
    assert refused(split_and_load, np.zeros((4, 2)), []) == 'cannot split 4 rows over 0 devices: name at least one'


def test_named_tuples_stay_named(device_list):
    Inputs = collections.namedtuple('Inputs', 'images masks')
    X = Inputs(np.arange(4), np.arange(4) * 2)
    shards, _ = split_batch(X, np.arange(4), device_list(2))
    assert [type(shard) for shard in shards] == [Inputs, Inputs] and shards[1].masks.tolist() == [4, 6]
