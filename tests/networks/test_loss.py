"""The loss of both chapters for labels of several shapes."""
import re

import pytest

from gluon_mgpu.mxnet_setup.compat import gluon, np
from gluon_mgpu.networks.loss import cross_entropy

Y_HAT = np.array([[1., 2., 3.], [0., 4., 0.]])


@pytest.mark.parametrize('y', [[2, 0], [[2], [0]]])
def test_class_numbers(y):
    expected = gluon.loss.SoftmaxCrossEntropyLoss()(Y_HAT, np.array(y))
    assert cross_entropy(Y_HAT, np.array(y)).tolist() == pytest.approx(expected.tolist(), rel=1e-6)  # float32


@pytest.mark.parametrize('shape', [(3,), (2, 2), (1, 2), (2, 3), (2, 3, 1)])
def test_other_labels_are_an_error(shape):
    with pytest.raises(ValueError, match=r'^labels \(.*\) for scores \(2, 3\): with scores'):
        cross_entropy(Y_HAT, np.zeros(shape))


@pytest.mark.parametrize('scores, labels', [((2, 3, 4, 4), (2, 4, 4)), ((2, 3, 4, 4), (2, 3, 4, 4)), ((3,), (3,))])
def test_other_scores_are_an_error(scores, labels):
    """Such as those of each pixel."""
    with pytest.raises(ValueError, match=re.escape(f'labels {labels} for scores {scores}: with scores')):
        cross_entropy(np.zeros(scores), np.zeros(labels))
