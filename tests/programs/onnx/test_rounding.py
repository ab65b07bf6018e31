"""Tests of the limits of rounding: coordinates in float32."""
import pytest
from exported import Lambda, random

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, gluon, mx
from gluon_mgpu.programs.onnx.conversion import CONVERTERS
from gluon_mgpu.programs.onnx.export import to_onnx
from gluon_mgpu.programs.onnx.rounding import TOLERANCE

pytestmark = pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no networks of mx.nd')


class Resized(gluon.HybridBlock):
    """A function of a resized image."""

    def __init__(self, size, align_corners=True, function=lambda Y: Y):
        super().__init__()
        self._size, self._align_corners, self._function = size, align_corners, function

    def hybrid_forward(self, F, X):
        return self._function(F.contrib.BilinearResize2D(X, height=self._size, width=self._size,
                                                         align_corners=self._align_corners))


def difference(net, X):
    lines = []
    to_onnx(net, 'a.onnx', X, log=lines.append)
    return float(lines[0].split("network's up to ")[1].split()[0])


@pytest.mark.parametrize('align_corners', [True, False])
@pytest.mark.parametrize('old, new', [(240, 500), (480, 33)])
def test_resized_images(old, new, align_corners):
    """Both runtimes are this far from exact interpolation, more if the image is larger."""
    found = difference(Resized(new, align_corners), random(1, 1, old, old).as_nd_ndarray())
    # The coordinate of the last pixel differs by a few 2^-24 of `old`; neighbors by twice the largest number
    assert found <= TOLERANCE + 2 * (3 if align_corners else 6) * 2**-24 * 2 * old
    assert found > TOLERANCE or (old, align_corners) == (480, True)  # with corners, 480 to 33 has small coordinates


@pytest.mark.parametrize('coordinates', ['asymmetric', 'half_pixel'])
def test_other_coordinates_are_found(coordinates, monkeypatch):
    """The limit is far below what another way to resize would change."""
    monkeypatch.setitem(CONVERTERS, 'upsampling', lambda g, op, X, **_: g.Resize(
        X, '', '', g.shape(op.output), mode='linear', coordinate_transformation_mode=coordinates))
    with pytest.raises(ValueError, match='differ from the network.* rounding explains 1.8e-04: '):
        difference(Resized(480), random(1, 1, 240, 240).as_nd_ndarray())


def test_other_mistakes_in_a_network_that_resizes(monkeypatch):
    monkeypatch.setitem(CONVERTERS, 'mulscalar', lambda g, op, X, **_: g.Mul(X, 2.002))
    with pytest.raises(ValueError, match='differ from the network'):
        difference(Resized(480, function=lambda Y: Y * 2), random(1, 1, 240, 240).as_nd_ndarray())


def test_a_network_that_does_not_resize_keeps_its_limit(monkeypatch):
    monkeypatch.setitem(CONVERTERS, 'square', lambda g, op, X, **_: g.Mul(g.Mul(X, X), 1.00002))
    with pytest.raises(ValueError, match='rounding explains 1.0e-05: '):
        to_onnx(Lambda(lambda F, X: F.np.square(X)), 'a.onnx', random(1, 1, 240, 240))


def test_nearest_neighbors_have_no_coordinates_to_round():
    net = gluon.nn.HybridLambda(lambda F, X: F.UpSampling(X, scale=2, sample_type='nearest'))
    assert difference(net, mx.nd.ones((1, 1, 240, 240))) == 0
