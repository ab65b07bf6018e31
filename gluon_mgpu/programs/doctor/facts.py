"""Facts about this process and its machine. Needs neither MXNet nor NumPy, and does not import MXNet."""
import os
import platform
import re
import sys
from typing import Any

from ...base.machine import num_cores, processor, versions
from ...mxnet_setup import instructions, runtime
from ...mxnet_setup.installation import installed_versions, package_folder

# Variables that affect MXNet or the visible GPUs
ENGINE = re.compile(r'(MXNET|OMP|GOMP|KMP|OPENBLAS|DNNL|ONEDNN|MALLOC|CUDA)_\w+|GLIBC_TUNABLES|LD_PRELOAD|DMLC_ROLE')


def look() -> dict[str, Any]:
    """Collect all facts that do not need MXNet, by topic."""
    prepared, found = runtime.prepare(), versions()
    users_variables = {name: value for name, value in sorted(os.environ.items())
                       if ENGINE.fullmatch(name) and name not in prepared.variables}
    return {
        'gluon_mgpu': found['gluon_mgpu'],
        'python': {'version': found['python'], 'executable': sys.executable,
                   'platform': f'{platform.system()} {platform.machine()}', 'release': found['platform']},
        'numpy': {'version': found['numpy'], 'supplied': list(prepared.names)},
        'mxnet': {'builds': installed_versions(), 'folder': package_folder('mxnet')},
        'cores': {'count': num_cores(), 'processor': processor(), 'bfloat16_obstacle': instructions.bfloat16_obstacle(),
                  'amx_obstacle': instructions.amx_obstacle()},
        'engine': {'gluon_mgpu': prepared.variables, 'you': users_variables},
    }
