"""Networks that sort numbers of which some are equal but for rounding, as before training."""
import pytest
from exported import Lambda, random
from test_detection import YoloHead

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, init, mx, np
from gluon_mgpu.programs.onnx.conversion import CONVERTERS
from gluon_mgpu.programs.onnx.export import to_onnx
from gluon_mgpu.programs.onnx.graph import semantics_of

mxnet_1 = pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no networks of mx.nd')
ALONE = ' compared alone, because of numbers that are equal but for rounding'


def line_of(net, *examples):
    lines = []
    to_onnx(net, 'a.onnx', *examples, log=lines.append)
    return lines[0]


def untrained():
    """A network whose scores are all about 0.25, and an example."""
    net = YoloHead()
    net.initialize(init.Normal(1e-5))
    return net, random(1, 8, 10, 10).as_nd_ndarray()


@mxnet_1
def test_an_untrained_yolo():
    with semantics_of(mx.nd.ones(1)):
        assert line_of(*untrained()).endswith(f'; _contrib_box_nms{ALONE}')


@mxnet_1
@pytest.mark.parametrize('kind, wrong, output', [
    ('boxnms', lambda right, g, op, X, **settings: right(g, op, X, **{**settings, 'overlap_thresh': 0.05}), 'array_'),
    ('boxnms', lambda right, g, op, X, **settings: g.Mul(right(g, op, X, **settings), 1.0001), 'array_'),
    ('sigmoid', lambda right, g, op, X, **settings: g.Mul(right(g, op, X, **settings), 1.0001), '.*_input'),
    ('sliceaxis', lambda right, g, op, X, axis, **more: g.Mul(right(g, op, X, axis, **more), 1 + axis / 1e3), '')])
def test_mistakes_are_found_before_while_and_after_it_sorts(kind, wrong, output, monkeypatch):
    right = CONVERTERS[kind]
    monkeypatch.setitem(CONVERTERS, kind, lambda *args, **settings: wrong(right, *args, **settings))
    words = f"the model's {output}.* in onnxruntime differ from the network's"
    with semantics_of(mx.nd.ones(1)), pytest.raises(ValueError, match=words):
        line_of(*untrained())


@pytest.mark.parametrize('code', [
    'F.np.argsort(F.np.around(X))', 'F.npx.topk(F.np.around(X), k=3)', 'F.np.argsort(X)',
    "F.npx.topk(F.np.around(X), k=3, ret_typ='both')", 'F.npx.pick(X * 2, F.np.argsort(F.np.around(X))[:, 4])',
    'F.np.argsort(F.np.sort(F.np.around(X)) * 2)'])
def test_equal_numbers(code):
    """Their order is not defined."""
    X = np.around(random(3, 100)) if code == 'F.np.argsort(X)' else random(3, 100)
    line = line_of(Lambda(lambda F, X: eval(code, {'F': F, 'X': X})), X)
    assert line.startswith('model: a.onnx, checked in onnxruntime: ') and line.endswith(ALONE)


def test_a_network_that_sorts_different_numbers_is_compared_as_a_whole():
    assert ALONE not in line_of(Lambda(lambda F, X: F.np.argsort(X)), random(3, 100))
