"""Tests of softmax, reductions, sorting and attention in models."""
import pytest
from exported import random
from operators import check_both, check_older, check_symbols, mxnet_1, shuffled, whole
from slow import slow

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR


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


@mxnet_1
@pytest.mark.parametrize('name', ['sum', 'mean', 'max', 'prod'])
def test_a_reduction_over_no_axis(name):
    check_older(f'F.{name}(X, axis=(0, 1), exclude=True)', random(2, 3))


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


@pytest.mark.parametrize('axis', [0, slow(1), slow(2), slow(-1), -2, None])
@pytest.mark.parametrize('ret_typ', ['value', 'indices', 'mask', 'both'])
@pytest.mark.parametrize('more', ['', ', is_ascend=True', ", k=3, dtype='int32'", slow(', k=4, is_ascend=True'),
                                  ', k=0'])
def test_topk(more, ret_typ, axis):
    """Along axes that depend on the batch as well, for numbers that all differ."""
    if axis == 0 and 'k=0' in more:
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
        check_symbols(f'(F.np.sort(X, axis={axis}), F.np.argsort(X, axis={axis}))', shuffled(2, 40, 6))


@pytest.mark.parametrize('is_ascend', [True, False])
def test_topk_of_equal_numbers(is_ascend):
    """The values are equal; the indices are those of such values, but MXNet may choose others."""
    check_both(f"F.topk(X, k=9, ret_typ='value', is_ascend={is_ascend})", whole(2, 3, 200))
    check_both(f"F.topk(X, k=9, ret_typ='indices', is_ascend={is_ascend})", whole(2, 3, 16))
    check_both('F.topk(X)', shuffled(2, 3, 16))
