"""A computation that fails in MXNet's engine."""
from gluon_mgpu.mxnet_setup.compat import np


def failing(device, n=2):
    """Return an array (n, n) on a device. Reading it raises an error, which the engine keeps until then.

    Devices fail one after another: MXNet 1.9 can crash if two fail at the same moment.
    """
    zeros = np.zeros((1000, 1000), ctx=device)
    for _ in range(device.device_id):
        zeros = np.dot(zeros, zeros)
    return np.linalg.inv(zeros[:n, :n])
