"""Networks for the tests of exports."""
from gluon_mgpu.mxnet_setup.compat import gluon, np


def block(*layers):
    """Return an initialized network of these layers."""
    net = gluon.nn.HybridSequential()
    net.add(*layers)
    net.initialize()
    net(np.zeros((2, 1, 28, 28)))
    return net
