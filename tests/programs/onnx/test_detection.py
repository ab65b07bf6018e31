"""Tests of the operators of object detection in models."""
import numpy
import pytest
from exported import check, random, trained
from operators import boxes, check_older, mxnet_1
from semantics import semantics

from gluon_mgpu.mxnet_setup.compat import gluon, np


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
@pytest.mark.parametrize('settings', ['', '0.1, 0.2, 0.3, 0.4', '0.1, 0.2, 0.3, 0.4, clip=0.1'])
def test_box_decode(settings):
    """As GluonCV's SSD calls it."""
    check_older(f'F.contrib.box_decode(*F.amp_multicast(X, Y, num_outputs=2, cast_narrow=True), {settings})',
                random(3, 6, 4), random(1, 6, 4), batch_axis=[0, None])


@mxnet_1
@pytest.mark.parametrize('axis', [0, 3])
def test_shape_array(axis):
    check_older(f"F.broadcast_div(X, F.cast(F.shape_array(X).split(num_outputs=4, axis=0)[{axis}], 'float32'))",
                random(2, 3, 5, 6))


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
    with semantics('nd'):
        X = random(2, 8, 5, 6).as_nd_ndarray()
        check(trained(YoloHead(), X), [X])
