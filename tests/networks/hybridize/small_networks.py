"""Small networks to hybridize."""
from gluon_mgpu.mxnet_setup.compat import gluon, init


def hybrid_net(devices):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(3, activation='tanh'), gluon.nn.BatchNorm(), gluon.nn.Dense(2))
    net.initialize(init.Normal(1), ctx=devices)
    return net
