"""Arrays and batches split over devices."""
from __future__ import annotations

import collections
import warnings

import numpy
import pytest

import gluon_mgpu as d2l
from gluon_mgpu import concise, scratch
from gluon_mgpu.base.text import counted
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, mx, np
from gluon_mgpu.networks.hybridized import hybridized
from gluon_mgpu.parallel import split
from gluon_mgpu.parallel.split import split_and_load, split_batch
from gluon_mgpu.programs.onnx.graph import semantics_of


def error_line(function, *args, **options):
    """Return the message of the ValueError: one line."""
    with pytest.raises(ValueError) as error:
        function(*args, **options)
    line, = str(error.value).splitlines()
    return line


def check_shards(shards, whole, devices):
    """Check that the shards are the rows of `whole`, and that each is on its device."""
    assert len(shards) == min(len(whole), len(devices))
    # CPU contexts can compute with each other's arrays, so the results would not show a wrong device
    assert [shard.ctx for shard in shards] == list(devices[:len(shards)])
    numpy.testing.assert_array_equal(numpy.concatenate([s.asnumpy() for s in shards]), whole.asnumpy())
    assert {shard.dtype for shard in shards} == {whole.dtype}


@pytest.mark.parametrize('k', [1, 2, 3, 4, 9])
def test_shards_together_are_the_batch(device_list, k):
    devices = device_list(k)
    for rows in [*range(1, 14), 96, 255, 256]:
        X, y = np.random.normal(size=(rows, 2, 3)), np.array(numpy.random.randint(0, 10, rows))
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
    for rows, k in ((4, 1), (1, 2), (4, 2)):
        split_and_load(np.zeros((rows, 2)), device_list(k))
    assert checked == [device_list(2)]


def test_the_books_4_by_6_on_two(devices):
    (a, b), _ = split_batch(np.arange(24).reshape(4, 6), np.arange(4), devices[:2])
    assert a.asnumpy().tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert b.asnumpy().tolist() == [[12, 13, 14, 15, 16, 17], [18, 19, 20, 21, 22, 23]]


@pytest.mark.parametrize('dtype', ['float32', 'float64', 'uint8', 'int32', 'int64'])
def test_numpy_arrays_keep_their_dtype_and_are_copied(devices, dtype):
    X, y = numpy.arange(12, dtype=dtype).reshape(6, 2)[::-1], numpy.arange(6, dtype=dtype)
    X_shards, y_shards = split_batch(X, y, devices)
    expected = X.copy()
    X[:] = 0
    assert [shard.ctx for shard in X_shards] == devices
    assert {shard.dtype for shard in X_shards + y_shards} == {numpy.dtype(dtype)}
    numpy.testing.assert_array_equal(numpy.concatenate([s.asnumpy() for s in X_shards]), expected)
    numpy.testing.assert_array_equal(numpy.concatenate([s.asnumpy() for s in y_shards]), y)


@pytest.mark.parametrize('dtype', ['>i4', '<i4', '>f4', '>f8'])
def test_numpy_arrays_of_any_byte_order(devices, dtype):
    whole = numpy.arange(4).astype(dtype)
    shards = split_and_load(whole, devices)
    assert numpy.concatenate([shard.asnumpy() for shard in shards]).tolist() == [0, 1, 2, 3]
    assert shards[0].dtype == whole.dtype.newbyteorder('=')


@pytest.mark.parametrize('dtype', ['complex64', 'O'])
def test_dtypes_that_mxnet_lacks(devices, dtype):
    assert 'MXNet has no such arrays; convert it' in error_line(split_and_load, numpy.zeros(4, dtype), devices)


def test_arrays_of_another_kind(devices):
    shards = split_and_load(mx.nd.arange(4), devices)
    assert [type(shard) for shard in shards] == [np.ndarray] * len(devices)
    assert numpy.concatenate([shard.asnumpy() for shard in shards]).tolist() == [0, 1, 2, 3]
    assert error_line(split_and_load, [None], devices).startswith('arrays of no rows')


def sparse(rows, **settings):
    """Return a CSR array with some empty rows, and its rows as NumPy."""
    dense = numpy.random.default_rng(0).integers(0, 3, (rows, 5)).astype('float32')
    dense[::3] = 0
    return mx.nd.sparse.csr_matrix(dense, **settings), dense


