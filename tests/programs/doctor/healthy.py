"""The doctor's facts of a healthy machine, which tests change."""
import copy

import gluon_mgpu

SELF_TEST = {
    'driver': {'gpus': [], 'cuda_version': None, 'reason': 'no NVIDIA driver'},
    'mxnet': {'version': '1.9.1', 'cuda': False, 'num_gpus': 0, 'code_for': None, 'openblas_kernels': 'Zen'},
    'arithmetic': {'says': 'matrix products in float32 are right'},
    'devices': {'devices': ['cpu(0)', 'cpu(1)']},
    'allreduce': {'says': 'sums over the devices are right'},
    'step': {'says': 'training steps on cpu(0) and cpu(1) equal those on cpu(0)'},
    'speed': {'seconds': [0.045, 0.025], 'speed_up': 1.8, 'says': 'LeNet: 45 ms'},
    'ended': 'well', 'during': '', 'stderr': [],
}
FACTS = {
    'gluon_mgpu': gluon_mgpu.__version__,
    'python': {'version': '3.11.7', 'executable': '/venv/bin/python', 'platform': 'Linux x86_64', 'release': 'Linux-6'},
    'numpy': {'version': '1.26.4', 'supplied': ['bool']},
    'mxnet': {'builds': {'mxnet': '1.9.1'}, 'folder': '/venv/lib/mxnet'},
    'cores': {'count': 2, 'processor': 'AMD EPYC', 'bfloat16_obstacle': '', 'amx_obstacle': 'the processor has none'},
    'engine': {'gluon_mgpu': {'OMP_NUM_THREADS': '1', 'MXNET_CPU_TEMP_COPY': '53'}, 'you': {}},
    'self_test': SELF_TEST,
}


def facts_with(**changes) -> dict:
    """Return the facts of a healthy machine with other values: ``facts_with(mxnet__obstacle='...')``."""
    facts = copy.deepcopy(FACTS)
    for name, value in changes.items():
        *path, last = name.split('__')
        at = facts
        for part in path:
            at = at[part]
        at[last] = value
    return facts
