"""Tests of operators that cut, repeat and reorder arrays, in models."""
import pytest
from exported import Lambda, check, random, run_model
from operators import check_older, check_symbols, mxnet_1

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, np


@pytest.mark.parametrize('reps', [3, (2,), (1, 2), (2, 3), (2, 1, 3), (1, 2, 3), (1, 2, 1, 1)])
def test_tile(reps):
    """As many repetitions as axes, fewer or more."""
    check_symbols(f'F.np.tile(X, {reps})', random(2, 4))
    if MXNET_MAJOR < 2 and isinstance(reps, tuple):
        check_older(f'F.tile(X, reps={reps})', random(2, 4))


@pytest.mark.parametrize('code', [
    "F.np.take(X, Y, axis=0, mode='clip')", "F.np.take(X, Y, axis=0, mode='wrap')", 'F.npx.pick(X.T, Y[0:3])',
    'F.npx.pick(X, F.npx.reshape(Y, (-1, 1)))', 'F.npx.pick(X, Y[0:3], axis=0)',
    "F.npx.pick(X, Y[0:3], axis=0, mode='wrap')"])
def test_indices_of_rows(code):
    """Also of rows that the example does not have: they follow the batch size."""
    net, places = Lambda(lambda F, X, Y: eval(code, {'F': F, 'X': X, 'Y': Y})), np.arange(4, dtype='int32')
    check(net, [random(4, 3), places])
    X, places = random(9, 3), np.array([8, 7, 6, 5, 4, 0, 9, 10, -1], dtype='int32')
    found, = run_model('a.onnx', X, places)
    assert abs(found - net(X, places).asnumpy()).max() == 0


@mxnet_1
def test_constants_that_are_cut_to_the_batch():
    """As in the decoder of GluonCV's CenterNet."""
    check_older('F.broadcast_mul(X, F.expand_dims(F.slice_like(F.arange(1, 50), X, axes=(0,)), 1))', random(4, 3))


@mxnet_1
def test_indices_of_rows_in_mx_nd():
    check_older('F.take(X, Y)', random(2, 3), np.array([1, 0]))
    assert (run_model('a.onnx', X := random(5, 3), np.array([4, 3, 2, 1, 7]))[0] == X[[4, 3, 2, 1, 4]].asnumpy()).all()


@mxnet_1
@pytest.mark.parametrize('code', ['F.Crop(X, h_w=(4, 3))', 'F.Crop(X, offset=(2, 1), h_w=(4, 3))',
                                  'F.Crop(X, h_w=(5, 3), center_crop=True)', 'F.Crop(X, Y, num_args=2)',
                                  'F.Crop(X, Y, offset=(1, 2), num_args=2)',
                                  'F.Crop(X, Y, center_crop=True, num_args=2)'])
def test_crop(code):
    check_older(code, random(2, 3, 8, 6), random(2, 1, 4, 4))


@mxnet_1
@pytest.mark.parametrize('block_size', [1, 2, 3])
def test_depth_and_space(block_size):
    check_older(f'F.depth_to_space(X, block_size={block_size})', random(2, 36, 2, 3))
    check_older(f'F.space_to_depth(X, block_size={block_size})', random(2, 3, 6, 12))


def test_sequence_reverse():
    check_older('F.SequenceReverse(X)', random(5, 3, 2), batch_axis=[1])
    for lengths in ([5, 5, 5], [1, 5, 3], [0, 2, 5]):
        check_older('F.SequenceReverse(X, Y, use_sequence_length=True)', random(5, 3, 2),
                    np.array(lengths, dtype='float32'), batch_axis=[1, 0])


@pytest.mark.parametrize('code', [
    'F.np.split(X, 2, axis=0)', 'X[::2]', '(lambda A: F.np.expand_dims(A[0], 1) - A[1])(F.np.split(X, 2, axis=0))'])
def test_parts_of_a_batch(code):
    """Such as two views of each image."""
    check_symbols(code, random(4, 3))
