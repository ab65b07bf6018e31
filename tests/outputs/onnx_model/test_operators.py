"""Operators of older networks and of detectors give the same results in onnxruntime as in MXNet, for many settings."""
import re
from math import inf

import numpy
import pytest
from exported import Lambda, check, random, run_model, trained

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, gluon, mx, np
from gluon_mgpu.outputs.onnx_model.graph import semantics_of
from gluon_mgpu.programs import export

mxnet_1 = pytest.mark.skipif(MXNET_MAJOR >= 2, reason='mx.nd in Gluon needs MXNet 1.9')


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def whole(*shape, low=-3, high=4, dtype='float32'):
    """Return random whole numbers, of which some are equal."""
    return np.array(numpy.random.default_rng(0).integers(low, high, shape), dtype=dtype)


def shuffled(*shape):
    """Return numbers that all differ, and are not whole: random inputs like them have no equal ones either."""
    return np.array(numpy.random.default_rng(0).permutation(numpy.prod(shape)).reshape(shape) - 9.5, dtype='float32')


class Net(gluon.HybridBlock):
    """A function of ``F``, ``mx.nd`` or ``mx.sym``, and of inputs `X` and `Y`."""

    def __init__(self, code):
        super().__init__()
        self._code = code

    def hybrid_forward(self, F, X, *more):
        return eval(self._code, {'F': F, 'X': X, **dict(zip('Y', more))})


def check_older(code, *arrays, **settings):
    """Compare an operator of ``mx.nd``; on MXNet 2, the same one of ``npx``."""
    if MXNET_MAJOR >= 2:
        code = code.replace('F.contrib.', 'F.').replace('SequenceReverse', 'sequence_reverse')
        check(Lambda(lambda F, X, *more: eval(code, {'F': F.npx, 'X': X, **dict(zip('Y', more))})), arrays, **settings)
        return
    with semantics_of(mx.nd.ones(1)):
        check(Net(code), [array.as_nd_ndarray() for array in arrays], **settings)


def check_symbols(code, *arrays):
    """Compare an expression of arrays of ``mx.np``."""
    check(Lambda(lambda F, *inputs: eval(code, {'F': F, **dict(zip('XY', inputs))})), arrays)


def check_both(code, *arrays, **settings):
    """Compare an operator that ``npx`` and, on MXNet 1.9, ``mx.nd`` have under the same name."""
    check(Lambda(lambda F, X: eval(code, {'F': F.npx, 'X': X})), arrays, **settings)
    if MXNET_MAJOR < 2:
        check_older(code, *arrays, **settings)


@mxnet_1
@pytest.mark.parametrize('shape', [(2, 3), (2, 3, 4), (2, 3, 4, 5)])
@pytest.mark.parametrize('mode', ['instance', 'channel'])
def test_softmax_activation(mode, shape):
    if mode == 'instance' or len(shape) > 2:
        check_older(f"F.SoftmaxActivation(X, mode='{mode}')", random(*shape))


@mxnet_1
@pytest.mark.parametrize('settings, label', [
    ('', (2, 3)), ('multi_output=True', (2, 4)), ('preserve_shape=True', (2, 3)),
    ('multi_output=True, preserve_shape=True', (2, 4))])
@pytest.mark.parametrize('operator', ['SoftmaxOutput', 'Softmax'])
def test_softmax_output_with_a_label(operator, settings, label):
    """MXNet 0.x had it as Softmax, which is another operator than softmax."""
    check_older(f'F.{operator}(X, Y, {settings})', random(2, 3, 4), whole(*label, low=0))


@pytest.mark.parametrize('reps', [3, (2,), (1, 2), (2, 3), (2, 1, 3), (1, 2, 3), (1, 2, 1, 1)])
def test_tile(reps):
    """As many repetitions as axes, fewer or more."""
    check(Lambda(lambda F, X: F.np.tile(X, reps)), [random(2, 4)])
    if MXNET_MAJOR < 2 and isinstance(reps, tuple):
        check_older(f'F.tile(X, reps={reps})', random(2, 4))


