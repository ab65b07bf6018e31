"""Errors of inputs that do not fit a network, which are not errors of tracing."""
import pytest

from gluon_mgpu import SyncBatchNorm, hybridized
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, HybridBlock, autograd, gluon, mx, np


@hybridized
def product(X, W):
    return np.dot(X, W)


def test_a_function_with_inputs_of_wrong_shapes(devices):
    X, W = np.ones((2, 3), ctx=devices[0]), np.ones((4, 3), ctx=devices[0])
    with pytest.raises(ValueError, match=r'^product cannot be traced \(.*\): pass inputs that fit'):
        product(X, W)
    assert product(X, W.T).shape == (2, 4)


@pytest.mark.parametrize('active', [True, False])
def test_a_network_with_inputs_of_a_wrong_shape(active, devices):
    """Hybridized or not, it can be called afterwards."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(3, in_units=4), gluon.nn.BatchNorm())
    net.initialize(ctx=devices)
    net.hybridize(active)
    synchronized = SyncBatchNorm(net)
    with autograd.record():
        with pytest.raises(ValueError, match=r'^HybridSequential cannot be traced \(.*\): pass inputs that fit'):
            synchronized.forward([np.ones((5, 3), ctx=devices[0])])
        assert synchronized.forward([np.ones((5, 4), ctx=devices[0])])[0].shape == (5, 3)
    assert net._active is active


@pytest.mark.skipif(MXNET_MAJOR > 1, reason='MXNet 2 traces with arrays')
@pytest.mark.parametrize('active', [True, False])
def test_a_network_that_runs_but_cannot_be_traced(active, devices):
    class Net(HybridBlock):
        def __init__(self):
            super().__init__()
            self.norm = gluon.nn.BatchNorm()

        def forward(self, X):
            assert not isinstance(X, mx.sym.Symbol)
            return self.norm(X)
    net = Net()
    net.initialize(ctx=devices)
    net.hybridize(active)
    with autograd.record(), pytest.raises(ValueError, match='^Net cannot be traced .* write it so that MXNet can'):
        SyncBatchNorm(net).forward([np.ones((5, 3), ctx=devices[0])])
