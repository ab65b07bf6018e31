"""Tests of the picture of a timeline and its command."""
import subprocess
import sys

import pytest
from lanes import CPU0
from matplotlib.colors import to_rgba

from gluon_mgpu.outputs.timeline.draw import COLORS, busy_shares, draw_timeline, main
from gluon_mgpu.outputs.timeline.read import Event

EVENTS = [Event('cpu(0)', 'forward', 0.0, 2.0, 'Convolution'), Event('cpu(1)', 'backward', 1.0, 1.0, '_backward'),
          Event('cpu(1)', 'backward', 1.5, 1.5, '_backward'), Event('cpu(1)', 'other', 3.0, 0.0, 'CopyCPU2CPU'),
          Event('cpu(0)', 'update', 4.0, 0.0, 'sgd_update')]


def test_busy_shares_by_hand():
    # Of 4 ms: cpu(0) 0 to 2; cpu(1) 1 to 2 and, overlapping, 1.5 to 3
    assert busy_shares(EVENTS) == {'cpu(0)': 0.5, 'cpu(1)': 0.5}
    assert busy_shares(EVENTS[-1:]) == {'cpu(0)': 0.0}


def test_devices_are_sorted_by_number():
    devices = ['cpu(0)', 'gpu(1)', 'gpu(2)', 'gpu(10)', 'gpu(11)']
    events = [Event(device, 'forward', 0.0, 1.0, 'Convolution') for device in devices[::-1]]
    assert list(busy_shares(events)) == devices


def test_draw_has_one_lane_per_device_and_one_colour_per_phase(tmp_path, figures):
    draw_timeline(EVENTS, tmp_path / 'timeline.png', 'LeNet on glyphs')
    assert (tmp_path / 'timeline.png').read_bytes()[:8] == b'\x89PNG\r\n\x1a\n'
    axes, = figures[0].axes
    assert axes.get_title() == 'LeNet on glyphs'
    assert [label.get_text() for label in axes.get_yticklabels()] == ['cpu(0)', 'cpu(1)']
    bars = {(bar.get_x(), round(bar.get_y() + 0.4), round(bar.get_width(), 6), bar.get_facecolor())
            for bar in axes.patches}
    assert bars == {(0, 0, 2, to_rgba(COLORS['forward'])), (1, 1, 1, to_rgba(COLORS['backward'])),
                    (1.5, 1, 1.5, to_rgba(COLORS['backward'])), (4, 0, 4 / 800, to_rgba(COLORS['update'])),
                    (3, 1, 4 / 800, to_rgba(COLORS['other']))}
    assert [text.get_text() for text in axes.texts] == ['50% busy', '50% busy']
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == [
        'forward', 'backward', 'update', 'other']


def test_the_command(write_trace, tmp_path, capsys):
    path = write_trace(('B', CPU0, 7, 'Convolution', 0), ('E', CPU0, 7, 'Convolution', 9))
    assert main([str(path)]) == 0
    assert (tmp_path / 'trace.png').exists()
    picture = tmp_path / 'a.png'
    path = path.rename(tmp_path / r'a $\foo{$.json')  # no formula
    capsys.readouterr()
    assert main([str(path), '--out', str(picture)]) == 0
    assert capsys.readouterr() == (f'picture: {picture}\n', '')
    assert picture.exists()


@pytest.mark.slow
def test_a_trace_is_read_without_mxnet(write_trace):
    path = write_trace(('B', CPU0, 7, 'Convolution', 0), ('E', CPU0, 7, 'Convolution', 9))
    code = ('import sys; from gluon_mgpu.outputs.timeline.draw import main; '
            f'main([{str(path)!r}]); sys.exit("mxnet" in sys.modules)')
    assert subprocess.run([sys.executable, '-c', code], stdout=subprocess.DEVNULL).returncode == 0
    assert path.with_suffix('.png').exists()