COMPARISONS = ['==', '!=', '<', '<=', '>', '>=']
NAMES = ['equal', 'not_equal', 'lesser', 'lesser_equal', 'greater', 'greater_equal', 'logical_and', 'logical_or',
         'logical_xor']


@pytest.mark.parametrize('dtype', ['float32', 'int32', 'int64'])
@pytest.mark.parametrize('operator', COMPARISONS)
def test_comparisons(operator, dtype):
    """With equal numbers, scalars on both sides, and arrays that are broadcast."""
    X, Y = whole(4, 3, 5, dtype=dtype), whole(4, 1, 5, low=-1, dtype=dtype)
    for code in (f'X {operator} 1', f'-1 {operator} X', f'X {operator} Y',
                 f'(X {operator} 0) {operator} (Y {operator} 0)'):
        check_symbols(code, *[X, Y][:1 + ('Y' in code)])
        if MXNET_MAJOR < 2:
            check_older(code.replace('Y', 'F.broadcast_like(Y, X)'), *[X, Y][:1 + ('Y' in code)])


@mxnet_1
@pytest.mark.parametrize('dtype', ['float32', 'int32'])
@pytest.mark.parametrize('name', NAMES)
def test_broadcast_comparisons(name, dtype):
    check_older(f'F.broadcast_{name}(X, Y)', whole(4, 3, 5, dtype=dtype), whole(4, 1, 5, low=-1, dtype=dtype))
    check_older('F.logical_not(X)', whole(4, 3, dtype=dtype))


@pytest.mark.skipif(MXNET_MAJOR < 2, reason='MXNet 1.9 has no symbols for these functions')
@pytest.mark.parametrize('name', ['logical_and', 'logical_or', 'logical_xor'])
def test_logical_functions(name):
    check(Lambda(lambda F, X, Y: getattr(F.np, name)(X, Y)), [whole(4, 3, 5), whole(4, 1, 5, low=-1)])
    check(Lambda(lambda F, X: getattr(F.np, name)(X, 1)), [whole(4, 3, 5)])


@pytest.mark.parametrize('number', [1.5, -inf])
def test_integers_compared_with_fractions_are_refused(number):
    """MXNet rounds 1.5 to 1 in some calls."""
    with pytest.raises(ValueError, match=f'^no model is written because _npi_[a-z]*_scalar .* integers and {number}'):
        check(Lambda(lambda F, X: number > X), [whole(4, 3, dtype='int32')])


@pytest.mark.parametrize('code', ['F.npx.softmax(F.np.where(F.np.abs(X - X[:, 0:1]) < 1, X, -inf))', 'X > -inf',
                                  '(X < inf) * X + (X == -inf)', 'F.np.clip(X, 0, inf)', 'F.np.maximum(X, -inf)'])
def test_infinite_numbers(code):
    """Such as those that hide parts of an attention."""
    check(Lambda(lambda F, X: eval(code, {'F': F, 'X': X, 'inf': inf})), [random(4, 3)])


@pytest.mark.parametrize('code', [
    "F.np.take(X, Y, axis=0, mode='clip')", "F.np.take(X, Y, axis=0, mode='wrap')", 'F.npx.pick(X.T, Y[0:3])',
    'F.npx.pick(X, Y[0:3], axis=0)', "F.npx.pick(X, Y[0:3], axis=0, mode='wrap')"])
def test_indices_of_rows(code):
    """Also of rows that the example does not have: they follow the batch size."""
    net, places = Lambda(lambda F, X, Y: eval(code, {'F': F, 'X': X, 'Y': Y})), np.arange(4, dtype='int32')
    check(net, [random(4, 3), places])
    X, places = random(9, 3), np.array([8, 7, 6, 5, 4, 0, 9, 10, -1], dtype='int32')
    found, = run_model('a.onnx', X, places)
    assert abs(found - net(X, places).asnumpy()).max() == 0


@mxnet_1
def test_indices_of_rows_in_mx_nd():
    check_older('F.take(X, Y)', random(2, 3), np.array([1, 0]))
    assert (run_model('a.onnx', X := random(5, 3), np.array([4, 3, 2, 1, 7]))[0] == X[[4, 3, 2, 1, 4]].asnumpy()).all()


