"""Every image has the same weight in an epoch, including those of a short last batch."""
import numpy
import pytest

from gluon_mgpu import concise, scratch
from gluon_mgpu.checkpoints.checkpoint_callback import CheckpointCallback
from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.mxnet_setup.compat import gluon
from gluon_mgpu.training.run import Run

LABELS = numpy.array([0, 1, 2, 3, 4, 5, 6, 7, 9, 9])  # in batches of 4: 4, 4 and 2 rows, class 9 in the last batch only
BATCH_SIZE, LR = 4, 1e-4


def black_images():
    """Return black images: the output of both networks is their last bias, and softmax is 0.1 for each class."""
    images = numpy.zeros((len(LABELS), 28, 28), 'uint8')
    return [BatchIterator(images, LABELS, BATCH_SIZE, 'black') for _ in range(2)]


def last_biases(chapter, devices, folder, resume=None):
    """Train one epoch; return the last bias on each device."""
    net = {} if chapter is scratch else {'net': gluon.nn.Dense(10)}
    run = Run(1, quiet=True, callbacks=[CheckpointCallback(folder, every=1, resume=resume)])
    chapter.train(len(devices), BATCH_SIZE, LR, devices=devices, data=black_images(), run=run, **net)
    if chapter is scratch:
        return [params[-1].asnumpy() for params in run.net]
    return [bias.asnumpy() for bias in net['net'].bias.list_data()]


# The gradient of an image's loss is softmax(bias) - one_hot(label), and softmax(bias) stays near 0.1 because the
# bias stays near 0. So an epoch adds LR / BATCH_SIZE * (images of the class - 0.1 * all images) with any batches.
EXPECTED = LR / BATCH_SIZE * (numpy.bincount(LABELS, minlength=10) - 0.1 * len(LABELS))


@pytest.mark.parametrize('chapter', [scratch, concise])
@pytest.mark.parametrize('k', [1, 2, 3])
def test_each_image_moves_the_parameters_equally_far(chapter, k, device_list, tmp_path):
    for bias in last_biases(chapter, device_list(k), tmp_path):
        # softmax(bias) changes by 1e-5 while the bias changes by 1e-4
        numpy.testing.assert_allclose(bias, EXPECTED, atol=1e-3 * LR)


@pytest.mark.slow
@pytest.mark.parametrize('chapter', [scratch, concise])
def test_after_a_resume(chapter, devices, tmp_path):
    (tmp_path / 'resumed').mkdir()
    whole = last_biases(chapter, devices, tmp_path)
    resumed = last_biases(chapter, devices, tmp_path / 'resumed', tmp_path / 'checkpoint-00000002.safetensors')
    for bias, same in zip(resumed, whole):
        numpy.testing.assert_array_equal(bias, same)
        numpy.testing.assert_allclose(bias, EXPECTED, atol=1e-3 * LR)


def test_train_batch_alone_divides_by_its_rows(devices):
    """As in the book."""
    device_params = [scratch.get_params(scratch.init_params(), device) for device in devices]
    X, y = next(iter(black_images()[0]))
    scratch.train_batch(X[:2], y[:2], device_params, devices, LR)
    expected = LR / 2 * (numpy.bincount(LABELS[:2], minlength=10) - 0.2)
    numpy.testing.assert_allclose(device_params[0][-1].asnumpy(), expected, atol=1e-3 * LR)