@pytest.mark.parametrize('semantics', [np.ones, mx.nd.ones])
@pytest.mark.parametrize('k', [1, 2, 3])
def test_csr_arrays_stay_csr(device_list, k, semantics):
    """As with Gluon's function, which needs a multiple of the number of devices."""
    devices = device_list(k)
    with semantics_of(semantics(1)):
        for rows in (1, 2, 6, 7):
            X, dense = sparse(rows)
            X_shards, y_shards = split_batch(X, numpy.arange(rows), devices)
            assert [shard.ctx for shard in X_shards] == devices[:min(rows, k)]
            assert {(type(shard), shard.dtype) for shard in X_shards} == {(mx.nd.sparse.CSRNDArray, numpy.float32)}
            assert (numpy.concatenate([shard.asnumpy() for shard in X_shards]) == dense).all()
            assert [len(shard) for shard in X_shards] == [len(shard) for shard in y_shards]
            if rows % k == 0 and not mx.util.is_np_array():
                for shard, expected in zip(X_shards, gluon.utils.split_and_load(X, devices)):
                    assert (shard.asnumpy() == expected.asnumpy()).all() and shard.ctx == expected.ctx


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


def test_row_sparse_arrays(devices):
    """MXNet cannot slice their rows."""
    line = error_line(split_and_load, sparse(4)[0].tostype('default').tostype('row_sparse'), devices)
    assert line.startswith('cannot convert ndarray of stype')


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


@pytest.mark.parametrize('function, arguments, rows', [
    (split_batch, (np.zeros((4, 2)), np.zeros(3)), '3, 4'),
    (split_batch, ((np.zeros((4, 2)), np.zeros(5)), np.zeros(4)), '4, 5'),
    (split_and_load, ([np.zeros(4), [np.zeros(3)]],), '3, 4')])
def test_different_numbers_of_rows(function, arguments, rows, devices):
    line = error_line(function, *arguments, devices)
    assert line == f'arrays of {rows} rows: those of a batch must have the same number'


SHAPES_AND_AXES = [(shape, axis) for shape in ((6,), (6, 1), (4, 6), (3, 4, 6))
                   for axis in range(-len(shape), len(shape))]


def arrays_of_all_kinds(shape):
    """Return the same numbers as arrays of NumPy and MXNet, and of CSR if they have two axes."""
    whole = numpy.arange(numpy.prod(shape), dtype='float32').reshape(shape)
    csr = [mx.nd.sparse.csr_matrix(whole)] if whole.ndim == 2 else []
    return [whole, np.array(whole), mx.nd.array(whole), *csr]


@pytest.mark.parametrize('even_split', [True, False])
@pytest.mark.parametrize('k', [1, 2, 3])
@pytest.mark.parametrize('make', [np.ones] + [mx.nd.ones] * (MXNET_MAJOR < 2))
def test_the_arguments_of_gluons_function(make, k, even_split, device_list):
    """So that a program can replace its import of it. Gluon's makes empty shards on more devices than rows."""
    devices = device_list(k)
    with semantics_of(make(1)):
        for shape, axis in SHAPES_AND_AXES:
            whole, n = arrays_of_all_kinds(shape)[0], shape[axis]
            if even_split and n % k:
                line = error_line(split_and_load, whole, devices, axis, even_split)
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
        with pytest.raises(IndexError):
            split_and_load(array, devices, axis)


@pytest.mark.parametrize('k', [1, 2, 3])
def test_a_negative_axis_is_that_of_each_array(k, device_list):
    """Each has its own number of axes."""
    X, y = np.arange(24).reshape(2, 3, 4), np.arange(4)
    shards = split_and_load([X, (y,)], device_list(k), batch_axis=-1)
    assert numpy.concatenate([shard.asnumpy() for shard, _ in shards], axis=2).tolist() == X.tolist()
    assert [shard.tolist() for _, (shard,) in shards] == [shard.tolist() for shard in split_and_load(y, device_list(k))]
    with pytest.raises(IndexError):
        split_and_load([X, y], device_list(k), 1)


