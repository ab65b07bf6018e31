"""Fixture that runs Python with fake packages."""
import os
import subprocess
import sys

import pytest
from fake_packages import MXNET, NUMPY, REPO


@pytest.fixture
def site(tmp_path):
    """Return a function that puts fakes into a folder and runs Python with nothing else installed."""

    def run(*arguments, mxnet=MXNET, numpy=NUMPY, dists=('mxnet-1.9.1',), **environment):
        for name, source in (('mxnet', mxnet), ('numpy', numpy)):
            if source is not None:
                (tmp_path / name).mkdir(exist_ok=True)
                if source:
                    (tmp_path / name / '__init__.py').write_text(source)
        for dist in dists:
            (tmp_path / f'{dist}.dist-info').mkdir(exist_ok=True)
        env = {name: value for name, value in os.environ.items() if name != 'OMP_NUM_THREADS'}
        env['DNNL_MAX_CPU_ISA'] = 'AVX2'  # with AMX, the fake would have to compute
        env.update(environment, PYTHONPATH=os.pathsep.join([str(tmp_path), str(REPO)]))
        return subprocess.run([sys.executable, '-S', *arguments], cwd=tmp_path, env=env, text=True,
                              capture_output=True, timeout=60)

    return run
