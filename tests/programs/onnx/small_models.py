"""Networks for the tests of exports."""
import numpy
from equals_one import sequential
from oracle import lenet_params, to_mx

from gluon_mgpu.mxnet_setup.compat import np


def block(*layers):
    """Return an initialized network of these layers."""
    net = sequential(*layers)
    net.initialize()
    net(np.zeros((2, 1, 28, 28)))
    return net


def lenet(**settings):
    """Return LeNet's parameters."""
    return to_mx(lenet_params(numpy.random.default_rng(0), **settings))