@pytest.mark.parametrize('rows', [1, 2, 7])
def test_nested_lists_and_tuples_of_arrays(rows, device_list):
    """Each shard has the structure of the whole, and the rows that its arrays have alone."""
    devices, (a, b, c, d) = device_list(3), numpy.random.normal(size=(4, rows, 2))
    y = np.arange(rows), np.array(b, dtype='float64')
    X_shards, y_shards = split_batch((np.array(a), [b, (c,)], d.astype('float32')), y, devices)
    alone = [split_and_load(array, devices) for array in (np.array(a), b, c, d.astype('float32'), *y)]
    assert len(X_shards) == len(y_shards) == min(rows, 3)
    for (first, (second, (third,)), fourth), of_y, *expected in zip(X_shards, y_shards, *alone):
        assert type(of_y) is tuple and len(of_y) == 2
        for found, array in zip((first, second, third, fourth, *of_y), expected):
            assert (found.ctx, found.dtype) == (array.ctx, array.dtype)
            assert (found.asnumpy() == array.asnumpy()).all()
    assert [(type(X), type(X[1]), type(X[1][1])) for X in X_shards] == [(tuple, list, tuple)] * len(X_shards)


def test_none_stays_in_each_shard(devices):
    """As the missing input of a network, such as the lengths of BERT's sequences."""
    shards, _ = split_batch((np.arange(4), None, [None]), np.arange(4), devices[:2])
    assert [(X.tolist(), *others) for X, *others in shards] == [([0, 1], None, [None]), ([2, 3], None, [None])]


def test_several_inputs_as_in_the_book(devices):
    """D2L 16.5, ``split_batch_multi_inputs``."""
    X, y = [numpy.arange(14.0).reshape(7, 2), numpy.arange(7)], numpy.arange(7)
    found, _ = split_batch(X, y, devices)
    book = [*zip(*[gluon.utils.split_and_load(np.array(feature), devices, even_split=False) for feature in X])]
    assert [[array.shape[1:] for array in shard] for shard in found] == [[array.shape[1:] for array in b] for b in book]
    for number in (0, 1):
        whole = [numpy.concatenate([shard[number].asnumpy() for shard in shards]) for shards in (found, book)]
        assert (whole[0] == whole[1]).all()


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no networks of mx.nd')
def test_arrays_of_mx_nd_for_programs_that_use_it(devices):
    X, y = numpy.arange(14.0).reshape(7, 2), mx.nd.arange(7)
    with semantics_of(mx.nd.ones(1)):  # as after npx.reset_np()
        y.attach_grad()
        with autograd.record():
            shards, y_shards = split_batch((X, y), y, devices)
            ls = [(shard ** 2).sum() for shard in y_shards]
        autograd.backward(ls)
        assert {type(array) for shard in shards for array in shard} == {type(ls[0])} == {mx.nd.NDArray}
        assert (numpy.concatenate([shard[0].asnumpy() for shard in shards]) == X).all()
        assert (y.grad.asnumpy() == 2 * y.asnumpy()).all()


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no networks of mx.nd')
@pytest.mark.parametrize('dtype', ['float64', 'int64', 'uint8'])
def test_numpy_arrays_become_float32_with_mx_nd_as_in_gluon(dtype, devices):
    """A network would reject float64, and ``0.9 * y`` of integers is 0."""
    X = numpy.arange(7, dtype=dtype)
    with semantics_of(mx.nd.ones(1)):
        shards, expected = split_and_load(X, devices), gluon.utils.split_and_load(X, devices, even_split=False)
        assert [shard.dtype for shard in shards] == [shard.dtype for shard in expected]
    assert numpy.concatenate([shard.asnumpy() for shard in shards]).tolist() == [*range(7)]


def test_micro_batches_on_one_device(devices):
    """A device may be listed several times, as in examples/network_partition.py."""
    X_parts, y_parts = split_batch(np.ones((5, 2)), np.ones(5), devices[:1] * 2)
    assert [len(part) for part in X_parts + y_parts] == [3, 2, 3, 2]


def test_no_rows_are_no_shards(devices):
    assert split_batch(np.zeros((0, 2)), np.zeros(0), devices) == ([], [])


def test_no_devices():
    line = error_line(split_batch, np.zeros((4, 2)), np.zeros(4), [])
    assert line == 'cannot split 4 rows over 0 devices: name at least one'


def test_named_tuples_stay_named(device_list):
    Inputs = collections.namedtuple('Inputs', 'images masks')
    X = Inputs(np.arange(4), np.arange(4) * 2)
    shards, _ = split_batch(X, np.arange(4), device_list(2))
    assert [type(shard) for shard in shards] == [Inputs, Inputs] and shards[1].masks.tolist() == [4, 6]
    net = hybridized(lambda a, b: Inputs(a + b, a - b))
    assert net(X.images, X.masks).masks.tolist() == [0, -1, -2, -3]
