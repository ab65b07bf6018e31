"""Tests of cutting a graph at its batch norms."""
from functools import partial

import pytest
from equals_one import sequential
from norms import backward, equals_gluon, norm_of, refuses, train
from slow import slow

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, gluon
from gluon_mgpu.networks.resnet import Residual
from gluon_mgpu.parallel.sync_batch_norm import cut

nn = gluon.nn


class Tangled(HybridBlock):
    """A convolution used twice, two batch norms of one array, and the input used at the end."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2D(3, 3, padding=1, in_channels=3)
        self.bn1, self.bn2, self.bn3, self.bn4 = (nn.BatchNorm() for _ in range(4))

    def forward(self, X):
        Y = self.bn1(self.conv(X))
        Z = self.bn2(self.conv(Y))
        return self.bn3(Z) * self.bn4(Z) + Y * X


class ByDefault(nn.BatchNorm):
    """Its node in the graph has no attributes."""

    def hybrid_forward(self, F, x, gamma, beta, running_mean, running_var):
        return F.npx.batch_norm(x, gamma, beta, running_mean, running_var)


@pytest.mark.parametrize('layers', [
    lambda: [nn.BatchNorm()],
    pytest.param(lambda: [nn.Conv2D(3, 3), ByDefault(scale=False)], marks=pytest.mark.skipif(
        MXNET_MAJOR >= 2, reason='MXNet 2 has no hybrid_forward')),
    slow(lambda: [nn.Dense(5), nn.BatchNorm(momentum=0.5, epsilon=0.1), nn.BatchNorm(axis=-1)]),
    slow(lambda: [nn.Conv2D(3, 3), nn.BatchNorm(axis=3)]),
    lambda: [nn.Conv2D(3, 3), nn.BatchNorm(scale=False, center=False), nn.Activation('relu')],
    slow(lambda: [nn.Conv2D(3, 3), nn.BatchNorm(use_global_stats=True), nn.BatchNorm()]),
    slow(lambda: [Residual(3, use_1x1conv=True, strides=2)]),
    lambda: [nn.Conv2D(3, 3), Tangled()],
    lambda: [nn.Conv2D(3, 3), *2 * [nn.BatchNorm(momentum=1)]],
], ids=['at the start', 'default options', 'without pixels', 'last axis', 'without scale and shift', 'given statistics',
        'residual', 'tangled', 'used twice'])
def test_other_networks(device_list, layers):
    equals_gluon(partial(train, make=lambda: sequential(*layers(), nn.Dense(10)), sizes=(7, 1, 4)), device_list(2))


def test_an_interrupted_backward_pass_can_be_tried_again(device_list, monkeypatch):
    net, X_shards = norm_of(device_list(2))

    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(cut, 'add_gradient', interrupt)
        backward(net, X_shards)
    backward(net, X_shards)


class DoubleScale(nn.BatchNorm):
    """The scale is not a parameter, but computed."""

    def hybrid_forward(self, F, x, gamma, *args, **kwargs):
        return super().hybrid_forward(F, x, 2 * gamma, *args, **kwargs)


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason="MXNet 2's BatchNorm has no hybrid_forward")
def test_other_batch_norms_are_refused(devices):
    net, X_shards = norm_of(devices, DoubleScale())
    refuses(net, 'only gluon.nn.BatchNorm can be synchronized', X_shards)
