"""GPUs of simulated machines, and lists of devices."""
from gluon_mgpu.devices.nvidia_driver import Gpu
from gluon_mgpu.mxnet_setup.compat import mx

WHEEL, REVIVED = ((5, 0), (8, 9)), ((8, 0), (12, 1))
K80, V100, RTX4090, H200 = (Gpu(0, name, capability, 2**34) for name, capability in (
    ('Tesla K80', (3, 7)), ('Tesla V100', (7, 0)), ('RTX 4090', (8, 9)), ('NVIDIA H200', (9, 0))))


def cpus(*numbers):
    return [mx.cpu(i) for i in numbers]


def gpus(*numbers):
    return [mx.gpu(i) for i in numbers]