@mxnet_1
@pytest.mark.parametrize('name', ['sum', 'mean', 'max', 'prod'])
def test_a_reduction_over_no_axis(name):
    check_older(f'F.{name}(X, axis=(0, 1), exclude=True)', random(2, 3))


def test_not_of_a_comparison():
    check(Lambda(lambda F, X: F.np.logical_not(X > 0)), [whole(4, 3)])


@pytest.mark.parametrize('code', ['X, 0.5', '0.5, X', '1, 0.5', 'X, X * 0', 'X, 0'])
def test_where_with_scalars(code):
    check(Lambda(lambda F, X: F.np.where(X > 0, *eval(code, {'X': X}))), [random(4, 3)])


@pytest.mark.parametrize('code', ['X % 3', 'X % -3', 'X % 2.5', 'X % -0.7', '7 % X', '-7.5 % X', 'X % Y', 'Y % X'])
def test_remainders(code):
    """The sign is that of the divisor, and x % 0 is 0."""
    for arrays in ((whole(4, 3), whole(4, 3, high=3)), (random(4, 3), random(4, 3) - 1)):
        arrays = arrays[:1 + ('Y' in code)]
        check_symbols(code, *arrays)
        if MXNET_MAJOR < 2:
            check_older(code, *arrays)


@pytest.mark.parametrize('code', ['X % 3', 'X % -3', '7 % X', '-7 % X', 'X % Y'])
def test_remainders_of_integers(code):
    arrays = [whole(4, 3, dtype='int32'), whole(4, 3, high=3, dtype='int32')][:1 + ('Y' in code)]
    if '% X' not in code:  # for which MXNet infers another dtype than it computes
        check_symbols(code, *arrays)
    if MXNET_MAJOR < 2:
        check_older(code, *arrays)


@mxnet_1
def test_broadcast_remainders():
    check_older('F.broadcast_mod(X, Y)', whole(4, 3, 5), whole(4, 1, 5))


@pytest.mark.parametrize('scalar', [0.5, 1, 2, 3.0])
def test_smooth_l1(scalar):
    check_both(f'F.smooth_l1(X, scalar={scalar})', np.concatenate([whole(4, 20), whole(4, 20) / 4], axis=1))


@pytest.mark.parametrize('array', [whole(4, 3), random(4, 3)])
def test_sign(array):
    check(Lambda(lambda F, X: F.np.sign(X)), [array])
    if MXNET_MAJOR < 2:
        check_older('F.sign(X)', array)


@mxnet_1
@pytest.mark.parametrize('operator', ['MakeLoss', 'make_loss', 'BlockGrad', 'stop_gradient', 'identity'])
def test_operators_that_return_their_input(operator):
    check_older(f'F.{operator}(X * 2)', random(2, 3))


