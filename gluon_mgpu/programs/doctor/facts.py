"""Facts about this process and its machine. Needs neither MXNet nor NumPy, and does not import MXNet."""
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...base.machine import num_cores, processor, versions
from ...base.program import reason
from ...data.folders import FROM_ENVIRONMENT, cache_dir, named_folder
from ...mxnet_setup import instructions, runtime
from ...mxnet_setup.installation import PACKAGES, installed_versions, package_folder

# Variables that affect MXNet or the visible GPUs
ENGINE = re.compile(r'(MXNET|OMP|GOMP|KMP|OPENBLAS|DNNL|ONEDNN|MALLOC|CUDA)_\w+|GLIBC_TUNABLES|LD_PRELOAD|DMLC_ROLE')


def look() -> dict[str, Any]:
    """Collect all facts that do not need MXNet, by topic."""
    prepared, found, data = runtime.prepare(), versions(), _data()
    users_variables = {name: value for name, value in sorted(os.environ.items())
                       if ENGINE.fullmatch(name) and name not in prepared.variables}
    # A folder of the user is not written, and the files in the cache are not downloaded again
    downloads = data['folder'] is None and not data['error']
    return {
        'gluon_mgpu': found['gluon_mgpu'],
        'python': {'version': found['python'], 'executable': sys.executable,
                   'platform': f'{platform.system()} {platform.machine()}', 'release': found['platform']},
        'numpy': {'version': found['numpy'], 'supplied': list(prepared.names)},
        'packages_missing': [name for module, name in PACKAGES.items() if not package_folder(module)],
        'mxnet': {'builds': installed_versions(),
                  'folder': package_folder('mxnet')},
        'cores': {'count': num_cores(), 'processor': processor(), 'bfloat16_obstacle': instructions.bfloat16_obstacle(),
                  'amx_obstacle': instructions.amx_obstacle(), 'avx2': instructions.has_avx2()},
        'engine': {'gluon_mgpu': prepared.variables, 'allocator': prepared.allocator, 'you': users_variables},
        'horovod': {'installed': package_folder('horovod') is not None},
        'data': data,
        'disks': {**({'cache': _disk(cache_dir)} if downloads else {}), 'runs': _disk(lambda: Path.cwd() / 'runs')},
    }


def _data() -> dict[str, Any]:
    """Return the folder of Fashion-MNIST, None if it will be downloaded, and the error of GLUON_MGPU_DATA."""
    named = os.environ.get('GLUON_MGPU_DATA')
    try:
        return {'folder': str(named_folder('fashion-mnist', named or cache_dir(), FROM_ENVIRONMENT)), 'error': ''}
    except ValueError as error:
        return {'folder': None, 'error': str(error) if named else ''}


def _disk(locate: Callable[[], Path]) -> dict[str, Any]:
    """Return the free bytes at a folder, which need not exist yet, and the error of writing a small file there."""
    found: dict[str, Any] = {'folder': None, 'free': None, 'error': ''}
    try:
        folder = locate()
        found['folder'] = str(folder)
        # A broken link exists for mkdir(), but not for Path.exists()
        there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(2**16))
            file.flush()
            os.fsync(file.fileno())
        found['free'] = shutil.disk_usage(there).free
    except (OSError, ValueError) as error:  # ValueError: no home folder
        found['error'] = reason(error)
    return found


def without_home(report: dict[str, Any]) -> dict[str, Any]:
    """Replace the home folder by ``~`` everywhere in a report that JSON can hold."""
    text = json.dumps(report)
    home = os.path.expanduser('~')
    for folder in sorted({home, os.path.realpath(home)} - {'/'}, key=len, reverse=True):
        text = re.sub(re.escape(json.dumps(folder)[1:-1]) + r'(?![\w.-])', '~', text)
    return json.loads(text)
