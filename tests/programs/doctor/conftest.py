"""Fixture that runs the doctor as a program, with fake or installed packages."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gluon_mgpu.programs.doctor.screen import screen

REPO = Path(__file__).parents[3]
OURS = ('OMP_NUM_THREADS', 'MXNET_CPU_TEMP_COPY', 'MALLOC_', 'GLIBC_TUNABLES', 'GLUON_MGPU_DATA', 'DMLC_ROLE')


@pytest.fixture
def doctor(tmp_path):
    """Return a function that runs the doctor with --json and returns its report.

    `fakes` maps module names to source code, for an interpreter without site-packages; None keeps the installed
    packages. Also checks that the screen shows the first finding first.
    """
    def run(*flags, fakes=None, dists=(), program=('-m', 'gluon_mgpu', 'doctor'), **environment):
        for name, source in (fakes or {}).items():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / '__init__.py').write_text(source)
        for dist in dists:
            (tmp_path / f'{dist}.dist-info').mkdir(exist_ok=True)
            (tmp_path / f'{dist}.dist-info/METADATA').write_text(
                'Metadata-Version: 2.1\nName: {}\nVersion: {}\n'.format(*dist.split('-')))
        env = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        env.update(environment, HOME=str(tmp_path), PYTHONPATH=os.pathsep.join([str(tmp_path), str(REPO)]))
        command = [sys.executable, *([] if fakes is None else ['-S']), *program, '--json', *flags]
        done = subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=120, check=False)
        assert done.stderr == ''
        report = json.loads(done.stdout)
        assert done.returncode == (0 if report['can_train'] else 1)
        assert report['can_train'] == all(finding['level'] == 'warning' for finding in report['findings'])
        lines = screen(report)
        assert 'training can' in lines[0]
        for finding in report['findings'][:1]:
            title, first = lines[2].split(': ', maxsplit=1)
            assert title == {'fault': 'FAULT', 'warning': 'warning'}[finding['level']]
            assert finding['what'].startswith(first)
            assert any(line.startswith('  do: ') for line in lines[3:8])
            assert finding['remedy'].split('; ')[0] in ' '.join(' '.join(lines).split())  # possibly wrapped
        return report

    return run
