"""Label smoothing: the labels by hand, and both chapters with it."""
import numpy
import oracle
import pytest
from gluon_mgpu.data.label_smoothing import SmoothedLabels

from gluon_mgpu import concise, scratch
from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, gluon, mx, np
from gluon_mgpu.networks.loss import cross_entropy
from gluon_mgpu.programs.onnx.graph import semantics_of
from gluon_mgpu.training.run import Run


def test_labels_by_hand():
    net = gluon.nn.Dense(3, in_units=1)
    net.initialize()
    batches = SmoothedLabels([(np.zeros((2, 1)), np.array([2, 0])), (np.zeros((0, 1)), np.zeros(0))], 0.3, net)
    (_, y), (_, none) = batches
    numpy.testing.assert_allclose(y.asnumpy(), [[0.1, 0.1, 0.8], [0.8, 0.1, 0.1]], rtol=1e-6)
    assert none.shape == (0, 3) and len(batches) == 2


def test_labels_as_a_column():
    for column in (np.array([[2], [0]]), numpy.array([[2], [0]])):
        (_, y), = SmoothedLabels([(np.zeros((2, 1)), column)], 0.5)
        assert y.shape == (2, 10) and y.asnumpy().argmax(axis=1).tolist() == [2, 0]
    with pytest.raises(ValueError, match=r'^label_smoothing 0.5: labels \(2, 10\) must be class numbers'):
        [*SmoothedLabels([(np.zeros((2, 1)), np.zeros((2, 10)))], 0.5)]


def test_the_loss_by_numpy(rng):
    """(1 - eps) times the loss of the label, plus eps times the mean loss of all classes."""
    y_hat, y = rng.normal(size=(5, 10)).astype('float32'), rng.integers(0, 10, 5)
    (_, smoothed), = SmoothedLabels([(np.array(y_hat), np.array(y))], 0.2)
    expected = 0.8 * oracle.numpy_loss(y_hat, y) + 0.2 * numpy.mean([oracle.numpy_loss(y_hat, numpy.full(5, c))
                                                                     for c in range(10)], axis=0)
    numpy.testing.assert_allclose(cross_entropy(np.array(y_hat), smoothed).asnumpy(), expected, rtol=1e-5)


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no networks of mx.nd')
@pytest.mark.parametrize('kind', [numpy, mx.nd])
def test_a_network_of_mx_nd(kind):
    with semantics_of(mx.nd.ones(1)):
        (_, smoothed), = SmoothedLabels([(mx.nd.zeros((2, 1)), kind.array([2, 0]))], 0.3, gluon.nn.Dense(3))
        y = smoothed.as_nd_ndarray()  # as after `split_batch`
        numpy.testing.assert_allclose(y.asnumpy(), [[0.1, 0.1, 0.8], [0.8, 0.1, 0.1]], rtol=1e-6)
        numpy.testing.assert_allclose(cross_entropy(mx.nd.zeros((2, 3)), y).asnumpy(), numpy.log(3), rtol=1e-5)


def losses(chapter, devices, **settings):
    rng = numpy.random.default_rng(0)
    data = [BatchIterator(rng.integers(0, 256, (22, 28, 28)).astype('uint8'), numpy.arange(22) % 10, 8, 'noise')
            for _ in range(2)]
    run = Run(2, quiet=True)
    chapter.train(len(devices), 8, 0.1, devices=devices, data=data, run=run, **settings)
    return [epoch.loss for epoch in run.history]


@pytest.mark.parametrize('chapter', [scratch, concise])
def test_training_on_several_devices_equals_one(chapter, device_list):
    def settings():
        return {} if chapter is scratch else {'net': gluon.nn.Dense(10, in_units=784)}
    one = losses(chapter, device_list(1), label_smoothing=0.2, **settings())
    several = losses(chapter, device_list(3), label_smoothing=0.2, **settings())
    numpy.testing.assert_allclose(several, one, rtol=1e-5)  # float32 sums in another order
    plain = losses(chapter, device_list(1), **settings())
    assert abs(numpy.array(plain) - one).max() > 1e-5
    assert losses(chapter, device_list(1), label_smoothing=0, **settings()) == plain


def test_the_order_of_the_rows_is_that_of_the_epoch(devices):
    """As without smoothing: another order in each epoch, the same in a resumed run."""
    images = numpy.zeros((8, 28, 28), 'uint8')
    data = BatchIterator(images, numpy.arange(8), 8, 'x', shuffle=True)
    smoothed = SmoothedLabels(data, 0.1)
    orders = []
    for epoch in (0, 1, 0):
        smoothed.epoch = epoch
        (_, y), = smoothed
        orders.append(y.asnumpy().argmax(axis=1).tolist())
    assert orders[0] == orders[2] != orders[1]


def test_batches_that_can_be_read_once(devices):
    """The outputs of the network are counted without reading a batch."""
    batches = [(np.ones((4, 3)), np.zeros(4, dtype='int32'))] * 3
    run = Run(1, quiet=True)
    concise.train(2, 4, 0.1, devices=devices[:2], data=(iter(batches), batches), net=gluon.nn.Dense(10, in_units=3),
                  run=run, label_smoothing=0.1)
    assert run.num_steps == 3


@pytest.mark.parametrize('value', [1, -0.1, 'x'])
def test_other_values(value, devices):
    with pytest.raises(ValueError, match=f'label_smoothing {value!r}: must be a number of at least 0 and less than 1'):
        losses(scratch, devices, label_smoothing=value)
