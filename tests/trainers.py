"""Gluon's Trainer as the chapters and the pages use it."""
from gluon_mgpu.mxnet_setup.compat import gluon


def trainable(net):
    """Return the parameters of a network without batch norm's running statistics; frozen ones are among them."""
    # MXNet 2 lists a parameter that several layers share once for each layer
    return [*{id(param): param for param in net.collect_params().values() if param._differentiable}.values()]


def on_each_device(params, optimizer, settings=None):
    """Return a Trainer that updates on each device, as the chapters' does; by default, Gluon's key-value store does."""
    return gluon.Trainer(params, optimizer, settings, update_on_kvstore=False)
