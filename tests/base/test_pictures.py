"""Tests of pictures: Matplotlib without a home folder, complete files."""
import os
import subprocess
import sys

import pytest
from slow import slow

from gluon_mgpu.base.pictures import write_picture


@pytest.mark.parametrize('home', ['/dev/null', slow('/proc/1/none'), None])
@pytest.mark.parametrize('has_account', [True, slow(False)])
def test_matplotlib_without_a_home_that_it_can_write(has_account, home, tmp_path):
    """It prints nothing; its own folder is temporary."""
    code = ('import os; from gluon_mgpu.base.program import run_program\n'
            f'{"" if has_account else "import pwd; pwd.getpwuid = {}.__getitem__"}\n'  # KeyError
            'def work(): import matplotlib; print(matplotlib.get_configdir())\n'
            'run_program("program", work)')
    unset = ('HOME', 'MPLCONFIGDIR', 'XDG_CONFIG_HOME', 'XDG_CACHE_HOME')
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment.update({'TMPDIR': str(tmp_path)}, **({'HOME': home} if home else {'XDG_CONFIG_HOME': '/dev/null'}))
    done = subprocess.run([sys.executable, '-c', code], text=True, capture_output=True, env=environment)
    assert done.stdout.startswith(f'{tmp_path}/matplotlib-') and done.stderr == ''
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(('name', 'start'), [('a.png', b'\x89PNG'), ('a.pdf', b'%PDF'), ('a', b'\x89PNG')])
def test_a_picture_is_written_completely_or_not_at_all(name, start, tmp_path, full_disk):
    from matplotlib.figure import Figure
    write_picture(Figure(), tmp_path / name)
    before = (tmp_path / name).read_bytes()
    assert before.startswith(start)
    with full_disk(), pytest.raises(OSError):
        write_picture(Figure(figsize=(1, 1)), tmp_path / name)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]
