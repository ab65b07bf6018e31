"""Tests of pictures: Matplotlib's defaults, also without a home folder; complete files."""
import os
import subprocess
import sys

import matplotlib
import numpy
import pytest

from gluon_mgpu.base.pictures import write_picture
from gluon_mgpu.outputs.plot import accuracy_curve
from gluon_mgpu.outputs.timeline import draw as timeline
from gluon_mgpu.outputs.timeline.read import Event
from gluon_mgpu.programs import predict
from gluon_mgpu.training.history import EpochResult


def test_matplotlib_without_a_home_that_it_can_write(tmp_path):
    """It prints nothing; its own folder is temporary."""
    code = ('from gluon_mgpu.base.pictures import matplotlib_defaults\n'
            'with matplotlib_defaults(): import matplotlib; print(matplotlib.get_configdir())')
    unset = ('MPLCONFIGDIR', 'XDG_CONFIG_HOME', 'XDG_CACHE_HOME')
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment.update(TMPDIR=str(tmp_path), HOME='/dev/null')
    done = subprocess.run([sys.executable, '-c', code], text=True, capture_output=True, env=environment)
    assert done.stdout.startswith(f'{tmp_path}/matplotlib-') and done.stderr == ''
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('draw', [
    lambda path: accuracy_curve([EpochResult(1, 1.0, 1.0, 0.5, 1.0)], path, 'title'),
    lambda path: timeline.draw_timeline([Event('cpu(0)', 'forward', 0.0, 2.0, 'Convolution')], path, 'title'),
    lambda path: predict.draw_predictions(numpy.ones((1, 28, 28)), *numpy.zeros((2, 1), int), ('a',), path, 'title'),
])
def test_a_matplotlibrc_of_the_current_folder_changes_no_picture(draw, tmp_path):
    draw(tmp_path / '1.png')
    with matplotlib.rc_context({'text.usetex': True, 'axes.facecolor': 'red'}):
        draw(tmp_path / '2.png')
        assert matplotlib.rcParams['axes.facecolor'] == 'red'  # the user's own pictures keep their style
    assert (tmp_path / '1.png').read_bytes() == (tmp_path / '2.png').read_bytes()


@pytest.mark.parametrize(('name', 'start'), [('a.png', b'\x89PNG'), ('a.pdf', b'%PDF'), ('a', b'\x89PNG')])
def test_a_picture_is_written_completely_or_not_at_all(name, start, tmp_path, full_disk):
    from matplotlib.figure import Figure
    write_picture(Figure(), tmp_path / name)
    before = (tmp_path / name).read_bytes()
    assert before.startswith(start)
    with full_disk(), pytest.raises(OSError):
        write_picture(Figure(figsize=(1, 1)), tmp_path / name)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]
