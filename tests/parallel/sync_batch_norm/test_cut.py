"""Tests of cutting a graph at its batch norms."""
from functools import partial

import pytest
from equals_one import sequential
from norms import backward, equals_gluon, refuses, small_net, train
from slow import slow

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, gluon, np
from gluon_mgpu.networks.graph_operators import Operator
from gluon_mgpu.networks.resnet import Residual
from gluon_mgpu.parallel.split import split_and_load
from gluon_mgpu.parallel.sync_batch_norm import cut
from gluon_mgpu.parallel.sync_batch_norm.synchronized import SyncBatchNorm

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


@pytest.mark.parametrize('layers', [
    lambda: [nn.BatchNorm()],
    slow(lambda: [nn.Dense(5), nn.BatchNorm(momentum=0.5, epsilon=0.1), nn.BatchNorm(axis=-1)]),
    slow(lambda: [nn.Conv2D(3, 3), nn.BatchNorm(axis=3)]),
    lambda: [nn.Conv2D(3, 3), nn.BatchNorm(scale=False, center=False), nn.Activation('relu')],
    slow(lambda: [nn.Conv2D(3, 3), nn.BatchNorm(use_global_stats=True), nn.BatchNorm()]),
    slow(lambda: [Residual(3, use_1x1conv=True, strides=2)]),
    lambda: [nn.Conv2D(3, 3), Tangled()],
    lambda: [nn.Conv2D(3, 3), *2 * [nn.BatchNorm(momentum=1)]],
], ids=['at the start', 'without pixels', 'last axis', 'without scale and shift', 'given statistics', 'residual',
        'tangled', 'used twice'])
def test_other_networks(device_list, layers):
    equals_gluon(partial(train, make=lambda: sequential(*layers(), nn.Dense(10)), sizes=(7, 1, 4)), device_list(2))


def test_an_interrupted_backward_pass_can_be_tried_again(device_list, monkeypatch):
    net = small_net()
    net.initialize(ctx=device_list(2))
    X_shards, net = split_and_load(np.ones((4, 1, 12, 12)), device_list(2)), SyncBatchNorm(net)

    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(cut, 'add_gradient', interrupt)
        backward(net, X_shards)
    backward(net, X_shards)


def test_a_batch_norm_with_default_options():
    """Its node in the graph has no attributes."""
    inputs = ['X', 'gamma', 'beta', 'mean', 'variance']
    operator = Operator({'op': 'BatchNorm', 'name': 'norm'}, inputs, {0: 'Y'})
    assert cut._is_batch_norm(operator)
    norm, operator = cut._separate(operator, 0, dict.fromkeys(inputs[1:]))
    assert (norm.axis, norm.eps, norm.fix_gamma) == (1, 1e-3, True)
    assert operator.settings == {'use_global_stats': True, 'fix_gamma': False} and not cut._is_batch_norm(operator)


class DoubleScale(nn.BatchNorm):
    """The scale is not a parameter, but computed."""

    def hybrid_forward(self, F, x, gamma, *args, **kwargs):
        return super().hybrid_forward(F, x, 2 * gamma, *args, **kwargs)


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason="MXNet 2's BatchNorm has no hybrid_forward")
def test_other_batch_norms_are_refused(devices):
    net = sequential(DoubleScale(in_channels=3), nn.Dense(10))
    net.initialize(ctx=devices)
    refuses(SyncBatchNorm(net), 'only gluon.nn.BatchNorm can be synchronized', [np.zeros((2, 3, 4, 4), ctx=devices[0])])