@mxnet_1
@pytest.mark.parametrize('pad', [0, 1])
@pytest.mark.parametrize('kind', ["'max'", "'avg'", "'avg', count_include_pad=False"])
@pytest.mark.parametrize('kernel, stride', [(2, 2), (3, 2), (3, 3), (2, 3)])
@pytest.mark.parametrize('size', [6, 7, 8])
def test_pooling_whose_last_window_reaches_over_the_border(size, kernel, stride, kind, pad):
    """Old runtimes divide averages by the whole kernel. In windows of padding only, MXNet has the lowest number."""
    last = -(-(size + 2 * pad - kernel) // stride) * stride - pad  # its first row
    settings = (f'kernel=({kernel}, 2), stride=({stride}, 1), pad=({pad}, 0), pool_type={kind}, '
                'pooling_convention="full"')
    code = f'F.clip(F.Pooling(X, {settings}), -9, 9)'
    if last >= size + ('count' not in kind) * pad and 'avg' in kind:
        with pytest.raises(ValueError, match='^no model is written because Pooling .* an average of padding only'):
            check_older(code, random(2, 3, size, 4))
    else:
        check_older(code, random(2, 3, size, 4))


@mxnet_1
@pytest.mark.parametrize('shape', [(4, 3, 2), (4, 4), (4,)])
def test_where_with_a_condition_for_each_row(shape):
    """Also if there are as many rows as columns."""
    check_older('F.where(X > 0, Y, -2 * Y)', whole(4), random(*shape))
    check_older('F.where(X > 0, F.tanh(X), X)', random(*shape))


@pytest.mark.parametrize('code', [
    "X.astype('float64') % 1009", "(X.astype('float64') - Y.astype('float64')).astype('float32')",
    "F.np.sqrt(X.astype('float64') * 0.5 + 1.5)", "F.np.mean(X.astype('float64'), axis=1)",
    "F.np.where(X.astype('float64') > 2**30, 0.5, X.astype('float64'))",
    "F.npx.softmax(X.astype('float64') * 1e-9)", "(X < Y) * 2.0 + F.np.sin(X.astype('float32') / 2.0**31)"])
def test_float64_inside_a_network(code):
    """Hashed ids above 2^24 and differences of time stamps need it; for bool * 2.0, MXNet infers it without need."""
    X = whole(4, 3, low=2**25, high=2**31 - 1, dtype='int32')
    check_symbols(code, *[X, X[::-1] + 1][:1 + ('Y' in code)])


@mxnet_1
@pytest.mark.parametrize('size', [None, 1, (1, 1), (1, 3), 2, 4, 5, (7, 3), (12, 2), (16, 11)])
def test_adaptive_pooling(size):
    """Also to sizes that are no divisors, and larger than the array."""
    settings = '' if size is None else f', output_size={size}'
    check_older(f'F.contrib.AdaptiveAvgPooling2D(X{settings})', random(2, 3, 12, 8))


@mxnet_1
@pytest.mark.parametrize('code', ['F.Crop(X, h_w=(4, 3))', 'F.Crop(X, offset=(2, 1), h_w=(4, 3))',
                                  'F.Crop(X, h_w=(5, 3), center_crop=True)', 'F.Crop(X, Y, num_args=2)',
                                  'F.Crop(X, Y, offset=(1, 2), num_args=2)',
                                  'F.Crop(X, Y, center_crop=True, num_args=2)'])
def test_crop(code):
    check_older(code, *[random(2, 3, 8, 6), random(2, 1, 4, 4)][:1 + ('Y' in code)])


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


@pytest.mark.parametrize('heads', [1, 2, 4])
def test_attention_of_interleaved_projections(heads):
    """That of gluon-nlp's BERT: (length, rows, heads * parts * size), scores (rows * heads, length, length)."""
    settings = {'batch_axis': [1, 1], 'output_names': ['scores', 'results']}
    self_attention, memory = (f'(lambda A: (A, F.contrib.interleaved_matmul_{kind}_valatt({values}, F.softmax(A), '
                              f'heads={heads})))(F.contrib.interleaved_matmul_{kind}_qk({inputs}, heads={heads}))'
                              for kind, values, inputs in (('selfatt', 'X', 'X'), ('encdec', 'Y', 'X, Y')))
    one, two, three = (random(length, 2, heads * parts * 3) for length, parts in ((4, 1), (5, 2), (6, 3)))
    check_older(self_attention, three, **{**settings, 'batch_axis': [1]})
    check_older(memory, one, two, **settings)


@pytest.mark.parametrize('axis', [0, 1, 2, -1, -2, None])
@pytest.mark.parametrize('ret_typ', ['value', 'indices', 'mask', 'both'])
@pytest.mark.parametrize('more', ['', ', is_ascend=True', ", k=3, dtype='int32'", ', k=4, is_ascend=True', ', k=0'])
def test_topk(more, ret_typ, axis):
    """Along axes that depend on the batch as well, for numbers that all differ."""
    if (axis is None and ret_typ == 'mask') or (axis == 0 and 'k=0' in more):
        return  # refused
    rows = 'F.slice(X, begin=(0,), end=(1,))' if axis is None else 'X'  # a larger batch would have the same rows
    check_both(f"F.topk({rows}, axis={axis}, ret_typ='{ret_typ}'{more})", shuffled(5, 6, 4))


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 cannot read its own graph of np.sort')
@pytest.mark.parametrize('axis', [1, -1])
@pytest.mark.parametrize('is_ascend', [True, False])
def test_sort(is_ascend, axis):
    check_older(f'F.sort(X, axis={axis}, is_ascend={is_ascend})', whole(2, 40, 6))
    check_older(f'F.argsort(X, axis={axis}, is_ascend={is_ascend})', shuffled(2, 40, 6))
    if is_ascend:
        check(Lambda(lambda F, X: (F.np.sort(X, axis=axis), F.np.argsort(X, axis=axis))), [shuffled(2, 40, 6)])


@pytest.mark.parametrize('is_ascend', [True, False])
def test_topk_of_equal_numbers(is_ascend):
    """The values are equal; the indices are those of such values, but MXNet may choose others."""
    check_both(f"F.topk(X, k=9, ret_typ='value', is_ascend={is_ascend})", whole(2, 3, 200))
    check_both(f"F.topk(X, k=9, ret_typ='indices', is_ascend={is_ascend})", whole(2, 3, 16))


def boxes(rows, number, ids=0, scale=1.0, center=False):
    """Return overlapping boxes, each [id, score, left, top, right, bottom] or with its center and size."""
    rng = numpy.random.default_rng(rows)
    middle, size = rng.uniform(0.2, 0.8, (rows, number, 2)), rng.uniform(0.1, 0.5, (rows, number, 2))
    corners = [middle, size] if center else [middle - size / 2, middle + size / 2]
    label = rng.integers(0, ids + 1, (rows, number, 1))
    score = rng.permutation(rows * number).reshape(rows, number, 1) / (rows * number)
    return np.array(numpy.concatenate([label, score, *(part * scale for part in corners)], axis=2), dtype='float32')


@pytest.mark.parametrize('settings', ['', 'overlap_thresh=0.3, valid_thresh=0.4', 'overlap_thresh=0.7, topk=10',
                                      'topk=100, valid_thresh=0.2', 'id_index=0', 'id_index=0, background_id=0, topk=9',
                                      'id_index=0, force_suppress=True, valid_thresh=0.01', 'valid_thresh=2'])
def test_box_nms(settings):
    for scale in (1.0, 416.0):
        check_older(f'F.contrib.box_nms(X, {settings})', boxes(3, 40, 3, scale))
    check_older(f"F.contrib.box_nms(X, in_format='center', out_format='center', {settings})",
                boxes(3, 40, 3, 416.0, center=True))


def test_box_nms_of_equal_scores():
    """The first box is kept, as in MXNet, also in a batch of arrays with four axes."""
    X = boxes(4, 30, 2)
    X[:, :, 1] = np.floor(X[:, :, 1] * 5) / 5
    check_older('F.contrib.box_nms(X, id_index=0, topk=20)', X)
    check_older('F.contrib.box_nms(X, overlap_thresh=0.4)', X.reshape(2, 2, 30, 6))


@mxnet_1
@pytest.mark.parametrize('settings', ['', 'sizes=(0.2, 0.4), ratios=(1, 2, 0.5)', 'sizes=(0.3,), clip=True',
                                      'sizes=(0.5,), steps=(0.1, 0.2), offsets=(0.3, 0.6)'])
def test_multibox_prior(settings):
    check_older(f'F.broadcast_add(F.contrib.MultiBoxPrior(X, {settings}), F.reshape(F.mean(X, axis=(1, 2, 3)), '
                'shape=(-1, 1, 1)))', random(2, 3, 5, 4))


@mxnet_1
@pytest.mark.parametrize('settings', ['pooled_size=(3, 2), spatial_scale=1.0', 'pooled_size=(7, 7), spatial_scale=0.5',
                                      'pooled_size=(2, 2), spatial_scale=0.25, sample_ratio=2',
                                      'pooled_size=(3, 3), spatial_scale=0.5, aligned=True',
                                      'pooled_size=(3, 3), spatial_scale=0.9, aligned=True, sample_ratio=3'])
def test_roi_align(settings):
    """Also regions that are small or reach over the border; invalid ones end MXNet's process."""
    corner = 'F.slice_axis(Y, axis=1, begin=1, end=3) * 28 - 6'
    rois = (f'F.concat(F.floor(F.slice_axis(Y, axis=1, begin=0, end=1) * 1.9), {corner}, '
            f'{corner} + 0.1 + F.slice_axis(Y, axis=1, begin=3, end=5) * 20, dim=1)')
    places = np.array(numpy.random.default_rng(1).random((40, 5)), dtype='float32')
    check_older(f'F.contrib.ROIAlign(X, {rois}, {settings})', random(2, 3, 24, 16), places, batch_axis=[0, None])


@mxnet_1
@pytest.mark.parametrize('code, words', [
    ('F.topk(X, axis=0, k=0)', 'its sizes depend on the batch'),
    ('F.topk(X, axis=None, k=0)', 'its sizes depend on the batch'),
    ("F.topk(X, axis=None, k=2, ret_typ='mask')", "differ from the network's"),
    ('F.argsort(X, axis=0)', 'its sizes depend on the batch'),
    ("F.contrib.box_nms(X, in_format='center')", 'topk=0 or another out_format than in_format'),
    ('F.contrib.box_nms(X, topk=0)', 'topk=0 or another out_format than in_format'),
    ('F.contrib.ROIAlign(F.expand_dims(X, 0), F.zeros((2, 5)), pooled_size=(1, 1), spatial_scale=1, '
     'position_sensitive=True)', 'position_sensitive'),
    ('F.Crop(F.transpose(F.expand_dims(X, 0), axes=(0, 2, 1, 3)), h_w=(1, 2))', 'its sizes depend on the batch'),
    ('F.contrib.AdaptiveAvgPooling2D(F.transpose(F.expand_dims(X, 0)), output_size=2)', 'sizes depend on the batch'),
    ('F.contrib.MultiBoxPrior(F.expand_dims(F.transpose(X), 0))', 'its sizes depend on the batch'),
    ("F.Pooling(X, kernel=(2,), pool_type='sum')", "cannot be converted, 'sum' is not supported: leave it out"),
])
def test_settings_that_are_refused(code, words, tmp_path):
    """In one line, and nothing is written."""
    with pytest.raises(ValueError, match=f'^no model is written because .*{words}') as error:
        check_older(code, shuffled(3, 8, 6))
    assert '\n' not in str(error.value) and list(tmp_path.iterdir()) == []


@mxnet_1
@pytest.mark.parametrize('code', ['F.contrib.box_nms(X)', 'F.contrib.MultiBoxPrior(F.expand_dims(X, 1))',
                                  'F.topk(X)', 'F.SoftmaxActivation(X)', 'F.tile(X, reps=(1, 2, 1, 1))'])
def test_attributes_that_are_no_settings(code):
    with mx.AttrScope(ctx_group='a', lr_mult='2', __init__='zeros'):
        check_older(code, boxes(2, 9))


class YoloHead(gluon.HybridBlock):
    """The last layer of gluon-cv's YOLOv3, of 2 classes and 3 anchors, with the choice of boxes."""

    def __init__(self):
        super().__init__()
        self.prediction = gluon.nn.Conv2D(3 * 7, 1)

    def hybrid_forward(self, F, X):
        Y = F.transpose(F.reshape(self.prediction(X), shape=(0, 21, -1)), axes=(0, 2, 1))
        Y = F.reshape(Y, shape=(0, -1, 3, 7))
        center, size, object_score, class_scores = (F.slice_axis(Y, axis=-1, begin=begin, end=end)
                                                    for begin, end in ((0, 2), (2, 4), (4, 5), (5, None)))
        places = F.slice_like(F.reshape(F.arange(200), shape=(1, 1, 10, 10, 2)), X * 0, axes=(2, 3))
        center = F.broadcast_add(F.sigmoid(center), F.reshape(places, shape=(1, -1, 1, 2))) * 8
        size = F.broadcast_mul(F.exp(size), F.reshape(F.arange(20, 80, step=10), shape=(1, 1, 3, 2))) / 2
        corners = F.tile(F.concat(center - size, center + size, dim=-1), reps=(2, 1, 1, 1, 1))
        scores = F.broadcast_mul(F.sigmoid(class_scores), F.sigmoid(object_score))
        scores = F.expand_dims(F.transpose(scores, axes=(3, 0, 1, 2)), axis=-1)
        ids = F.broadcast_add(scores * 0, F.reshape(F.arange(2), shape=(0, 1, 1, 1, 1)))
        found = F.transpose(F.concat(ids, scores, corners, dim=-1), axes=(1, 0, 2, 3, 4))
        found = F.contrib.box_nms(F.reshape(found, shape=(0, -1, 6)), overlap_thresh=0.45, valid_thresh=0.2, topk=40,
                                  id_index=0, score_index=1, coord_start=2, force_suppress=False)
        found = F.slice_axis(found, axis=1, begin=0, end=30)
        return tuple(F.slice_axis(found, axis=2, begin=begin, end=end) for begin, end in ((0, 1), (1, 2), (2, 6)))


@mxnet_1
def test_yolo():
    with semantics_of(mx.nd.ones(1)):
        X = random(2, 8, 5, 6).as_nd_ndarray()
        check(trained(YoloHead(), X), [X])


@pytest.mark.parametrize('operator', [lambda F, A, B: F.np.hypot(A, B), lambda F, A, B: F.npx.gamma(A) * 0 + B])
def test_where_to_cut(operator, capsys):
    """The line for an operator that cannot be converted names what to keep, and this can be exported."""
    one, two = gluon.nn.Dense(3), gluon.nn.Dense(3)
    net = Lambda(lambda F, one, two, X: operator(F, one(X), two(X)), one, two)
    X = random(2, 4)
    net.initialize()
    net.hybridize()
    net(X)
    net.export('net')
    assert export.main(['net-symbol.json', 'net-0000.params', '--shape', '2,4']) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    advice = re.search('which docs/export.md does not list: cut the network before it, (.*), as in docs/', line)
    eval(advice[1], {'mx': mx, 'symbol': mx.sym.load('net-symbol.json')}).save('cut-symbol.json')
    assert export.main(['cut-symbol.json', 'net-0000.params', '--shape', '2,4']) == 0
    for found, layer in zip(run_model('cut.onnx', X), (one, two)):
        assert abs(found - layer(X).asnumpy()).max() <= 1e-6


@mxnet_1
@pytest.mark.parametrize('dtype', ['int32', 'int64'])
@pytest.mark.parametrize('code', [
    'F.exp(X)', 'F.sqrt(F.abs(X))', 'F.log(F.abs(X) + 1)', 'F.log1p(F.abs(X))', 'F.square(X)', 'F.rsqrt(F.abs(X) + 1)',
    'F.reciprocal(F.abs(X) + 1)', 'F.smooth_l1(X)', 'F.floor(X)', 'X ** 2', 'F.relu(X)', 'F.add_n(X, X)',
    'F.abs(X)', 'F.sign(X)', 'F.negative(X)', 'F.clip(X, -1, 2)', 'F.max(X, axis=1)', 'F.sum(X, axis=1)',
    'F.add_n(X, X, X)', 'F.SequenceMask(X, F.cast(F.slice_axis(F.abs(X), axis=1, begin=0, end=1).reshape((-1,)), '
    'dtype="float32") % 4, use_sequence_length=True, axis=1, value=-1)'])
def test_functions_of_integers(code, dtype):
    """MXNet computes them in float32 and cuts off the fraction; ONNX has no such functions."""
    check_older(code, whole(4, 3, dtype=dtype))


@pytest.mark.parametrize('code', [
    '(X > 0) + (Y > 0)', '(X > 0) * (Y > 0)', 'F.np.max(X > 0, axis=1)', 'F.np.min(X > -1, axis=1)',
    'F.np.sum(X > 0, axis=1)', 'F.np.where(X > 0, X > 1, Y > 1)'])
def test_boolean_arrays(code):
    X = whole(4, 3)
    check_symbols(code, *[X, X[::-1]][:1 + ('Y' in code)])


@pytest.mark.parametrize('code', [
    'F.np.repeat(X, 2).reshape(-1, 24)', 'F.np.concatenate([X, X + 1], axis=None)', 'F.np.concatenate([X, X + 1])',
    "F.np.pad(X, ((0, 0), (1, 2), (4, 3)), mode='symmetric')", "F.np.pad(X, ((0, 0), (1, 2), (3, 3)), mode='reflect')",
    "F.np.einsum('Bij,BkJ->BijkJ', X, X)", "F.np.einsum('bBi,bCi', X, X)", 'F.np.array_split(X, 2, axis=1)',
    'F.np.array_split(X, 3, axis=2)', 'F.np.hsplit(X, 3)', 'F.np.moveaxis(X, 0, -1)',
    'F.np.moveaxis(X, (2, 0), (0, 1))', 'F.np.var(X, axis=1)', 'F.np.std(X, axis=(1, 2), ddof=1, keepdims=True)',
    'F.np.std(X[:, 0], axis=-1)', 'F.np.expm1(X)', 'F.np.log2(F.np.abs(X) + 1)', 'F.np.log10(F.np.abs(X) + 1)',
    'F.np.cumsum(X)', 'F.np.cumsum(X, axis=1)', 'F.np.roll(X, (1, -2), axis=(1, 2))', 'F.np.roll(X, -7, axis=-1)',
    'F.np.tril(X)', 'F.np.tril(X, 1)', 'F.np.tril(X, -1)', 'X * F.np.eye(3, 4, 1)', 'X * F.np.eye(4)[0]',
    "F.npx.gather_nd(X, F.np.ones((2, 3), dtype='int32'))", 'F.np.around(2 * X)', 'F.np.around(X, 1)',
    'F.np.rint(2 * X)', 'F.np.fix(2 * X)', 'F.np.trunc(2 * X)', 'F.np.floor(X * 1e10)',
    'F.np.trunc(X * 1e10)', 'F.np.ceil(X * 1e10)'])
def test_more_operators(code):
    """Halves are rounded in different ways."""
    X = random(2, 3, 4)
    X[0, 0] = np.array([-0.75, -0.25, 0.25, 0.75])
    check_symbols(code, X)


@mxnet_1
@pytest.mark.parametrize('code', [
    'F.round(2 * X)', "F.LeakyReLU(X, act_type='rrelu')[0]",
    "F.LeakyReLU(X, act_type='rrelu', lower_bound=0.3, upper_bound=0.5)[0]",
    'F.linalg.gemm2(X, X, transpose_b=True, alpha=0.5)', 'F.repeat(X, repeats=2).reshape((-1, 24))',
    'F.contrib.BilinearResize2D(F.expand_dims(X, 1), height=1, width=1)',
    'F.contrib.BilinearResize2D(F.expand_dims(X, 1), height=5, width=1, align_corners=False)',
    'F.Convolution_v1(F.expand_dims(X, 1), F.ones((2, 1, 3, 3)), F.ones(2), kernel=(3, 3), num_filter=2, pad=(1, 1))'])
def test_more_operators_of_mx_nd(code):
    X = random(2, 3, 4)
    X[0, 0] = np.array([-0.75, -0.25, 0.25, 0.75])
    check_older(code, X)


@mxnet_1
@pytest.mark.parametrize('fix_gamma', [True, False])
def test_batch_norm_of_mxnet_0(fix_gamma):
    with semantics_of(mx.nd.ones(1)):
        symbol = mx.sym.BatchNorm_v1(mx.sym.var('data'), fix_gamma=fix_gamma, name='bn')
        block, rng = gluon.SymbolBlock(symbol, mx.sym.var('data')), numpy.random.default_rng(0)
        for param in block.collect_params().values():
            param.shape = (3,)
            param._load_init(mx.nd.array(rng.uniform(0.5, 1.5, 3)), mx.cpu())
        check(block, [random(2, 3, 4, 4).as_nd_ndarray()])
