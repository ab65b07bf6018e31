"""The doctor's facts of a healthy machine, which tests change."""
import copy

SELF_TEST = {
    'driver': {'gpus': [], 'cuda_version': None, 'reason': 'no NVIDIA driver'},
    'mxnet': {'version': '1.9.1', 'cuda': False, 'num_gpus': 0, 'code_for': None, 'seconds': 1.2},
    'devices': {'devices': ['cpu(0)', 'cpu(1)']},
    'allreduce': {'right': True, 'wrong': []},
    'step': {'right': True, 'difference': 6e-6, 'tolerance': 1e-2, 'reference': ['cpu(0)']},
    'speed': {'rows': 256, 'seconds': [0.045, 0.025], 'speed_up': 1.8, 'load': 0.1},
    'horovod': {},  # Horovod works; some tests combine this with the packages that are installed
    'ended': 'well', 'during': '', 'stderr': [],
}
HOROVOD = 'tools/install_horovod.sh /venv in the folder /gluon_mgpu builds it'
FACTS = {
    'gluon_mgpu': '1.0.0',
    'python': {'version': '3.11.7', 'executable': '/venv/bin/python', 'platform': 'Linux x86_64', 'release': 'Linux-6'},
    'numpy': {'version': '1.26.4', 'supplied': ['bool']},
    'packages_missing': [],
    'mxnet': {'builds': {'mxnet': '1.9.1'}, 'folder': '/venv/lib/mxnet', 'obstacle': '', 'imported_first': []},
    'cores': {'count': 2, 'processor': 'AMD EPYC', 'bfloat16': True},
    'engine': [{'name': 'OMP_NUM_THREADS', 'value': '1', 'by': 'gluon_mgpu'},
               {'name': 'MXNET_CPU_TEMP_COPY', 'value': '53', 'by': 'gluon_mgpu'},
               {'name': 'mallopt mmap_max', 'value': '0', 'by': 'gluon_mgpu'}],
    'omp_threads': 1,
    'horovod': {'installed': False, 'remedy': HOROVOD},
    'data': {'named': None, 'fashion-mnist': {'folder': None, 'error': ''}, 'mnist': {'folder': None, 'error': ''}},
    'disks': {'cache': {'folder': '/home/.cache', 'free': 2**35, 'error': ''},
              'runs': {'folder': '/data/runs', 'free': 2**35, 'error': ''}},
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
