"""A new process that imports the package and looks at devices, for the tests of several modules."""
import functools
import json
import subprocess
import sys
from pathlib import Path

CODE = """
import json, numpy, warnings
before, options = dict(vars(numpy)), numpy.get_printoptions()
import gluon_mgpu as d2l
from gluon_mgpu.devices import parse_devices
d2l.try_gpu(0), d2l.try_all_gpus(), parse_devices("cpu:0-2")
d2l.split_batch

from gluon_mgpu.mxnet_setup import compat, runtime
modules = {name for name, value in vars(numpy).items() if type(value) is type(numpy)}
changed = {name for name, value in vars(numpy).items() if name not in before or before[name] is not value} - modules
names = sorted(changed - {'__warningregistry__', *runtime.prepare().names}), sorted(set(before) - set(vars(numpy)))

import sys
from gluon_mgpu.outputs.plot import Animator
Animator().add(1, 2)
print(json.dumps({'names of numpy': names, 'print options': numpy.get_printoptions() == options,
                  'matplotlib': 'matplotlib' in sys.modules}))
"""


def errors(stderr: str) -> list[str]:
    """Return the lines on stderr, without MXNet 2's own about its storage manager."""
    return [line for line in stderr.splitlines() if 'src/storage/storage.cc' not in line]


@functools.cache
def facts() -> dict:
    """Return what happens in a process in which a warning is an error."""
    done = subprocess.run([sys.executable, '-W', 'error', '-c', CODE], cwd=Path(__file__).parents[1], text=True,
                          capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
