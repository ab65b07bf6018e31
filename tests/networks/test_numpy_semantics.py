"""Parts of MXNet 1.9 that do not run with NumPy semantics, as docs/own-project.md says."""
import pytest

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, gluon, mx, np

nn = gluon.nn


def layer(block, shape=(2, 3, 8, 8)):
    block.initialize()
    return block(np.ones(shape))


def cell(kind):
    block = kind(4)
    block.initialize()
    return block(np.ones((2, 3)), block.begin_state(2))


def model(name):
    return layer(gluon.model_zoo.vision.get_model(name), (1, 3, 299, 299))


def metric(kind):
    kind.update([np.zeros(4)], [np.ones((4, 3))])


def concurrent():
    block = gluon.contrib.nn.HybridConcurrent()
    block.add(nn.Dense(2), nn.Dense(3))
    return layer(block)


ROWS = np.ones((4, 3))


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='of MXNet 1.9')
@pytest.mark.parametrize('call', [
    lambda: layer(nn.GroupNorm(1)), lambda: layer(nn.InstanceNorm()), lambda: layer(nn.ReflectionPad2D(1)), concurrent,
    lambda: layer(gluon.contrib.nn.PixelShuffle2D(2), (1, 4, 3, 3)),
    lambda: layer(nn.Embedding(5, 3, sparse_grad=True), (2,)), lambda: cell(gluon.rnn.LSTMCell),
    lambda: gluon.loss.KLDivLoss()(ROWS, ROWS), lambda: gluon.loss.HuberLoss()(ROWS, ROWS),
    lambda: gluon.loss.HingeLoss()(ROWS, ROWS), lambda: gluon.loss.SquaredHingeLoss()(ROWS, ROWS),
    lambda: gluon.loss.LogisticLoss()(ROWS, ROWS), lambda: gluon.loss.TripletLoss()(ROWS, ROWS, ROWS),
    lambda: gluon.loss.CTCLoss()(np.ones((2, 6, 5)), np.ones((2, 3))),
    lambda: gluon.loss.CosineEmbeddingLoss()(ROWS, ROWS, np.ones(4)), lambda: gluon.loss.PoissonNLLLoss()(ROWS, ROWS),
    lambda: gluon.loss.SDMLLoss()(ROWS, ROWS), lambda: model('squeezenet1.0'), lambda: model('densenet121'),
    lambda: model('mobilenetv2_0.25'), lambda: model('inceptionv3'), lambda: metric(mx.metric.Accuracy()),
    lambda: metric(mx.metric.Loss()), lambda: metric(mx.metric.Perplexity(None)),
    lambda: gluon.utils.clip_global_norm([ROWS], 1.0)])
def test_what_does_not_run_with_numpy_semantics(call):
    with pytest.raises((TypeError, ValueError, AttributeError)):
        call()
