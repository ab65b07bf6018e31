"""Answers of simulated NVIDIA drivers."""
from gluon_mgpu.devices.nvidia_driver import Gpu

V100, H200, K80 = ({**gpu._asdict(), 'name': str(gpu), 'builds': gpu.builds(), 'description': gpu.description()}
                   for gpu in (Gpu(0, 'Tesla V100', (7, 0), 2**34), Gpu(1, 'NVIDIA H200', (9, 0), 2**37),
                               Gpu(0, 'Tesla K80', (3, 7), 2**33)))
CUDA = {'version': '1.9.1', 'cuda': True, 'num_gpus': 2, 'code_for': ((5, 0), (8, 9))}


def driver(*gpus):
    return {'gpus': list(gpus), 'cuda_version': [12, 4], 'reason': ''}
